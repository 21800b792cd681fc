"""What is said of saves and loads: claims, counterexamples, and what has most likely gone wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.relations.restored.checkpoints import (
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
    Fact,
    missing,
)
from traincheck.schema.events import CheckpointEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.words import counted, joined, listed

# Where what the symptom says, that a state is not loaded on resume, is not what happened.
WORDS: Mapping[str, Mapping[str, str]] = {
    BACK: {
        "headline": "{subject} goes on with weights that were swapped in",
        "likely_cause": "Weights that are swapped in for an evaluation are not swapped back.",
        "fix": "Keep the weights of training before the evaluation, and load them behind it.",
    },
    COPIES: {
        "headline": "{subject} is given back its own tensors: nothing is restored",
        "likely_cause": "The state was kept without a copy, so it followed every step.",
        "fix": "Keep copy.deepcopy(model.state_dict()), or save it to a file.",
    },
    COUNTS: {
        "headline": "{subject} counts from an earlier number again",
        "likely_cause": "The number that was saved is not loaded, or loaded and not used.",
        "fix": "Set the number from the file before training goes on.",
    },
    EVALUATED: {
        "headline": "{subject} is evaluated with the weights that it began with",
        "likely_cause": "Another copy than the one that is trained is evaluated, or reset before.",
        "fix": "Evaluate the model that the optimizer updates.",
    },
    FILE: {
        "headline": "{subject} is saved without parts: {observed}",
        "likely_cause": "What is put into the file is less than the reference puts there.",
        "fix": "Save what is to be loaded: model, optimizer, scheduler, counters.",
    },
    LEFT: {
        "headline": "Evaluation changes {subject}",
        "likely_cause": "A forward in evaluation mode writes to a parameter.",
        "fix": "Write to parameters in training mode only, or to a copy.",
    },
    LOADS: {
        "headline": "Another number of values comes back when {subject} is loaded",
        "likely_cause": (
            "Names in the state are not those of the model, which strict=False hides, or it is "
            "the state of another model."
        ),
        "fix": "Look at the missing and unexpected keys that load_state_dict returns.",
    },
    PART: {
        "headline": "{subject} is saved in another size: {observed}",
        "likely_cause": "The part is cut, or taken of another object than the one that is used.",
        "fix": "Save the state_dict() of the whole model, or optimizer, as it is.",
    },
    TRAINED: {
        "headline": "{subject} is given the weights that it began with",
        "likely_cause": "The state is one from before the training: a wrong file or an old copy.",
        "fix": "Load what was kept after the updates.",
    },
}


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    what, of, value = params["what"], params["of"], params["value"]
    if what == LOADS:
        return f"When {of} is loaded, {value} values come back"
    if what == COPIES:
        return "What is loaded into a model are copies, not its own tensors"
    if what == BACK:
        return f"Between two updates {of} is loaded and loaded back"
    if what == TRAINED:
        return f"What is loaded into {of} after updates is not what it began with"
    if what == FILE:
        return f"Every file {of} holds {', '.join(value)}"
    if what == EVALUATED:
        return f"After updates, {of} is not evaluated with the weights that it began with"
    if what == LEFT:
        return f"No forward in evaluation changes the weights of {of}"
    if what == COUNTS:
        return f"The {of} is never lower than when it was saved before"
    if what == PART:
        return f"The part {of} is of all the parameters that its model or optimizer has"
    target, _, kind = of.rpartition(" ")
    article = "a" if kind == SCHEDULER else "an"
    return (
        f"Whenever {target} is loaded and training goes on, the state of {article} {kind} is "
        "loaded too"
    )


def parts_of(params: Mapping[str, Any]) -> Mapping[str, str]:
    """The kinds of the parts of a file, by key; older claims tell the keys alone."""
    value = params["value"]
    return value if isinstance(value, Mapping) else dict(zip(value, value))


def _observed(params: Mapping[str, Any], fact: Fact) -> str:
    what, value = params["what"], fact.value
    if what == LOADS:
        return f"{counted(value, 'value')} {'comes' if value == 1 else 'come'} back{_lacking(fact)}"
    if what == COPIES:
        return "its own tensors are loaded, so that nothing changes"
    if what == BACK:
        return "training goes on with the weights that were loaded in between"
    if what == TRAINED:
        return "its parameters become what they were before the first update"
    if what == FILE:
        names = missing(parts_of(params), fact)
        return f"{listed(names)} {'is' if len(names) == 1 else 'are'} missing"
    if what == EVALUATED:
        return "again it is evaluated with exactly these, though it was updated"
    if what == LEFT:
        return f"each forward in evaluation changes {fact.name}"
    if what == COUNTS:
        return "it is lower: training does not go on from the number that was saved"
    if what == PART:
        ((kind, count),) = fact.counts.items()
        return f"it is of {counted(count, 'value')}, and no {kind} has so many"
    return f"training goes on, and no state is loaded into {fact.name}"


def _lacking(fact: Fact) -> str:
    event = fact.event
    if not isinstance(event, CheckpointEvent) or not event.missing:
        return ""
    given = f", and {joined(event.unexpected, 2)} given" if event.unexpected else ""
    return f", with {joined(event.missing, 2)} missing{given}"


def negative(params: Mapping[str, Any], fact: Fact) -> Example:
    """An example that contradicts the claim, with its words."""
    return Example(
        holds=False,
        context={},
        step=fact.event.step,
        rank=fact.event.rank,
        stage=fact.event.stage,
        subject=Subject(
            module=None if params["what"] == LEFT else fact.name,
            variable=fact.name if params["what"] == LEFT else None,
        ),
        expected=text_of(params),
        observed=_observed(params, fact),
        evidence=fact.evidence,
        symptom=Symptom.NOT_RESTORED,
    )
