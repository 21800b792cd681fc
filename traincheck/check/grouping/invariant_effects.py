"""Which symptoms explain that a run differs from its references: a table and its predicates.

A broken invariant shows that a run differs, and seldom why. Where another finding names the bug,
the differences that follow from it are reported with that finding. Findings of rules are never
treated as such differences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from traincheck.check.grouping.causes import Effect, Link, about, base_name, calls
from traincheck.schema.claims import ACTIVATION_FUNCTIONS
from traincheck.schema.findings import Symptom, Topic

_COPY = re.compile(r"#\d+")  # Net#2 is a second object of the class Net
_MIN_WORD = 4
_ACTIVATIONS = ("softmax", "sigmoid", "softplus", "tanh", "torch.nn.modules.activation.")
# Leaving one of these out is a separate bug, which may show no other symptom.
_OWN_BUGS = ("dropout", "_norm", "norm.", "attention", "torch.nn.init.")
# Numbers computed from wrong values go out of range.
_numbers = about(Topic.MAGNITUDE)


def _at_once(effect: Effect) -> bool:
    return abs(effect.lag) <= 1


def _same_numbers(effect: Effect) -> bool:
    return _at_once(effect) and effect.subject.api == effect.cause_subject.api


def _its_numbers(effect: Effect) -> bool:
    """Numbers that result from another computation, or from other initial values."""
    api = effect.cause_subject.api or ""
    computes = _is_computation(api) or api.startswith("torch.nn.init.")
    return _same_numbers(effect) or (computes and _at_once(effect) and _numbers(effect))


def _activation(effect: Effect) -> bool:
    api = effect.subject.api or ""
    known = api in ACTIVATION_FUNCTIONS or any(word in api for word in _ACTIVATIONS)
    return known and _at_once(effect)


def _computation(effect: Effect) -> bool:
    return _is_computation(effect.subject.api or "") and _at_once(effect)


def _is_computation(api: str) -> bool:
    """Whether a call computes something in a forward or a loss, and is no known bug by itself."""
    api = api.lower()
    computes = "." in api and not api.startswith(("torch.optim", "torch.amp", "torch.autograd"))
    return computes and not any(word in api for word in _OWN_BUGS)


def _calls_at_once(*parts: str) -> Link:
    called = calls(*parts)
    return lambda effect: _at_once(effect) and called(effect)


def _class_of(api: str | None) -> str | None:
    """``torch.amp.GradScaler`` of its methods; None for a function."""
    owner = (api or "").rpartition(".")[0]
    name = owner.rpartition(".")[2]
    return owner if name[:1].isupper() else None


def _same_object(effect: Effect) -> bool:
    """Another method of the same class: a program without the object calls none of them."""
    owner = _class_of(effect.subject.api)
    return owner is not None and owner == _class_of(effect.cause_subject.api) and _at_once(effect)


def _within_model(effect: Effect) -> bool:
    """Calls within a model that is called more often, and calls that use its results.

    Of functions, and of modules that are counted by their class, it is not known where they are.
    """
    model, module = effect.cause_subject.module, effect.subject.module
    if model is None or "." in model or not _at_once(effect):
        return False
    if module is not None:
        return module.startswith(f"{model}.") or (module == model and effect.topic is Topic.ROWS)
    return _is_computation(effect.subject.api or "")


def _goes_along(effect: Effect) -> bool:
    return _same_object(effect) or _within_model(effect)


def _rows_or_numbers(effect: Effect) -> bool:
    return _its_numbers(effect) or _within_model(effect)


def _same_variable(effect: Effect) -> bool:
    variable = effect.subject.variable
    return variable is not None and base_name(variable) in effect.variables


def _of_variable(effect: Effect) -> bool:
    """A model is cast at once, its parameters and its buffers."""
    return effect.subject.variable is not None and _at_once(effect)


def _variable_of_a_copy(effect: Effect) -> bool:
    """The same parameter of another object of the class: one was taken for the other."""
    variable = effect.subject.variable
    if variable is None or not _at_once(effect):
        return False
    plain = _COPY.sub("", base_name(variable))
    return any(_COPY.sub("", name) == plain for name in effect.variables)


def _shares_a_word(effect: Effect) -> bool:
    """``clip-of-nothing`` explains what ``clip_grad_norm_`` gives."""
    words = re.findall(rf"[a-z]{{{_MIN_WORD},}}", (effect.cause_subject.api or "").lower())
    return _at_once(effect) and any(word in (effect.subject.api or "").lower() for word in words)


_S = Symptom
_SCHEDULER = _calls_at_once("lr_scheduler")

INVARIANT_EFFECTS: Mapping[Symptom, Mapping[Symptom, Link]] = {
    _S.STEPS_SKIPPED: {_S.WRONG_VALUE: _numbers, _S.EXTRA_CALL: calls("GradScaler")},
    _S.GRADIENT_LOST: {
        _S.EXTRA_CALL: _calls_at_once("zero_grad"),
        _S.MISSING_ZERO_GRAD: _at_once,
        _S.WRONG_VALUE: _numbers,
    },
    _S.NOT_IN_OPTIMIZER: {
        _S.NO_GRADIENT: _variable_of_a_copy,
        _S.NOT_IN_OPTIMIZER: _same_variable,
        _S.STRUCTURE: _at_once,
        _S.SHARING_LOST: _same_variable,
        _S.MISSING_ZERO_GRAD: _same_variable,
        _S.WRONG_VALUE: _numbers,
    },
    _S.HOLDS_OTHERS: {
        _S.NO_GRADIENT: _same_variable,
        _S.MISSING_ZERO_GRAD: _at_once,  # it clears only those
        _S.WRONG_VALUE: _numbers,
    },
    _S.UNFROZEN: {_S.UNFROZEN: _same_variable},
    _S.FROZEN: {_S.FROZEN: _same_variable},
    _S.NO_BACKWARD: {_S.WRONG_VALUE: _numbers, _S.EXTRA_CALL: _calls_at_once(".step")},
    _S.STEP_WITHOUT_GRADIENT: {_S.WRONG_VALUE: _numbers, _S.EXTRA_CALL: _calls_at_once(".step")},
    _S.MISSING_STEP: {_S.WRONG_VALUE: _numbers},
    _S.WRONG_ORDER: {
        _S.SCHEDULE: _SCHEDULER,
        _S.MISSING_CALL: _same_numbers,
        _S.EXTRA_CALL: _same_numbers,
        _S.WRONG_VALUE: _same_numbers,
    },
    _S.APPLIED_TWICE: {
        _S.MISSING_ZERO_GRAD: _at_once,
        _S.EXTRA_CALL: _calls_at_once("torch.optim", "torch.autograd", "GradScaler"),
        _S.WRONG_VALUE: _numbers,
    },
    _S.SCHEDULE: {
        _S.EXTRA_CALL: _SCHEDULER,
        _S.MISSING_CALL: _SCHEDULER,
        _S.WRONG_VALUE: calls("lr_scheduler"),
    },
    _S.MISSING_ZERO_GRAD: {_S.WRONG_VALUE: _numbers},
    _S.EVAL_MODE: {
        _S.EXTRA_CALL: _calls_at_once(".train", ".eval"),
        _S.MISSING_CALL: _at_once,  # they are called, and counted in training mode only
        _S.WRONG_VALUE: _numbers,
    },
    _S.NO_GRADIENT: {_S.NO_GRADIENT: _same_variable, _S.WRONG_VALUE: _numbers},
    _S.NOT_SYNCHRONIZED: {_S.NOT_UPDATED: _same_variable, _S.STATE_UNCHANGED: _same_variable},
    _S.RANKS_DIFFER: {
        _S.MISSING_CALL: _calls_at_once("torch.distributed."),
        _S.NOT_UPDATED: _same_variable,
        _S.STATE_UNCHANGED: _same_variable,
    },
    _S.LOSS_INPUT: {
        _S.WRONG_VALUE: _same_numbers,
        _S.MISSING_CALL: _activation,
        _S.EXTRA_CALL: _activation,
    },
    _S.PRECISION: {
        _S.PRECISION: _of_variable,
        _S.MISSING_CALL: _calls_at_once("GradScaler", "autocast"),
        _S.WRONG_VALUE: _at_once,
    },
    _S.INITIALIZATION: {
        _S.MISSING_CALL: calls("torch.nn.init."),
        _S.EXTRA_CALL: calls("torch.nn.init."),
        _S.WRONG_VALUE: _numbers,
    },
    _S.GRADIENT_SIZE: {
        _S.MISSING_CALL: _computation,
        _S.EXTRA_CALL: _computation,
        _S.WRONG_VALUE: _numbers,
    },
    _S.NON_FINITE: {
        _S.MISSING_CALL: _computation,
        _S.EXTRA_CALL: _computation,
        _S.WRONG_VALUE: _numbers,
    },
    _S.DEAD_UNITS: {
        _S.MISSING_CALL: _activation,
        _S.EXTRA_CALL: _activation,
        _S.WRONG_VALUE: _numbers,
    },
    _S.NOT_UPDATED: {_S.NOT_UPDATED: _same_variable, _S.WRONG_VALUE: _numbers},
    _S.NOT_LEARNING: {_S.WRONG_VALUE: _numbers},
    _S.STATE_UNCHANGED: {_S.STATE_UNCHANGED: _same_variable},
    _S.MISSING_CALL: {_S.MISSING_CALL: _same_object, _S.WRONG_VALUE: _its_numbers},
    _S.MADE_ANEW: {_S.WRONG_VALUE: _numbers},
    _S.EXTRA_CALL: {_S.EXTRA_CALL: _goes_along, _S.WRONG_VALUE: _rows_or_numbers},
    _S.WARNED: {_S.WRONG_VALUE: _shares_a_word},
}
