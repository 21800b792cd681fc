"""The relation *restored*: what is saved, and what is loaded back before training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.relations.base import ProposerBase, RelationBase
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
    TRAINED,
    Checkpoints,
    Fact,
    Key,
    missing,
)
from traincheck.relations.restored.messages import WORDS, negative, parts_of, text_of
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example
from traincheck.schema.observations.eval_weights import EvalWeights
from traincheck.schema.torch_api import Families

_HOLDS = Example(holds=True, context={})
_SAID = (ALSO, BACK, COPIES, COUNTS, EVALUATED, FILE, LEFT, LOADS, PART, TRAINED)
_ONLY_IF_SO = (ALSO, BACK, COPIES, COUNTS, EVALUATED, LEFT, PART, TRAINED)
_SAVED = frozenset({Families.SCALER_STEP, Families.SCHEDULER_CREATED, Families.SCHEDULER_STEP})


class Restored(RelationBase):
    """What is saved, and what is loaded back before training goes on.

    What it says:
        So many values come back when a model is loaded. Whenever a model is loaded and training
        goes on, so is an optimizer, or a learning-rate scheduler. A file holds these parts, each of
        all the parameters that its model or optimizer has. What is loaded after updates is not what
        the model began with. The number of the epoch, or step, that a file holds is never lower
        than the time before. After updates a model is not evaluated with the weights that it began
        with, and evaluation leaves its weights as they are. What is loaded between two updates, as
        for an evaluation, is loaded back. And of any program: what is loaded are copies, not the
        model's own tensors.

    Example:
        ``In train.py, whenever Net is loaded and training goes on, the state of an optimizer is
        loaded too.`` It breaks in the first step after a resumption that forgets it.

    Evidence:
        A load or save gives two examples for each value, 64 at most: its name and its shape are
        those of the model. Each number that is saved again is one, and two if it has risen by as
        much as the time before. What belongs to a resumption is decided at the first update that
        follows; so what is loaded for a last evaluation says nothing of optimizers. Numbers in
        names of files make no difference. A file may hold more, and the same under other names. A
        part is missed only of what there is: an optimizer or scheduler that steps, a scaler that is
        enabled, as many models as are trained, and copies of them. The size of a part is that of
        any optimizer, or model, of the same run; buffers may be left out but those of batch norms.
        A model is updated when an optimizer that holds it steps, or that of any other if none does.

    Chance:
        A coin for each example.

    Not said:
        That values are those that were saved. Which parts another program saves or restores. How
        large a part is that the reference saves of a model: an encoder, or adapters. That there is
        a scheduler which is not one of torch's.
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
        """What was never loaded or saved says nothing."""
        params = claim.params
        program = {"program": params["program"]} if "program" in params else {}
        return {**program, "api": _word((params["what"], params["of"]))}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        found = super().info(claim, check_id, text)
        return replace(found, **WORDS.get(claim.params["what"], {}))


class RestoredProposer(ProposerBase):
    """Proposes facts that never were otherwise."""

    def __init__(self) -> None:
        self._program = ProgramName()
        self._checkpoints = Checkpoints()
        self._values: dict[Key, Any] = {}
        self._varying: set[Key] = set()

    def observe(self, event: Event) -> None:
        self._program.observe(event)
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
        """What was loaded or saved."""
        return map(_word, self._values)


class RestoredDecider:
    """Decides at each load and save, and at the first update after loads."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: dict[Key, list[tuple[int, Mapping[str, Any]]]] = {}
        for index, claim in enumerate(claims):
            params = claim.params
            if params.get("what") not in _SAID or "of" not in params or "value" not in params:
                raise ValueError(f"nothing is known of {dict(params)}")
            key = (params["what"], params["of"])
            self._claims.setdefault(key, []).append((index, params))
        self._program = ProgramName()
        self._checkpoints = Checkpoints()

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        self._program.observe(event)
        return [found for fact in self._checkpoints.observe(event) for found in self._decide(fact)]

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: no update follows what was loaded last."""
        return ()

    def _decide(self, fact: Fact) -> Iterator[tuple[int, Example]]:
        for index, params in self._claims.get(fact.key, ()):
            if not self._program.fits(params):
                continue
            if _holds(params, fact):
                yield from [(index, _HOLDS)] * fact.weight
            else:
                yield index, negative(params, fact)


def _holds(params: Mapping[str, Any], fact: Fact) -> bool:
    what, value = params["what"], params["value"]
    if what == FILE:
        return not missing(parts_of(params), fact)
    if what == LOADS:
        return bool(fact.value >= value)  # a model may have a part more than it had
    if what == PART:
        return bool(fact.value)  # older claims tell the size that it had
    return bool(fact.value == value)


def _word(key: Key) -> str:
    return f"restored {' '.join(key)}"
