"""The relation *distinct*: batches and random draws that do not repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.programs import SEEN, RunProgram
from traincheck.relations.base import SATISFIED, ProposerBase, RelationBase, counterexample
from traincheck.relations.distinct.messages import CAUSES, TEXTS
from traincheck.relations.distinct.repeats import (
    BATCHES,
    EPOCH,
    EPOCHS,
    EVER,
    RANKS,
    RESUMED,
    STATES,
    WORKERS,
    Comparison,
    Key,
    RepeatTracker,
)
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import BATCH_CONTENT, Hypothesis, Needs, sampled
from traincheck.schema.events import Event
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom
from traincheck.schema.torch_api import Families


class Distinct(RelationBase):
    """Batches and random draws that do not repeat.

    Claims:
        - The batches of a training loader differ from each other within an epoch, from one epoch to
          the next, or between ranks.
        - Batches are not in the order of the dataset, and their rows are not all one sample.
        - Ranks divide the samples of an epoch among them.
        - An epoch that is resumed repeats none of the samples that were used before.
        - The generators of loader workers begin in different states, in each worker and epoch.
        - A generator is not in the state that it had after an earlier step.

    Example:
        ``In train.py, the batches of loader0 differ from those of the epoch before.`` It breaks
        when ``set_epoch`` is not called, with the first batch of the second epoch.

    Evidence:
        One example for each batch, worker or step that can be compared, by the exact fingerprints
        of all tensors of a batch; within an epoch also by its indices. Batches of fewer than four
        samples are not compared, nor is the order of fewer than eight. Of each batch of a resumed
        epoch, at most eight samples count. A resumption counts only if as many batches are skipped
        as were done. Ranks and resumptions are compared by indices. A step that draws nothing
        repeats nothing.

    Chance:
        A coin for each example.

    Not claimed:
        - Anything of another program: drawing with replacement, or the same batch on each rank, may
          be right there.
        - Anything of loaders for evaluation.
    """

    name = "distinct"
    scope = "run"

    def proposer(self) -> DistinctProposer:
        return DistinctProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> DistinctDecider:
        return DistinctDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        of = claim.params["of"]
        kinds = frozenset({"mark", "step", "rng" if of == STATES else "batch"})
        calls = frozenset({Families.BACKWARD} if of != STATES else ())
        among = claim.params["among"]
        kinds |= {"checkpoint"} if among == RESUMED else set()
        states = SEEN
        if of == BATCHES and among == EPOCH:  # other views have indices, or content
            states |= sampled(BATCH_CONTENT)
        elif of == BATCHES and among in (EPOCHS, RANKS):  # these are compared one by one
            states |= {BATCH_CONTENT}
        return Needs(kinds=kinds, calls=calls, states=states)

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        text = TEXTS[params["of"], params["among"]]
        return in_program(params, text.format(what=params["what"]))

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """States that never repeat repeat neither in one epoch nor in another."""
        mine, its = dict(claim.params), dict(other.params)
        if mine.get("among") == EVER and its.get("among") in (WORKERS, EPOCHS):
            its["among"] = EVER
        return other.relation == self.name and mine == its

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which nothing could repeat proves nothing."""
        params = claim.params
        key = params["of"], params["what"], params["among"]
        return {"program": params["program"], "api": _word(key)}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        cause, fix = CAUSES[claim.params["of"], claim.params["among"]]
        loader = str(claim.params["what"]).partition(" ")[0]
        return CheckInfo(
            check_id=check_id,
            kind="invariant",
            code=self.name,
            severity="error",
            title=text,
            likely_cause=cause.format(loader=loader),
            fix=fix,
        )


class DistinctProposer(ProposerBase):
    """Proposes what never repeated."""

    def __init__(self) -> None:
        self._program = RunProgram()
        self._repeats = RepeatTracker()
        self._found: dict[Key, bool] = defaultdict(lambda: True)

    def observe(self, event: Event) -> None:
        self._program.observe(event)
        for one in self._repeats.observe(event):
            self._found[one.key] &= one.holds

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._program.name
        for (of, what, among), holds in sorted(self._found.items()):
            if holds and program is not None:
                params = {"program": program, "of": of, "what": what, "among": among}
                yield Hypothesis(relation="distinct", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for everything that could repeat."""
        return map(_word, self._found)


def _word(key: Key) -> str:
    return f"distinct {' '.join(key)}"


class DistinctDecider:
    """Decides with each batch, worker or step."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: dict[Key, list[int]] = defaultdict(list)
        for index, claim in enumerate(claims):
            params = claim.params
            if (params.get("of"), params.get("among")) not in TEXTS or "what" not in params:
                raise ValueError(f"nothing is known of {dict(params)}")
            key = (params["of"], params["what"], params["among"])
            self._claims[key].append(index)
        self._params = [claim.params for claim in claims]
        self._program = RunProgram(self._params)
        self._repeats = RepeatTracker()

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        self._program.observe(event)
        return [found for one in self._repeats.observe(event) for found in self._decide(one)]

    def finish(self) -> Sequence[tuple[int, Example]]:
        """Nothing: workers whose batches never came did nothing."""
        return ()

    def _decide(self, one: Comparison) -> Iterator[tuple[int, Example]]:
        for index in self._claims.get(one.key, ()):
            if self._program.fits(self._params[index]):
                yield from (
                    [(index, SATISFIED)] * one.weight if one.holds else [(index, _negative(one))]
                )


def _negative(one: Comparison) -> Example:
    return counterexample(
        one.event,
        Subject(variable=one.name),
        f"{one.name} does not repeat",
        one.how,
        Symptom.REPEATED_DATA,
    ).replace(step=one.step, rank=one.rank)  # a worker is compared after its first batch
