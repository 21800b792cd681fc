"""How values that a program keeps are put into words, in claims and in counterexamples."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from traincheck.relations.constant.properties import (
    ARGUMENTS,
    ATTENTIONS,
    BATCH,
    BETWEEN,
    CAUSAL,
    EQUAL,
    EVALUATED,
    HYPER,
    KEPT,
    MODES,
    SAMPLES,
    TENSORS,
    USED,
    Fact,
    is_masked,
)
from traincheck.relations.phrasing import short, shown
from traincheck.relations.topics import topic_of
from traincheck.schema.claims import Context
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_number
from traincheck.schema.words import joined

ALWAYS: Context = {}
# Numbers that users tune. Not what makes another function of it: label_smoothing, the p of a norm
_TUNED = frozenset(
    {
        "alpha", "beta", "clip_value", "delta", "dropout_p", "eps", "lambd", "margin", "max_norm",
        "negative_slope", "tau",
    }
)  # fmt: skip
_OFF = 100.0  # times as much or as little: it may do nothing any more, as a limit that is far away
_OF_ITSELF = {BETWEEN: True, EVALUATED: False, SAMPLES: 1.0}  # what is wanted under its own name


# How findings are told, where the words for unexpected values do not say it well.
OWN_WORDS: Mapping[str, Mapping[str, str]] = {
    USED: {
        "headline": "With gradients on, {variables} {is|are} given to no model and no loss",
        "likely_cause": (
            "Another variable is used in its place: of another loader, another part of the batch, "
            "or of an earlier step. Or what it is given to is called under no_grad()."
        ),
        "fix": "Look at what the model and the loss are called with at step {step}.",
    },
    SAMPLES: {
        "headline": "{subject} is trained on {observed}",
        "likely_cause": (
            "Batches are larger or smaller than at first, or {subject} is called more or less "
            "often for an update: {observed}."
        ),
        "fix": "Compare what {subject} is called with in step {step} and in the first steps.",
    },
    BATCH: {
        "headline": "Batches are made of other parts: {observed}",
        "likely_cause": (
            "The dataset, a transform or the collate function gives other parts than in every "
            "reference run: {expected}. Here: {observed}."
        ),
        "fix": "Look at what the dataset and the collate function of this loader return.",
    },
}


def text_of(params: Mapping[str, Any]) -> str:
    """A claim about one of these, as a sentence."""
    kind, name = params["of"], params.get("name", "")
    if kind == ARGUMENTS:
        values, evaluation = params.get("values", {}), params.get("evaluation", {})
        other = {key: value for key, value in evaluation.items() if values.get(key) != value}
        parts = [said(values)] if values else []
        parts += [f"{said(other)} in evaluation mode"] if other else []
        return f"{short(name)} is given {', and '.join(parts)}"
    if kind == EVALUATED:
        return f"{name} is in evaluation mode whenever it is called with gradients off"
    if kind == BETWEEN:
        return f"nothing but {name} writes to the parameters that it updates"
    if kind == BATCH:
        leaves = ", ".join(f"{path}: {what}" for path, what in params["values"].items())
        return f"batches of {name} hold {leaves}"
    if kind == USED:
        return f"a model or a loss is given {', '.join(params['values'])} of {name}"
    if kind == EQUAL:
        pairs = ", ".join(params["values"])
        return f"{short(name)} is given the same numbers as its arguments {pairs}"
    if kind == HYPER:
        cls = params["class"].rpartition(".")[2]
        return f"{cls} as {name} has {said(params['values'])}"
    if kind == KEPT:
        return f"{', '.join(params['values'])} of optimizers never change"
    if kind == MODES:
        still = params["eval"]
        outermost = [path for path in still if path.rpartition(".")[0] not in still]
        but = f", but for {', '.join(outermost)}" if still else ""
        return f"all modules of a model that trains are in training mode{but}"
    return f"{name} is trained on the same number of rows in every step"


def said(values: Mapping[str, Any]) -> str:
    """Values as a call would give them, and the tensors among them by name."""
    plain = {
        name: value[0] if isinstance(value, list) and len(value) == 1 else value
        for name, value in values.items()
        if name != TENSORS
    }
    tensors = f"tensors as {', '.join(values[TENSORS])}" if values.get(TENSORS) else ""
    return " and ".join(part for part in (shown(plain), tensors) if part)


def wanted_of(params: Mapping[str, Any], fact: Fact) -> dict[str, Any]:
    """The values that a claim asks of a fact."""
    if params["of"] == MODES:
        return {module: module not in params["eval"] for module in fact.values}
    if params["of"] == USED:  # of others it cannot be told what became of them
        return {path: used for path, used in params["values"].items() if path in fact.values}
    if params["of"] in _OF_ITSELF:
        return {params["name"]: _OF_ITSELF[params["of"]]}
    is_evaluation = fact.key.training is False
    wanted = dict(params.get("evaluation" if is_evaluation else "values", {}))
    if CAUSAL not in fact.values:  # with a mask, or for a single position
        wanted.pop(CAUSAL, None)
    return wanted


def negative(params: Mapping[str, Any], fact: Fact, wanted: Mapping[str, Any]) -> Example:
    """The counterexample. wanted: the values that differ from what was found."""
    found = {name: fact.values[name] for name in wanted if fact.values.get(name) is not None}
    expected, observed = said(wanted), said(found) or _lacking(wanted)
    subject, symptom, event = fact.subject, Symptom.WRONG_VALUE, fact.event
    first = next(iter(wanted))
    if params["of"] in (MODES, EVALUATED):
        modes = ("in evaluation mode", "in training mode")
        expected, observed = modes[wanted[first]], modes[not wanted[first]]
        api = Families.TRAIN if params["of"] == MODES else Families.EVAL
        subject = Subject(module=first, api=api)
        symptom = Symptom.EVAL_MODE if wanted[first] else Symptom.TRAINING_MODE
    elif params["of"] == ARGUMENTS and fact.key.name in ATTENTIONS and _is_of_mask(wanted, found):
        symptom = Symptom.UNMASKED
    elif params["of"] == ARGUMENTS and all(_is_tuned(fact, name, wanted[name]) for name in wanted):
        symptom = Symptom.SETTING
    elif params["of"] == BETWEEN:
        expected = f"{subject.variable} as {first} left it when {first} steps again"
        observed, symptom = "it is another one", Symptom.OVERWRITTEN
    elif params["of"] == BATCH:
        lacking = [name for name in wanted if name not in fact.values]
        expected = f"{first}: {wanted[first]}"
        observed = f"{first}: {fact.values.get(first)}"
        if lacking:
            are = "is" if len(lacking) == 1 else "are"
            expected = f"batches of {fact.key.name} with {joined(lacking)}"
            observed = f"{joined(lacking)} {are} missing from batches of {fact.key.name}"
    elif params["of"] == USED:
        subject = Subject(variable=f"{fact.key.name} {first}")
        expected, observed = "given to a model or a loss", "fetched, and given to neither"
    elif params["of"] == EQUAL:
        expected, observed = "the same numbers", f"{', '.join(wanted)} differ"
    elif params["of"] == KEPT:
        expected, observed = "the values that they began with", f"{', '.join(wanted)} changed"
    elif params["of"] == SAMPLES:
        expected = "as many rows as in the first steps"
        observed = f"{fact.values[first]:g} times as many rows as in the first steps of this run"
    return Example(
        holds=False,
        context=ALWAYS,
        step=event.step,
        rank=event.rank,
        stage=event.stage,
        subject=subject,
        expected=expected,
        observed=observed,
        evidence=(event,),
        symptom=symptom,
        topic=_topic(params["of"], wanted, found),
    )


def _topic(kind: str, wanted: Mapping[str, Any], found: Mapping[str, Any]) -> Topic | None:
    """What a counterexample is about, by the names in it."""
    if kind == SAMPLES:
        return Topic.ROWS
    if kind == BATCH:
        lacking = [name for name in wanted if name not in found]
        return topic_of(lacking or [next(iter(wanted))])
    if kind in (ARGUMENTS, EQUAL, HYPER, KEPT):
        return topic_of((*wanted, *wanted.get(TENSORS, ()), *found.get(TENSORS, ())))
    return None


def _is_tuned(fact: Fact, name: str, wanted: Any) -> bool:
    """Whether a number is one that users choose, and the one that was found does the same."""
    found = fact.values.get(name)
    if not is_number(wanted) or not is_number(found) or wanted * found <= 0:
        return False  # switched off, or on
    is_choice = name in _TUNED or (name == "p" and "dropout" in fact.key.name)
    return is_choice and (name == "eps" or 1 / _OFF < found / wanted < _OFF)


def _is_of_mask(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether attention is given no mask, or none of the future."""
    return bool(wanted.get(CAUSAL)) or is_masked(wanted) > is_masked(found)


def _lacking(wanted: Mapping[str, Any]) -> str:
    names = [name for name in wanted if name != TENSORS]
    return f"no {', '.join([*names, *wanted.get(TENSORS, ())])}"


def word(kind: str, name: str, *mode: bool | None) -> str:
    """Under which it is known whether there was such a fact."""
    return " ".join(("constant", kind, name, *map(str, mode)))


def word_of(params: Mapping[str, Any]) -> str:
    """The word of what a claim speaks of."""
    return word(params["of"], name_of(params))


def name_of(params: Mapping[str, Any]) -> str:
    """As facts are called: of an optimizer also its class."""
    return " ".join(params[key] for key in ("name", "class") if key in params)


def alike(
    claim: Mapping[str, Any], other: Mapping[str, Any], words: Collection[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two claims without what a run with these words could not tell."""
    mine, its = dict(claim), dict(other)
    if its["of"] == MODES:
        mine.pop("classes", None)
        its.pop("classes", None)
    elif its["of"] == ARGUMENTS:
        for key, modes in (("values", (None, True)), ("evaluation", (False,))):
            if not any(word(ARGUMENTS, its["name"], mode) in words for mode in modes):
                mine.pop(key, None)
                its.pop(key, None)
    return mine, its
