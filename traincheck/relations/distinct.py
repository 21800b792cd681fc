"""The relation *distinct*: batches and random draws that do not come twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.relations._base import UsualRelation
from traincheck.relations._draws import (
    BATCHES,
    DATASET,
    DRAWS,
    EPOCH,
    EPOCHS,
    EVER,
    RANKS,
    RESUMED,
    STATES,
    STEPS,
    WORKERS,
    Comparison,
    Key,
    Repeats,
)
from traincheck.relations._names import in_program
from traincheck.relations._run_program import SEEN, RunProgram
from traincheck.schema.claims import BATCH_CONTENT, Hypothesis, Needs
from traincheck.schema.events import Event, Families
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom

_HOLDS = Example(holds=True, context={})
_TEXTS = {
    (BATCHES, EPOCH): "No batch of {what} comes twice in an epoch",
    (BATCHES, EPOCHS): "The batches of {what} are others than in the epoch before",
    (BATCHES, RANKS): "No batch of {what} goes to two ranks",
    (BATCHES, DATASET): "The batches of {what} are not drawn in the order of the dataset",
    (BATCHES, RESUMED): "No sample of an epoch of {what} comes again when the epoch is resumed",
    (DRAWS, WORKERS): "No two workers of an epoch begin with {what} in one state",
    (DRAWS, EPOCHS): "No worker begins with {what} in a state of an earlier epoch",
    (DRAWS, EVER): "No two workers, of whatever epoch, begin with {what} in one state",
    (STATES, STEPS): "The random generator of {what} is never in a state of an earlier step",
}
# Likely cause, and what to do
_CAUSES = {
    (BATCHES, EPOCH): (
        "Every worker of {loader} yields the whole dataset, or one batch is kept and used again.",
        "Split an iterable dataset by get_worker_info(); take a new batch in every iteration.",
    ),
    (BATCHES, EPOCHS): (
        "{loader} is shuffled with the same seed in every epoch: set_epoch() of its sampler is "
        "not called, or the generator is seeded anew.",
        "Call sampler.set_epoch(epoch) before each epoch; seed once, before the first.",
    ),
    (BATCHES, RANKS): (
        "{loader} has no DistributedSampler, so that every rank draws the same samples.",
        "Give the loader a DistributedSampler, or split the data by rank.",
    ),
    (BATCHES, DATASET): (
        "{loader} does not shuffle: a shuffle=True is missing, or a sampler.",
        "Pass shuffle=True to the DataLoader, unless the dataset is in random order.",
    ),
    (BATCHES, RESUMED): (
        "The generator of the sampler is not restored, so the order of the epoch was drawn anew "
        "before its first batches were skipped.",
        "Restore the sampler's generator as it was when the epoch began, or seed it by epoch.",
    ),
    (DRAWS, WORKERS): (
        "Workers of {loader} get copies of one generator, or are all seeded alike.",
        "Seed each worker by torch.initial_seed(), or make the generator in worker_init_fn.",
    ),
    (DRAWS, EPOCHS): (
        "Workers of {loader} are seeded with numbers that do not depend on the epoch.",
        "Seed each worker by torch.initial_seed(), which differs from epoch to epoch.",
    ),
    (DRAWS, EVER): (
        "Workers of {loader} get copies of one generator, or are seeded with numbers that depend "
        "neither on the worker nor on the epoch.",
        "Seed each worker by torch.initial_seed(), which differs by worker and epoch.",
    ),
    (STATES, STEPS): (
        "The generator is seeded again within training, as by manual_seed() in the loop.",
        "Seed once, before training.",
    ),
}


class Distinct(UsualRelation):
    """Batches and random draws that do not come twice.

    What it says:
        The batches of a loader that feeds training are pairwise different within an epoch, from one
        epoch to the next, or on different ranks, or are not in the order of the dataset. An epoch
        that is resumed in the middle gives none of the samples that it was trained on before. The
        generators that workers draw from begin in states of their own, in each worker and epoch. A
        generator is not in the state that it had after an earlier step.

    Example:
        ``In train.py, the batches of loader0 are others than in the epoch before.`` It breaks when
        ``set_epoch`` is not called, with the first batch of the second epoch.

    Evidence:
        One example for each batch, worker or step that has one to be compared with, by the exact
        fingerprints of all tensors of a batch. Batches of fewer than four samples are not compared,
        nor is the order of fewer than eight. Of each batch of a resumed epoch, eight samples count
        at most, by their indices; and a resumption only if as many batches are left out as were
        done. A step in which nothing is drawn is none that repeats.

    Chance:
        A coin for each example.

    Not said:
        Anything of another program, where drawing with replacement, or giving each rank the same
        batch, may be right; or of loaders for evaluation.
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
        if among == RESUMED:
            kinds |= {"checkpoint"}
        is_content = of == BATCHES and among not in (DATASET, RESUMED)
        states = SEEN | ({BATCH_CONTENT} if is_content else set())
        return Needs(kinds=kinds, calls=calls, states=states)

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        said = _TEXTS[params["of"], params["among"]]
        return in_program(params, said.format(what=params["what"]))

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """What never comes again comes again neither in an epoch nor in another."""
        mine, its = dict(claim.params), dict(other.params)
        if mine.get("among") == EVER and its.get("among") in (WORKERS, EPOCHS):
            its["among"] = EVER
        return other.relation == self.name and mine == its

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run in which nothing could have come again says nothing."""
        params = claim.params
        key = params["of"], params["what"], params["among"]
        return {"program": params["program"], "api": _word(key)}

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        cause, fix = _CAUSES[claim.params["of"], claim.params["among"]]
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


class DistinctProposer:
    """Proposes what never came again."""

    def __init__(self) -> None:
        self._program = RunProgram()
        self._repeats = Repeats()
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

    def words(self) -> Iterator[str]:
        """What could have come again."""
        return map(_word, self._found)


def _word(key: Key) -> str:
    return f"distinct {' '.join(key)}"


class DistinctDecider:
    """Decides with each batch, worker or step."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims: dict[Key, list[int]] = defaultdict(list)
        for index, claim in enumerate(claims):
            params = claim.params
            if (params.get("of"), params.get("among")) not in _TEXTS or "what" not in params:
                raise ValueError(f"nothing is known of {dict(params)}")
            key = (params["of"], params["what"], params["among"])
            self._claims[key].append(index)
        self._params = [claim.params for claim in claims]
        self._program = RunProgram()
        self._repeats = Repeats()

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
                    [(index, _HOLDS)] * one.weight if one.holds else [(index, _negative(one))]
                )


def _negative(one: Comparison) -> Example:
    return Example(
        holds=False,
        context={},
        step=one.step,
        rank=one.rank,
        subject=Subject(variable=one.name),
        expected=f"what {one.name} gives does not come twice",
        observed=one.how,
        evidence=(one.event,),
        symptom=Symptom.REPEATED_DATA,
    )
