"""The relation *restored*: what is saved, and what is loaded before training continues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    OfProgram,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.phrasing import in_program
from traincheck.relations.restored.checkpoints import (
    ALSO,
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
    Checkpoints,
    Key,
    missing,
)
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.observations.models import EvalWeights
from traincheck.schema.torch_api import Families
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


_SAID = (ALSO, BACK, COPIES, COUNTS, EVALUATED, FILE, LEFT, LOADS, PART, TRAINED)
_ONLY_IF_SO = (ALSO, BACK, COPIES, COUNTS, EVALUATED, LEFT, PART, TRAINED)
_SAVED = frozenset({Families.SCALER_STEP, Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP})


class Restored(RelationBase):
    """State that is saved, and loaded before training continues.

    Claims:
        - Loading a model restores n values.
        - If a model is loaded and training continues, an optimizer or a learning-rate scheduler is
          loaded too.
        - A file holds these parts, each with all the parameters of its model or optimizer.
        - A state that is loaded after updates differs from the initial weights.
        - The epoch or step number in a file never decreases.
        - After updates a model is not evaluated with its initial weights, and evaluation does not
          change its weights.
        - Weights that are swapped in between two updates, as for an evaluation, are swapped back.
        - In any program, a load copies values; it does not assign the model's own tensors to it.

    Example:
        ``In train.py, whenever Net is loaded and training continues, the state of an optimizer is
        loaded too.`` It breaks in the first step after a resumption that forgets it.

    Evidence:
        - A load or save gives two examples for each value, at most 64: its name and its shape match
          the model.
        - Each number that is saved again is one example, and two if it rose as much as the time
          before.
        - A resumption is decided at the first update that follows. A load for a last evaluation
          proves nothing about optimizers.
        - Numbers in file names are ignored. A file may hold more parts, or the same parts under
          other names.
        - A part can be missing only if it exists: an optimizer or scheduler that steps, a scaler
          that is enabled, the models that are trained, and copies of them.
        - The size of a part is the size of any optimizer, or model, of the same run. Buffers may be
          left out, except those of batch norms.
        - A model is updated when an optimizer that holds it steps; if none does, when any steps.

    Chance:
        A coin for each example.

    Not claimed:
        - That loaded values are the saved values.
        - Which parts another program saves or restores.
        - The size of a part that is saved of a model: an encoder, or adapters.
        - A scheduler that is not from torch.
    """

    name = "restored"

    def proposer(self) -> RestoredProposer:
        return RestoredProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> RestoredDecider:
        return RestoredDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        """Not `exact`: new parameters have their exact fingerprints in every view."""
        what, kinds = claim.params["what"], frozenset({"checkpoint", "mark"})
        step, new = frozenset({Families.OPTIMIZER_STEP}), frozenset({"parameter@new"})
        if what in (EVALUATED, LEFT):
            kinds = frozenset({"mark", "optimizer", "step"})
            return Needs(calls=step, kinds=kinds, states=new | {EvalWeights.need})
        if what == FILE:
            return Needs(calls=step | _SAVED, kinds=kinds | {"optimizer"})
        if what == PART:
            return Needs(kinds=kinds | {"optimizer"}, states=new | {"buffer@new"})
        if what == TRAINED:
            return Needs(calls=step, kinds=kinds | {"optimizer"}, states=new)
        if what == COUNTS:
            return Needs(calls=step, kinds=kinds)
        is_of_steps = what in (ALSO, BACK)
        calls = step | {Families.SCHEDULER_CREATED} if is_of_steps else frozenset()
        return Needs(calls=calls, kinds=kinds)

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, text_of(claim.params))

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run without such a load or save proves nothing."""
        params = claim.params
        program = {"program": params["program"]} if "program" in params else {}
        return {**program, "api": _word((params["what"], params["of"]))}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        return WORDS.get(claim.params["what"], {})


class RestoredProposer(ProposerBase):
    """Proposes facts that never varied."""

    observes = asked("call", "checkpoint", "mark", "optimizer", "step", "*@new")

    def __init__(self) -> None:
        self._checkpoints = Checkpoints()
        self._values: dict[Key, Any] = {}
        self._varying: set[Key] = set()

    def observe(self, event: Event) -> None:
        for fact in self._checkpoints.observe(event):
            if self._values.setdefault(fact.key, fact.value) != fact.value:
                self._varying.add(fact.key)

    def hypotheses(self) -> Iterator[Hypothesis]:
        for key, value in sorted(self._values.items()):
            what, of = key
            if key in self._varying or (what in _ONLY_IF_SO and not value):
                continue
            params = {"what": what, "of": of, "value": value}
            if what != COPIES and self._program.name is not None:
                params["program"] = self._program.name
            if what == COPIES or "program" in params:
                yield Hypothesis(relation="restored", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for loads, saves and evaluations."""
        return map(_word, self._values)


class RestoredDecider(OfProgram, DeciderBase):
    """Decides at each load and save, and at the first update after loads.

    At the end of a run nothing: no update follows the last load.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: dict[Key, list[tuple[int, Mapping[str, Any]]]] = {}
        for index, claim in enumerate(claims):
            params = claim.params
            if params.get("what") not in _SAID or "of" not in params or "value" not in params:
                raise ValueError(f"nothing is known of {dict(params)}")
            key = (params["what"], params["of"])
            self._claims.setdefault(key, []).append((index, params))
        self._checkpoints = Checkpoints()

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        return [found for fact in self._checkpoints.observe(event) for found in self._decide(fact)]

    def _decide(self, fact: CheckpointFact) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims.get(fact.key, ()):
            if not self._program.fits(params):
                continue
            if _holds(params, fact):
                yield from [(index, SATISFIED)] * fact.weight
            else:
                yield index, negative(params, fact)


def _holds(params: Mapping[str, Any], fact: CheckpointFact) -> bool:
    what, value = params["what"], params["value"]
    if what == FILE:
        return not missing(parts_of(params), fact)
    if what == LOADS:
        return bool(fact.value >= value)  # the model may have more parts now
    if what == PART:
        return bool(fact.value)  # older claims hold its size
    return bool(fact.value == value)


def _word(key: Key) -> str:
    return f"restored {' '.join(key)}"
