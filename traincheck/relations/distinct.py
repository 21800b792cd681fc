"""The relation *distinct*: batches and random draws that do not repeat."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.readings.programs import SEEN, RunProgram
from traincheck.readings.provider import RunStates
from traincheck.readings.resumptions import Resumed, Resumptions
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import BATCH_CONTENT, Hypothesis, Needs, sampled
from traincheck.schema.events import BatchEvent, CallEvent, Event, RngEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.observations.data import WorkerRng
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensors_in
from traincheck.schema.words import counted

BATCHES, DRAWS, STATES = "batches", "draws", "states"
EPOCH, EPOCHS, RANKS, STEPS, DATASET = "epoch", "epochs", "ranks", "steps", "dataset"
WORKERS, EVER = "workers", "ever"
RESUMED, ROWS, PARTS = "resumed", "rows", "parts"
_MOST_COUNTED = 8  # samples of a batch that count as examples
_MIN_ROWS = 4  # samples: smaller batches may be equal by chance
_MIN_ORDER = 8  # samples: so many do not repeat their order by chance
_MOST_KEPT = 4096
_MOST_INDICES = 1 << 20  # indices of an epoch that are remembered
_MOST_COMPARED = 32  # workers that one is compared with

Key = tuple[str, str, str]  # kind, owner, scope


class Comparison(NamedTuple):
    """One batch, worker or state, compared with those before it.

    Attributes:
        how: what it repeats, as a clause.
        weight: how many examples it gives.
    """

    key: Key
    holds: bool
    name: str
    step: int | None
    rank: int
    how: str
    event: Event
    weight: int = 1


@dataclass(slots=True)
class _Loader:
    """The batches of one loader in one process.

    Attributes:
        seen: content -> batch of this epoch.
        drawn: indices -> batch of this epoch.
        now: batch -> content, in this epoch.
        before: batch -> content, in the last epoch.
    """

    epoch: int = -1
    seen: dict[str, int] = field(default_factory=dict)
    drawn: dict[str, int] = field(default_factory=dict)
    now: dict[int, str] = field(default_factory=dict)
    before: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Generator:
    """The states of one generator at the ends of steps."""

    last: str | None = None
    is_seeded: bool = False
    seen: dict[str, int | None] = field(default_factory=dict)


class _TrainingLoaders:
    """The loaders that feed the training of one process: others may repeat batches."""

    def __init__(self) -> None:
        self.loaders: set[str] = set()
        self._recent: list[str] = []  # loaders of this step, until it has a backward
        self._held: dict[str, list[BatchEvent]] = defaultdict(list)
        self._is_first = True

    def batch(self, event: BatchEvent) -> list[BatchEvent]:
        """The batches of training that are known by now."""
        self._recent.append(event.loader)
        if event.loader in self.loaders:
            return [event]
        held = self._held[event.loader]
        held.append(event)
        del held[:-_MOST_KEPT]
        return []

    def backward(self) -> list[BatchEvent]:
        """Batches before a backward feed it; the first step may begin with an evaluation."""
        found = self._recent[-1:] if self._is_first else self._recent
        new = [name for name in dict.fromkeys(found) if name not in self.loaders]
        self._recent, self._is_first = [], False
        self.loaders.update(new)
        return [event for name in new for event in self._held.pop(name, ())]

    def turn(self) -> None:
        """A step has ended; batches after its update were for evaluation."""
        self._recent = []


class RepeatTracker:
    """Follows all processes of a run."""

    def __init__(self) -> None:
        self._training: dict[tuple[int, str], _TrainingLoaders] = defaultdict(_TrainingLoaders)
        self._loaders: dict[tuple[int, str, str], _Loader] = defaultdict(_Loader)
        self._by_rank: dict[tuple[str, int, int], dict[int, str]] = {}
        self._parts: dict[tuple[str, int], dict[int, set[int]]] = {}  # indices by rank
        self._generators: dict[tuple[int, str, str], _Generator] = defaultdict(_Generator)
        self._resumptions = Resumptions()
        self._waiting: list[tuple[Event, WorkerRng]] = []
        self._starts: dict[tuple[int, str, int], int | None] = {}  # step of an epoch's first batch
        # (rank, loader, generator) -> states that workers began with, the worker and its epoch
        self._begun: dict[tuple[int, str, str], list[tuple[str, int, int]]] = defaultdict(list)

    def observe(self, event: Event) -> Iterator[Comparison]:
        """Enter an event; the comparisons that it completes."""
        for resumed in self._resumptions.observe(event):
            yield _of_resumed(resumed)
        if isinstance(event, BatchEvent):
            for batch in self._training_of(event).batch(event):
                yield from self._batch(batch)
        elif isinstance(event, CallEvent):
            if (event.family or event.api) == Families.BACKWARD:
                for batch in self._training_of(event).backward():
                    yield from self._batch(batch)
        elif isinstance(event, RngEvent):
            yield from self._state(event)
        elif (worker := observed(event, WorkerRng)) is not None:
            if worker.loader is not None:
                self._waiting.append((event, worker))
        elif isinstance(event, StepEvent):
            self._training_of(event).turn()
            if self._waiting:
                yield from self._workers()

    def _training_of(self, event: Event) -> _TrainingLoaders:
        return self._training[event.rank, event.stream.partition("-")[0]]

    # -- batches

    def _batch(self, event: BatchEvent) -> Iterator[Comparison]:
        self._starts.setdefault((event.rank, event.loader, event.epoch), event.step)
        if len(self._starts) > _MOST_KEPT:
            del self._starts[next(iter(self._starts))]
        if event.sampler is not None:
            holds = not event.sampler.endswith(".SequentialSampler")
            how = "a SequentialSampler draws them in the order of the dataset"
            yield _of_batch(event, DATASET, how, holds)
        yield from self._on_parts(event)
        if len(event.samples) >= _MIN_ROWS and len(event.samples) == len(set(event.indices)):
            how = "all its samples are equal, at different indices"
            yield _of_batch(event, ROWS, how, len(set(event.samples)) > 1)
        digest, rows = _content(event)
        indices = ",".join(map(str, event.indices))
        if not (digest or indices) or rows < _MIN_ROWS:
            return
        pid = event.stream.partition("-")[0]
        loader = self._loaders[event.rank, pid, event.loader]
        if event.epoch != loader.epoch:
            loader.epoch, loader.before, loader.now = event.epoch, loader.now, {}
            loader.seen, loader.drawn = {}, {}
        # The same samples, whatever is made of them, or the same content
        tables = [(t, k) for t, k in ((loader.seen, digest), (loader.drawn, indices)) if k]
        if 0 < max(len(table) for table, _ in tables) < _MOST_KEPT:
            first = next((table[key] for table, key in tables if key in table), None)
            yield _of_batch(event, EPOCH, f"it repeats batch {first} of this epoch", first is None)
        for table, key in tables:
            table.setdefault(key, event.index)
        if digest is None:
            return
        if event.index < _MOST_KEPT:
            before = loader.before.get(event.index)
            loader.now[event.index] = digest
            if before is not None and rows >= _MIN_ORDER:
                how = (
                    f"epoch {event.epoch} repeats the batches of the one before, in the same order"
                )
                yield _of_batch(event, EPOCHS, how, before != digest)
        yield from self._on_ranks(event, digest)

    def _on_parts(self, event: BatchEvent) -> Iterator[Comparison]:
        """Whether ranks divide the samples of an epoch among them, by their indices."""
        known = self._parts.setdefault((event.loader, event.epoch), {})
        if len(self._parts) > _MIN_ROWS:  # epochs that no rank is in any more
            del self._parts[next(iter(self._parts))]
        mine = set(event.indices)
        others = [seen for rank, seen in known.items() if rank != event.rank]
        if others and len(mine) >= _MIN_ROWS:
            shared = len(mine & set().union(*others))
            how = f"{shared} of its samples went to another rank in this epoch"
            # To make parts equally long, fewer samples than there are ranks repeat.
            yield _of_batch(event, PARTS, how, shared <= len(others))
        seen = known.setdefault(event.rank, set())
        if len(seen) < _MOST_INDICES:
            seen |= mine

    def _on_ranks(self, event: BatchEvent, digest: str) -> Iterator[Comparison]:
        place = (event.loader, event.epoch, event.index)
        known = self._by_rank.setdefault(place, {})
        if len(self._by_rank) > _MOST_KEPT:
            del self._by_rank[next(iter(self._by_rank))]
        others = [rank for rank, found in sorted(known.items()) if found == digest]
        if known and event.rank not in known:
            who = f"rank {others[0]} gets it too" if others else ""
            yield _of_batch(event, RANKS, who, not others)
        known.setdefault(event.rank, digest)

    # -- states of generators, at the ends of steps

    def _state(self, event: RngEvent) -> Iterator[Comparison]:
        pid = event.stream.partition("-")[0]
        known = self._generators[event.rank, pid, event.source]
        if event.change == "seed":
            known.is_seeded = True
            return
        state = event.fingerprint
        if state is None or event.step is None or not event.is_step_end:
            return
        is_idle = state == known.last and not known.is_seeded  # nothing has been drawn
        known.last, known.is_seeded = state, False
        if is_idle or len(known.seen) >= _MOST_KEPT:
            return
        if known.seen:
            how = f"it is in the state of step {known.seen.get(state)} again"
            key = (STATES, event.source, STEPS)
            is_new = state not in known.seen
            yield Comparison(key, is_new, event.source, event.step, event.rank, how, event)
        known.seen.setdefault(state, event.step)

    # -- generators of DataLoader workers

    def _workers(self) -> Iterator[Comparison]:
        """Compare workers of training loaders, once their first batch has come."""
        ready = [each for each in self._waiting if _place(*each) in self._starts]
        self._waiting = [each for each in self._waiting if each not in ready][-_MOST_KEPT:]
        for mark, rng in sorted(ready, key=lambda each: (_place(*each), each[1].worker)):
            rank, loader, epoch = _place(mark, rng)
            step = self._starts.get((rank, loader, epoch))
            worker = rng.worker
            # The generators that the worker drew from, and the states they began in.
            for generator, state in [
                (name, state)
                for name, state in sorted(rng.start.items())
                if rng.after.get(name, state) != state
            ]:
                begun = self._begun[rank, loader, generator]
                for other, its_worker, its_epoch in begun[-_MOST_COMPARED:]:
                    how = (
                        f"{generator} of worker {worker} begins in the state that it had in worker "
                        f"{its_worker} in epoch {its_epoch}"
                    )
                    for among in (WORKERS if its_epoch == epoch else EPOCHS, EVER):
                        key = (DRAWS, f"{loader} {generator}", among)
                        yield Comparison(key, state != other, loader, step, rank, how, mark)
                begun.append((state, worker, epoch))
                del begun[:-_MOST_COMPARED]


def _of_resumed(one: Resumed) -> Comparison:
    samples = counted(one.again, "sample")
    how = f"{samples} of this batch were trained on before training was resumed, in the same epoch"
    weight = min(one.known, _MOST_COUNTED)
    return _of_batch(one.batch, RESUMED, how, not one.again)._replace(weight=weight)


def _of_batch(event: BatchEvent, among: str, how: str, holds: bool) -> Comparison:
    key = (BATCHES, event.loader, among)
    return Comparison(key, holds, event.loader, event.step, event.rank, how, event)


def _content(event: BatchEvent) -> tuple[str | None, int]:
    """The content of a batch, and its number of samples.

    Views that need it have digests of tensors; a full view has digests of samples.
    """
    tensors = tensors_in(dict(event.leaves))
    shapes = [summary.shape for summary in tensors.values() if summary.shape]
    rows = max((shape[0] for shape in shapes), default=len(event.samples))
    digests = [summary.fingerprint for _, summary in sorted(tensors.items())]
    if digests and None not in digests:
        return "|".join(map(str, digests)), rows
    return " ".join(event.samples) or None, rows


def _place(event: Event, worker: WorkerRng) -> tuple[int, str, int]:
    return event.rank, str(worker.loader), worker.epoch or 0


TEXTS = {
    (BATCHES, EPOCH): "No batch of {what} repeats within an epoch",
    (BATCHES, EPOCHS): "The batches of {what} differ from those of the epoch before",
    (BATCHES, RANKS): "No batch of {what} goes to two ranks",
    (BATCHES, DATASET): "The batches of {what} are not drawn in the order of the dataset",
    (BATCHES, RESUMED): "When an epoch of {what} is resumed, no sample repeats",
    (BATCHES, ROWS): "No batch of {what} has the same sample in all its rows",
    (BATCHES, PARTS): "No sample of {what} goes to two ranks in an epoch",
    (DRAWS, WORKERS): "No two workers of an epoch begin with {what} in the same state",
    (DRAWS, EPOCHS): "No worker begins with {what} in a state of an earlier epoch",
    (DRAWS, EVER): "No two workers, even of different epochs, begin with {what} in the same state",
    (STATES, STEPS): "The random generator of {what} is never in a state of an earlier step",
}
# Likely cause, and what to do
CAUSES = {
    (BATCHES, EPOCH): (
        "Every worker of {loader} yields the whole dataset, or one batch is used again.",
        "Split an iterable dataset by get_worker_info(). Fetch a new batch in every iteration.",
    ),
    (BATCHES, EPOCHS): (
        "{loader} is shuffled with the same seed in every epoch: set_epoch() of its sampler is "
        "not called, or the generator is seeded again.",
        "Call sampler.set_epoch(epoch) before each epoch; seed once, before the first.",
    ),
    (BATCHES, RANKS): (
        "{loader} may have no DistributedSampler, so that every rank draws the same samples.",
        "Give the loader a DistributedSampler, or split the data by rank.",
    ),
    (BATCHES, DATASET): (
        "{loader} does not shuffle: a shuffle=True is missing, or a sampler.",
        "Pass shuffle=True to the DataLoader, unless the dataset is in random order.",
    ),
    (BATCHES, RESUMED): (
        "The generator of the sampler may not be restored, and the order of the epoch drawn again "
        "before its first batches were skipped.",
        "Restore the sampler's generator as it was when the epoch began, or seed it by epoch.",
    ),
    (BATCHES, ROWS): (
        "The dataset of {loader} may fill one buffer and return it for every index.",
        "Return a new tensor, or a copy, from __getitem__.",
    ),
    (BATCHES, PARTS): (
        "The samplers of the ranks may shuffle with different seeds, so that their parts overlap.",
        "Give the sampler of every rank the same seed, and set_epoch the same epoch.",
    ),
    (DRAWS, WORKERS): (
        "Workers of {loader} get copies of one generator, or are all seeded alike.",
        "Seed each worker by torch.initial_seed(), or create the generator in worker_init_fn.",
    ),
    (DRAWS, EPOCHS): (
        "Workers of {loader} may be seeded with numbers that do not depend on the epoch.",
        "Seed each worker by torch.initial_seed(), which differs from epoch to epoch.",
    ),
    (DRAWS, EVER): (
        "Workers of {loader} get copies of one generator, or are seeded with numbers that depend "
        "neither on the worker nor on the epoch.",
        "Seed each worker by torch.initial_seed(), which differs by worker and epoch.",
    ),
    (STATES, STEPS): (
        "The generator may be seeded again during training, such as by manual_seed() in the loop.",
        "Seed once, before training.",
    ),
}


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

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        cause, fix = CAUSES[claim.params["of"], claim.params["among"]]
        loader = str(claim.params["what"]).partition(" ")[0]
        return {"likely_cause": cause.format(loader=loader), "fix": fix}


class DistinctProposer(ProposerBase):
    """Proposes what never repeated."""

    observes = asked("batch", "checkpoint", "mark", "rng", "step", "parameter@new") | Needs(
        calls=frozenset({Families.BACKWARD})
    )
    uses = (RunProgram,)

    def __init__(self) -> None:
        self._repeats = RepeatTracker()
        self._found: dict[Key, bool] = defaultdict(lambda: True)

    def bind(self, run_states: RunStates) -> None:
        self._run = run_states.of(RunProgram)

    def observe(self, event: Event) -> None:
        for one in self._repeats.observe(event):
            self._found[one.key] &= one.holds

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._run.name
        for (of, what, among), holds in sorted(self._found.items()):
            if holds and program is not None:
                params = {"program": program, "of": of, "what": what, "among": among}
                yield Hypothesis(relation="distinct", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for everything that could repeat."""
        return map(_word, self._found)


def _word(key: Key) -> str:
    return f"distinct {' '.join(key)}"


class DistinctDecider(DeciderBase):
    """Decides with each batch, worker or step.

    At the end of a run nothing: workers whose batches never came did nothing.
    """

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
