"""Which symptom explains which: a table and its predicates.

root_causes.py applies it. There, a cause also explains what its effects explain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from traincheck.schema.findings import Subject, Symptom, Topic
from traincheck.schema.torch_api import Families

_UNOWNED = re.compile(r"opt\d+\[\d+\]")  # a parameter that no known module owns: opt0[0].3


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A possible effect, together with its possible cause.

    Attributes:
        subject: of the effect.
        topic: of the effect.
        cause_subject: of the cause.
        variables: parameters of the cause, see `base_name`.
        lag: steps from the first violation of the cause to the first of the effect.
    """

    subject: Subject
    topic: Topic | None
    cause_subject: Subject
    variables: Collection[str]
    lag: int


Link = Callable[[Effect], bool]


def base_name(variable: str) -> str:
    """The parameter of a name: ``Net.fc1.weight`` for ``Net.fc1.weight/exp_avg``."""
    return variable.partition("/")[0]


def _anything(effect: Effect) -> bool:
    return True


def _nothing(effect: Effect) -> bool:  # each is reported by itself
    return False


def _same_variable(effect: Effect) -> bool:
    variable = effect.subject.variable
    return variable is None or base_name(variable) in effect.variables


def _same_variable_or_unowned(effect: Effect) -> bool:
    return _same_variable(effect) or _UNOWNED.match(effect.subject.variable or "") is not None


def _same_onset(effect: Effect) -> bool:
    return abs(effect.lag) <= 1


def _same_api(effect: Effect) -> bool:
    return _same_onset(effect) and effect.subject.api == effect.cause_subject.api


def _same_call(effect: Effect) -> bool:
    return effect.subject.api is not None and _same_api(effect)


def calls(*parts: str) -> Link:
    """The API of the effect contains any of ``parts``."""
    return lambda effect: any(part in (effect.subject.api or "") for part in parts)


def about(*topics: Topic) -> Link:
    """The effect is about one of ``topics``."""
    return lambda effect: effect.topic in topics


def _order_of_updates(effect: Effect) -> bool:
    return effect.topic is Topic.ORDER and effect.subject.api == Families.OPTIMIZER_STEP


_S = Symptom
_UPDATES = calls("torch.optim", ".step", "GradScaler")
_MODES = calls(".train", ".eval")

_NOTHING_TO_APPLY: Mapping[Symptom, Link] = {
    _S.NOT_LEARNING: _anything,
    _S.MISSING_STEP: _anything,
    _S.MISSING_ZERO_GRAD: _anything,
    _S.NO_GRADIENT: _anything,
    _S.NOT_UPDATED: _anything,
    _S.STATE_UNCHANGED: _anything,
    _S.MISSING_CALL: calls(
        "torch.optim", ".step", "zero_grad", "backward", "GradScaler", Families.MODULE
    ),
}
# In order of rank: among those that explain the same violation, the first wins.
EXPLAINS: Mapping[Symptom, Mapping[Symptom, Link]] = {
    _S.OUT_OF_STEP: {
        _S.OUT_OF_STEP: _anything,
        _S.NOT_SYNCHRONIZED: _anything,
        _S.RANKS_DIFFER: _anything,
    },
    _S.STEPS_SKIPPED: {
        _S.NOT_LEARNING: _anything,
        _S.STEPS_SKIPPED: _same_onset,
        _S.SCHEDULE: _anything,
        _S.MISSING_STEP: _anything,
        _S.NOT_UPDATED: _anything,
        _S.STATE_UNCHANGED: _anything,
        _S.MISSING_CALL: _UPDATES,
        _S.WARNED: about(Topic.SCHEDULER),
    },
    _S.GRADIENT_LOST: {
        _S.GRADIENT_LOST: _same_onset,
        _S.MISSING_STEP: _anything,
        _S.NOT_UPDATED: _anything,
        _S.STATE_UNCHANGED: _anything,
        _S.MISSING_CALL: _UPDATES,
    },
    _S.NOT_IN_OPTIMIZER: {
        _S.NOT_LEARNING: _anything,
        _S.NOT_IN_OPTIMIZER: _same_onset,
        _S.HOLDS_OTHERS: _same_onset,
        # The trained and the optimized parameters were chosen separately: one bug, one finding.
        _S.FROZEN: _same_onset,
        _S.STEP_WITHOUT_GRADIENT: _anything,
        _S.NOT_UPDATED: _same_variable_or_unowned,
        _S.STATE_UNCHANGED: _same_variable_or_unowned,
        _S.MISSING_CALL: calls("torch.optim"),
    },
    _S.HOLDS_OTHERS: {
        _S.NOT_LEARNING: _anything,
        _S.HOLDS_OTHERS: _same_onset,
        _S.STEP_WITHOUT_GRADIENT: _same_onset,
        _S.NOT_UPDATED: _same_onset,
        _S.STATE_UNCHANGED: _same_onset,
        _S.MISSING_CALL: calls("torch.optim"),
    },
    _S.UNFROZEN: {
        _S.UNFROZEN: _same_onset,
        _S.FROZEN: _same_onset,  # the trained and the frozen part were swapped: one bug
        _S.SILENT_WRITE: _same_variable,
        _S.DETACHED: _anything,
        _S.WRONG_VALUE: about(Topic.REQUIRES_GRAD),
    },
    _S.FROZEN: {
        _S.NOT_LEARNING: _anything,
        _S.FROZEN: _same_onset,
        _S.NO_GRADIENT: _same_variable,
        _S.NOT_UPDATED: _same_variable,
        _S.STATE_UNCHANGED: _same_variable,
        _S.DETACHED: _anything,
        _S.WRONG_VALUE: about(Topic.REQUIRES_GRAD),
    },
    _S.STRUCTURE: {
        _S.STRUCTURE: _same_onset,
        _S.DETACHED: _same_onset,
        _S.WRONG_VALUE: _same_onset,
    },
    _S.NO_BACKWARD: {
        **_NOTHING_TO_APPLY,
        _S.NO_BACKWARD: _same_onset,
        _S.STEP_WITHOUT_GRADIENT: _same_onset,
    },
    _S.STEP_WITHOUT_GRADIENT: {**_NOTHING_TO_APPLY, _S.STEP_WITHOUT_GRADIENT: _same_onset},
    _S.MISSING_STEP: {
        _S.NOT_LEARNING: _anything,
        _S.MISSING_STEP: _same_onset,
        _S.NOT_UPDATED: _anything,
        _S.STATE_UNCHANGED: _anything,
        _S.MISSING_CALL: _UPDATES,
        _S.SCHEDULE: _order_of_updates,
        _S.WARNED: about(Topic.SCHEDULER),
    },
    _S.WRONG_ORDER: {
        _S.WRONG_ORDER: _same_api,
        _S.MISSING_CALL: calls("clip_grad", "GradScaler", "lr_scheduler"),
        _S.WARNED: about(Topic.SCHEDULER, Topic.CLIPPING),
    },
    _S.APPLIED_TWICE: {_S.APPLIED_TWICE: _same_onset},
    _S.SCHEDULE: {
        _S.NOT_LEARNING: _anything,
        _S.SCHEDULE: _same_onset,
        _S.NOT_UPDATED: _anything,
        _S.MADE_ANEW: _same_onset,
    },
    _S.SILENT_WRITE: {_S.SILENT_WRITE: _same_onset},
    _S.OVERWRITTEN: {_S.OVERWRITTEN: _same_onset, _S.STATE_UNCHANGED: _anything},
    _S.MISSING_ZERO_GRAD: {
        _S.NON_FINITE: _anything,
        _S.GRADIENT_SIZE: _anything,
        _S.NOT_LEARNING: _anything,
        _S.MISSING_ZERO_GRAD: _same_onset,
        _S.STATE_UNCHANGED: _anything,
        _S.MISSING_CALL: calls("zero_grad"),
    },
    _S.SHARING_LOST: {
        _S.SHARING_LOST: _same_onset,
        _S.NOT_UPDATED: _same_variable,
        _S.NO_GRADIENT: _same_variable,
    },
    _S.EVAL_MODE: {
        _S.EVAL_MODE: _same_onset,
        _S.TRAINING_MODE: _same_onset,
        _S.STATE_UNCHANGED: _anything,
        _S.MISSING_CALL: _MODES,
        _S.WRONG_VALUE: about(Topic.MODE),
    },
    _S.TRAINING_MODE: {
        _S.TRAINING_MODE: _same_onset,
        _S.STATE_UNCHANGED: _anything,
        _S.MISSING_CALL: _MODES,
        _S.WRONG_VALUE: about(Topic.MODE),
    },
    _S.NO_GRADIENT: {
        _S.NOT_LEARNING: _anything,
        _S.NO_GRADIENT: _same_onset,
        _S.NOT_UPDATED: _same_variable,
        _S.STATE_UNCHANGED: _same_variable,
        _S.WARNED: about(Topic.REQUIRES_GRAD),
        _S.DETACHED: _anything,
        _S.WRONG_VALUE: about(Topic.REQUIRES_GRAD),
    },
    _S.DETACHED: {_S.NOT_LEARNING: _anything, _S.DETACHED: _same_onset},
    _S.NOT_SYNCHRONIZED: {
        _S.NOT_SYNCHRONIZED: _anything,
        _S.RANKS_DIFFER: _anything,
    },
    _S.NOT_RESTORED: {_S.NOT_RESTORED: _same_onset},
    _S.RANKS_DIFFER: {_S.RANKS_DIFFER: _anything},
    _S.UNMASKED: {
        _S.UNMASKED: _same_onset,
        _S.LOSS_INPUT: _same_onset,
        _S.NON_FINITE: _anything,
        _S.WRONG_VALUE: about(Topic.MASK),
    },
    _S.BATCH_CONTENT: {_S.BATCH_CONTENT: _same_onset, _S.LOSS_INPUT: _same_onset},
    _S.LOSS_INPUT: {
        _S.NON_FINITE: _anything,
        _S.GRADIENT_SIZE: _anything,
        _S.NOT_LEARNING: _anything,
        _S.LOSS_INPUT: _same_api,
    },
    _S.REPEATED_DATA: {_S.REPEATED_DATA: _same_onset},
    _S.PRECISION: {
        _S.NON_FINITE: _anything,
        _S.PRECISION: _same_call,
        _S.WARNED: about(Topic.AUTOCAST),
    },
    _S.INITIALIZATION: {
        _S.INITIALIZATION: _same_onset,
        _S.GRADIENT_SIZE: _anything,
        _S.DEAD_UNITS: _anything,
        _S.NON_FINITE: _anything,
        _S.NOT_LEARNING: _anything,
    },
    _S.GRADIENT_SIZE: {
        _S.GRADIENT_SIZE: _anything,
        _S.NON_FINITE: _anything,
        _S.DEAD_UNITS: _anything,
        _S.NOT_LEARNING: _anything,
    },
    _S.NON_FINITE: {
        _S.NON_FINITE: _anything,
        _S.DEAD_UNITS: _anything,
        _S.NOT_LEARNING: _anything,
        _S.STATE_UNCHANGED: _anything,
        _S.NOT_UPDATED: _anything,
    },
    _S.DEAD_UNITS: {
        _S.DEAD_UNITS: _same_onset,
        _S.NOT_LEARNING: _anything,
        _S.NOT_UPDATED: _anything,
    },
    _S.NOT_UPDATED: {
        _S.NOT_LEARNING: _anything,
        _S.NOT_UPDATED: _same_onset,
        _S.STATE_UNCHANGED: _same_variable,
    },
    _S.NOT_LEARNING: {_S.NOT_LEARNING: _same_onset},
    _S.STATE_UNCHANGED: {_S.STATE_UNCHANGED: _same_onset},
    _S.MADE_ANEW: {_S.MADE_ANEW: _same_onset},
    _S.MISSING_CALL: {_S.MISSING_CALL: _same_api},
    _S.EXTRA_CALL: {_S.EXTRA_CALL: _same_api},
    _S.WARNED: {_S.WARNED: _same_api},
    _S.WRONG_VALUE: {_S.WRONG_VALUE: _same_api},
    _S.SETTING: {_S.SETTING: _same_api},
    _S.ADVICE: {_S.ADVICE: _nothing},
}
RANK = {symptom: rank for rank, symptom in enumerate(EXPLAINS)}
