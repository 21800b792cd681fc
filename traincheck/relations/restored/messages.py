"""Sentences of *restored*: its claims, and what broke them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.relations.base import counterexample
from traincheck.relations.restored.fact import (
    BACK,
    COPIES,
    COUNTS,
    EVALUATED,
    FILE,
    LEFT,
    LOADS,
    PART,
    SCHEDULER,
    TRAINED,
    CheckpointFact,
    missing,
)
from traincheck.schema.events import CheckpointEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.words import counted, joined, listed

# Where the texts of the symptom, a state that is not loaded on resume, do not fit.
WORDS: Mapping[str, Mapping[str, str]] = {
    BACK: {
        "headline": "{subject} keeps training with weights that were swapped in",
        "likely_cause": "Weights that are swapped in for an evaluation are not swapped back.",
        "fix": "Save the training weights before the evaluation, and load them after it.",
    },
    COPIES: {
        "headline": "{subject} is loaded with its own tensors: nothing is restored",
        "likely_cause": "The state may have been kept without a copy, so that it followed "
        "every step.",
        "fix": "Keep copy.deepcopy(model.state_dict()), or save it to a file.",
    },
    COUNTS: {
        "headline": "{subject} restarts from an earlier number",
        "likely_cause": "The saved number may not be loaded, or not be used.",
        "fix": "Set the number from the file before training continues.",
    },
    EVALUATED: {
        "headline": "{subject} is evaluated with its initial weights",
        "likely_cause": "The evaluated model may not be the trained one, or it was reset.",
        "fix": "Evaluate the model that the optimizer updates.",
    },
    FILE: {
        "headline": "{subject} is saved without some parts: {observed}",
        "likely_cause": "The program saves fewer parts than the reference.",
        "fix": "Save everything that a resumption loads: model, optimizer, scheduler, counters.",
    },
    LEFT: {
        "headline": "Evaluation changes {subject}",
        "likely_cause": "A forward in evaluation mode writes to a parameter.",
        "fix": "Write to parameters in training mode only, or to a copy.",
    },
    LOADS: {
        "headline": "Loading {subject} restores another number of values",
        "likely_cause": (
            "The names in the state may not match the model (strict=False hides that), or it is "
            "the state of another model."
        ),
        "fix": "Check the missing and unexpected keys that load_state_dict returns.",
    },
    PART: {
        "headline": "{subject} is saved with another size: {observed}",
        "likely_cause": "The part may be incomplete, or come from another object.",
        "fix": "Save the state_dict() of the whole model, or optimizer, as it is.",
    },
    TRAINED: {
        "headline": "{subject} is loaded with its initial weights",
        "likely_cause": "The state may be from before the training: a wrong file or an old copy.",
        "fix": "Load a state that was saved after the updates.",
    },
}


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    what, of, value = params["what"], params["of"], params["value"]
    if what == LOADS:
        return f"Every load of {of} restores {counted(value, 'value')}"
    if what == COPIES:
        return "Every load of a model copies values, never the model's own tensors"
    if what == BACK:
        return f"Between two updates, weights that are swapped into {of} are swapped back"
    if what == TRAINED:
        return f"After updates, {of} is not loaded with its initial weights"
    if what == FILE:
        return f"Every file {of} holds {', '.join(value)}"
    if what == EVALUATED:
        return f"After updates, {of} is not evaluated with its initial weights"
    if what == LEFT:
        return f"No forward in evaluation changes the weights of {of}"
    if what == COUNTS:
        return f"The {of} never decreases from one save to the next"
    if what == PART:
        return f"The part {of} has all the parameters of its model or optimizer"
    target, _, kind = of.rpartition(" ")
    article = "a" if kind == SCHEDULER else "an"
    return (
        f"Whenever {target} is loaded and training continues, the state of {article} {kind} is "
        "loaded too"
    )


def parts_of(params: Mapping[str, Any]) -> Mapping[str, str]:
    """The kinds of the parts of a file, by key; older claims have the keys alone."""
    value = params["value"]
    return value if isinstance(value, Mapping) else dict(zip(value, value))


def _observed(params: Mapping[str, Any], fact: CheckpointFact) -> str:
    what, value = params["what"], fact.value
    if what == LOADS:
        return f"{counted(value, 'value')} restored{_lacking(fact)}"
    if what == COPIES:
        return "the model's own tensors are loaded, so nothing changes"
    if what == BACK:
        return "training continues with the weights that were swapped in"
    if what == TRAINED:
        return "its parameters return to their initial values"
    if what == FILE:
        names = missing(parts_of(params), fact)
        return f"{listed(names)} {'is' if len(names) == 1 else 'are'} missing"
    if what == EVALUATED:
        return "it is evaluated with exactly these, though it was updated"
    if what == LEFT:
        return f"each forward in evaluation changes {fact.name}"
    if what == COUNTS:
        return "it is lower: training does not continue from the saved number"
    if what == PART:
        ((kind, count),) = fact.counts.items()
        return f"it has {counted(count, 'value')}, and no {kind} has that many"
    return f"training continues, and no state is loaded into {fact.name}"


def _lacking(fact: CheckpointFact) -> str:
    event = fact.event
    if not isinstance(event, CheckpointEvent) or not event.missing:
        return ""
    given = f", and {joined(event.unexpected, 2)} given" if event.unexpected else ""
    return f", with {joined(event.missing, 2)} missing{given}"


def negative(params: Mapping[str, Any], fact: CheckpointFact) -> Example:
    """The counterexample of a fact."""
    return counterexample(
        fact.event,
        Subject(
            module=None if params["what"] == LEFT else fact.name,
            variable=fact.name if params["what"] == LEFT else None,
        ),
        text_of(params),
        _observed(params, fact),
        Symptom.NOT_RESTORED,
        evidence=fact.evidence,
        stage=fact.event.stage,
    )
