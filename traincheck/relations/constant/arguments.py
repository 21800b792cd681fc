"""Arguments that a program sets once, the record of a setting, and the words about settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

from traincheck.readings.losses import LOSSES
from traincheck.readings.reading import Reading
from traincheck.relations.base import counterexample
from traincheck.relations.phrasing import format_args, is_library, topic_of
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.torch_api import ATTENTION, MODAL, MULTI_HEAD, SOFTMAXES, Families
from traincheck.schema.values import is_number, is_tensor
from traincheck.schema.words import counted, display_name, joined

ARGUMENTS, BATCH, BETWEEN, EQUAL, EVALUATED = "arguments", "batch", "between", "equal", "evaluated"
HYPER, KEPT, MODES, SAMPLES, USED = "hyper", "kept", "modes", "samples", "used"
KINDS = frozenset({ARGUMENTS, BATCH, BETWEEN, EQUAL, EVALUATED, HYPER, KEPT, MODES, SAMPLES, USED})
TENSORS = "tensors"  # among the arguments: the names of those that are tensors


CAUSAL = "is_causal"
ATTENTIONS = frozenset({ATTENTION, MULTI_HEAD})
_WHOLE = frozenset(
    {"axis", "dim", "groups", "ignore_index", "padding_idx"}
)  # integers that are settings, not sizes
# What a reading of arguments is under: the mode of the module that calls, if it has two
IN_ANY, IN_TRAINING, IN_EVALUATION = "None", "True", "False"
_MODE_ARGUMENTS = frozenset({"train", "training"})
_PAIR = 2
_HOLDERS = ("torch", "torch.Tensor", "torch.nn.functional")
# Functions that modules call with the arguments of their constructors.
_LAYERS = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "embedding", "gelu", "layer_norm", "linear", "relu",
        "rms_norm", "sigmoid", "silu", "tanh",
    )
)  # fmt: skip
_SOFTMAXES = SOFTMAXES | {f"{holder}.log_softmax" for holder in _HOLDERS}
_INSTEAD = LOSSES | _SOFTMAXES | {MULTI_HEAD}
_FUNCTIONS = ("torch.nn.functional.", "torch.nn.utils.clip_grad", *sorted(_SOFTMAXES))


class Arguments:
    """Numbers among the arguments of a function, and the names of its tensors.

    wanted: functions to read; None for all.
    """

    def __init__(self, wanted: Collection[str] | None) -> None:
        self._wanted = wanted

    def call(self, event: CallEvent) -> Reading | None:
        """The arguments of a call; None if it is not read."""
        api = event.api
        if self._wanted is None:
            is_wanted = api.startswith(_FUNCTIONS) and api not in _LAYERS
        else:
            is_wanted = api in self._wanted
        if not is_wanted or event.exception is not None:
            return None
        training = event.training if api in MODAL else None
        values = _given(event, has_mode=training is not None)
        subject = Subject(api=api, module=event.module)
        return Reading(ARGUMENTS, api, str(training), values, event, subject)


def _given(event: CallEvent, *, has_mode: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    tensors = []
    for name, value in event.args.items():
        if isinstance(value, dict):
            if "shape" in value:
                # A tensor with its dims, as ``input (2 dims)``: a loss broadcasts unequal dims.
                tensors.append(
                    f"{name} ({counted(len(value['shape']), 'dim')})"
                    if event.api in LOSSES
                    else name
                )
        elif isinstance(value, bool):
            if name in _MODE_ARGUMENTS and has_mode:
                values[name] = value
        elif isinstance(value, float) or (isinstance(value, int) and name in _WHOLE):
            values[name] = value
    if event.api == MULTI_HEAD:  # the other arguments are those of its module
        values, tensors = {}, [name for name in tensors if name == "attn_mask"]
    if tensors:
        values[TENSORS] = sorted(tensors)
    if event.api == ATTENTION and not is_masked(values) and _has_several(event.args.get("query")):
        values[CAUSAL] = event.args.get(CAUSAL) is True
    return values


def _has_several(query: Any) -> bool:
    """Whether there are several positions: one alone, as with a cache, needs no mask."""
    return is_tensor(query) and len(query["shape"]) >= _PAIR and query["shape"][-2] > 1


def is_masked(values: Mapping[str, Any]) -> bool:
    """Whether attention was given a mask."""
    return "attn_mask" in values.get(TENSORS, ())


def equal_arguments(event: CallEvent, left_out: Collection[str]) -> Reading | None:
    """Which arguments of a model hold the same numbers, where their fingerprints are known.

    left_out: fingerprints to ignore: labels, some of which are ignored.
    """
    prints = {
        name: value["fingerprint"]
        for name, value in event.args.items()
        if isinstance(value, dict) and value.get("fingerprint") not in {None, *left_out}
    }
    if len(prints) < _PAIR:
        return None
    values = {f"{a} and {b}": prints[a] == prints[b] for a, b in combinations(sorted(prints), 2)}
    subject = Subject(api=event.api, module=event.module)
    return Reading(EQUAL, event.api, "", values, event, subject)


class UserCalls:
    """Functions that a program calls itself, not through modules of a library.

    A module that stands for one function, such as a loss, counts as that function.
    """

    def __init__(self) -> None:
        self._open: dict[int, set[str]] = defaultdict(set)  # parent -> what it calls
        self.apis: set[str] = set()

    def call(self, event: CallEvent) -> None:
        """A call ended, after all calls within it."""
        inside = self._open.pop(event.span, ())
        if event.family == Families.MODULE:
            self.apis.update(_INSTEAD.intersection(inside) if is_library(event.api) else inside)
        if event.parent is None:
            self.apis.add(event.api)
        else:
            self._open[event.parent].add(event.api)

    def step(self) -> None:
        """No call reaches over the end of a step."""
        self._open.clear()


# Numbers that users tune. Other numbers make another function: label_smoothing, the p of a norm
_TUNED = frozenset(
    {
        "alpha", "beta", "clip_value", "delta", "dropout_p", "eps", "lambd", "margin", "max_norm",
        "negative_slope", "tau",
    }
)  # fmt: skip
_OFF = 100.0  # factor from which on a setting may have no effect, such as a distant limit
_OF_ITSELF = {
    BETWEEN: True,
    EVALUATED: False,
    SAMPLES: 1.0,
}  # the wanted value, under the name of the claim


# Texts of findings, where those of the symptom are not specific enough.
OWN_WORDS: Mapping[str, Mapping[str, str]] = {
    USED: {
        "headline": "No model and no loss uses {variables} with gradients on",
        "likely_cause": (
            "Another variable is used instead: from another loader, another part of the batch, or "
            "an earlier step. Or the call that uses it is under no_grad()."
        ),
        "fix": "Check the arguments of the model and the loss in step {step}.",
    },
    SAMPLES: {
        "headline": "{subject} is trained on {observed}",
        "likely_cause": (
            "The batch size changed, or {subject} is called more or less often per update: "
            "{observed}."
        ),
        "fix": "Compare the inputs of {subject} in step {step} with those of the first steps.",
    },
    BATCH: {
        "headline": "Batches have other parts: {observed}",
        "likely_cause": (
            "The dataset, a transform or the collate function returns other parts than in every "
            "reference run: {expected}. In this run: {observed}."
        ),
        "fix": "Check what the dataset and the collate function of this loader return.",
    },
}


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    kind, name = params["of"], params.get("name", "")
    if kind == ARGUMENTS:
        values, evaluation = params.get("values", {}), params.get("evaluation", {})
        other = {key: value for key, value in evaluation.items() if values.get(key) != value}
        parts = [values_text(values)] if values else []
        parts += [f"{values_text(other)} in evaluation mode"] if other else []
        return f"{display_name(name)} gets {', and '.join(parts)}"
    if kind == EVALUATED:
        return f"{name} is in evaluation mode whenever it is called with gradients off"
    if kind == BETWEEN:
        return f"only {name} writes to the parameters that it updates"
    if kind == BATCH:
        leaves = ", ".join(f"{path}: {what}" for path, what in params["values"].items())
        return f"batches of {name} hold {leaves}"
    if kind == USED:
        return f"a model or a loss uses {', '.join(params['values'])} of {name}"
    if kind == EQUAL:
        pairs = ", ".join(params["values"])
        return f"{display_name(name)} gets the same values for its arguments {pairs}"
    if kind == HYPER:
        cls = params["class"].rpartition(".")[2]
        return f"{cls} as {name} has {values_text(params['values'])}"
    if kind == KEPT:
        return f"{', '.join(params['values'])} of optimizers never change"
    if kind == MODES:
        still = params["eval"]
        outermost = [path for path in still if path.rpartition(".")[0] not in still]
        but = f", except {', '.join(outermost)}" if still else ""
        return f"all modules of a model that trains are in training mode{but}"
    return f"{name} is trained on the same number of rows in every step"


def values_text(values: Mapping[str, Any]) -> str:
    """Values as in a call, and the names of tensors."""
    plain = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in values.items()
        if name != TENSORS
    }
    tensors = f"the tensors {', '.join(values[TENSORS])}" if values.get(TENSORS) else ""
    return " and ".join(part for part in (format_args(plain), tensors) if part)


def wanted_of(params: Mapping[str, Any], setting: Reading) -> dict[str, Any]:
    """The values that a claim requires of a setting."""
    if params["of"] == MODES:
        return {module: module not in params["eval"] for module in setting.value}
    if params["of"] == USED:  # nothing is known of the others
        return {path: used for path, used in params["values"].items() if path in setting.value}
    if params["of"] in _OF_ITSELF:
        return {params["name"]: _OF_ITSELF[params["of"]]}
    is_evaluation = setting.under == IN_EVALUATION
    wanted = dict(params.get("evaluation" if is_evaluation else "values", {}))
    if CAUSAL not in setting.value:  # with a mask, or for a single position
        wanted.pop(CAUSAL, None)
    return wanted


def negative(params: Mapping[str, Any], setting: Reading, wanted: Mapping[str, Any]) -> Example:
    """The counterexample. wanted: the values that differ from what was found."""
    found = {name: setting.value[name] for name in wanted if setting.value.get(name) is not None}
    expected, observed = values_text(wanted), values_text(found) or _lacking(wanted)
    subject, symptom, event = setting.at or Subject(), Symptom.WRONG_VALUE, setting.event
    first = next(iter(wanted))
    if params["of"] in (MODES, EVALUATED):
        modes = ("in evaluation mode", "in training mode")
        expected, observed = modes[wanted[first]], modes[not wanted[first]]
        api = Families.TRAIN if params["of"] == MODES else Families.EVAL
        subject = Subject(module=first, api=api)
        symptom = Symptom.EVAL_MODE if wanted[first] else Symptom.TRAINING_MODE
    elif params["of"] == ARGUMENTS and setting.of in ATTENTIONS and _is_of_mask(wanted, found):
        symptom = Symptom.UNMASKED
    elif params["of"] == ARGUMENTS and all(
        _is_tuned(setting, name, wanted[name]) for name in wanted
    ):
        symptom = Symptom.SETTING
    elif params["of"] == BETWEEN:
        expected = f"{subject.variable} does not change between two steps of {first}"
        observed, symptom = "something else changed it", Symptom.OVERWRITTEN
    elif params["of"] == BATCH:
        lacking = [name for name in wanted if name not in setting.value]
        expected = f"{first}: {wanted[first]}"
        observed = f"{first}: {setting.value.get(first)}"
        if lacking:
            are = "is" if len(lacking) == 1 else "are"
            expected = f"batches of {setting.of} with {joined(lacking)}"
            observed = f"{joined(lacking)} {are} missing from batches of {setting.of}"
    elif params["of"] == USED:
        subject = Subject(variable=f"{setting.of} {first}")
        expected, observed = "used by a model or a loss", "fetched, and not used"
    elif params["of"] == EQUAL:
        expected, observed = "the same values", f"{', '.join(wanted)} differ"
    elif params["of"] == KEPT:
        expected, observed = "the initial values", f"{', '.join(wanted)} changed"
    elif params["of"] == SAMPLES:
        expected = "as many rows as in the first steps"
        observed = f"{setting.value[first]:g} times as many rows as in the first steps of this run"
    return counterexample(
        event,
        subject,
        expected,
        observed,
        symptom,
        stage=event.stage,
    ).replace(topic=_topic(params["of"], wanted, found))


def _topic(kind: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Topic | None:
    """The topic of a counterexample, by the names in it."""
    if kind == SAMPLES:
        return Topic.ROWS
    if kind == BATCH:
        lacking = [name for name in wanted if name not in found]
        return topic_of(lacking or [next(iter(wanted))])
    if kind in (ARGUMENTS, EQUAL, HYPER, KEPT):
        return topic_of((*wanted, *wanted.get(TENSORS, ()), *found.get(TENSORS, ())))
    return None


def _is_tuned(setting: Reading, name: str, wanted: Any) -> bool:
    """Whether users tune a number, and the found value has the same effect."""
    found = setting.value.get(name)
    if not is_number(wanted) or not is_number(found) or wanted * found <= 0:
        return False  # switched off, or on
    is_choice = name in _TUNED or (name == "p" and "dropout" in setting.of)
    return is_choice and (name == "eps" or 1 / _OFF < found / wanted < _OFF)


def _is_of_mask(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether attention lacks a mask, or a causal mask."""
    return bool(wanted.get(CAUSAL)) or is_masked(wanted) > is_masked(found)


def _lacking(wanted: Mapping[str, Any]) -> str:
    names = [name for name in wanted if name != TENSORS]
    return f"no {', '.join([*names, *wanted.get(TENSORS, ())])}"


def word(kind: str, name: str, *mode: str) -> str:
    """The term for a setting."""
    return " ".join(("constant", kind, name, *mode))


def word_of(params: Mapping[str, Any]) -> str:
    """The term for the setting of a claim."""
    return word(params["of"], name_of(params))


def name_of(params: Mapping[str, Any]) -> str:
    """The name of the setting of a claim; for an optimizer with its class."""
    return " ".join(params[key] for key in ("name", "class") if key in params)


def alike(
    claim: Mapping[str, Any], other: Mapping[str, Any], terms: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two claims, without the parts that a run with these terms could not show."""
    mine, its = dict(claim), dict(other)
    if its["of"] == MODES:
        mine.pop("classes", None)
        its.pop("classes", None)
    elif its["of"] == ARGUMENTS:
        for key, modes in (("values", (IN_ANY, IN_TRAINING)), ("evaluation", (IN_EVALUATION,))):
            if not any(word(ARGUMENTS, its["name"], mode) in terms for mode in modes):
                mine.pop(key, None)
                its.pop(key, None)
    return mine, its
