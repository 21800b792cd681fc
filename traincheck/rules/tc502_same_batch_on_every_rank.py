"""TC502: ranks that train one model together are all given the same batches."""

from __future__ import annotations

from traincheck.rules._loaders import BATCHES, DATA_LOADER, TrainingLoaders, content_of
from traincheck.schema.apis import DDP_INIT
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation

_PROOF = 2  # different batches that all ranks share
_OPEN = 64  # batches that wait for the other ranks

_Place = tuple[str, int, int]  # loader, epoch, index


class SameBatchOnEveryRank:
    """TC502 same-batch-on-every-rank: data-parallel ranks do not share the data out.

    What it checks:
        Where a model is wrapped by DistributedDataParallel, the n-th training batch is not the same
        on all ranks.

    Why it matters:
        All ranks compute the same gradient. The run costs as much as with all ranks and learns as
        with one.

    Fires on:
        A DataLoader without DistributedSampler, with the same seed or without shuffling, on every
        rank: two different batches that all ranks have in common.

    Stays quiet on:
        Evaluation; ranks that share batches in groups (tensor or pipeline parallel); runs without
        DistributedDataParallel; one batch that is given again and again.

    Fix:
        Give the loader sampler=DistributedSampler(dataset) and call its set_epoch(epoch).

    Source:
        https://github.com/pytorch/pytorch/issues/31771, https://docs.pytorch.org/docs/stable/data.html
    """

    scope = "run"
    info = CheckInfo(
        check_id="TC502",
        kind="rule",
        code="TC502",
        severity="error",
        title="All ranks train on the same batches of {variables}",
        likely_cause=(
            "{variables} has no DistributedSampler, so that from step {step} on every rank draws "
            "the same samples in the same order."
        ),
        fix="Build the training loader with sampler=DistributedSampler(dataset).",
    )
    needs = BATCHES | Needs(calls=frozenset({DDP_INIT}))

    def monitor(self) -> RankBatches:
        return RankBatches()


class RankBatches:
    """Puts the batches of all ranks side by side."""

    def __init__(self) -> None:
        self.triggered = 0
        self._ranks: set[int] = set()  # that wrap a model
        self._open: dict[_Place, dict[int, BatchEvent]] = {}
        self._shared: dict[str, dict[tuple[str, ...], BatchEvent]] = {}
        self._differs: set[str] = set()
        self._told: set[str] = set()
        self._training = TrainingLoaders()

    def observe(self, event: Event) -> list[Violation]:
        self._training.observe(event)
        if isinstance(event, CallEvent) and event.api == DDP_INIT:
            self._ranks.add(event.rank)
        elif isinstance(event, BatchEvent) and event.stage == "train" and len(self._ranks) > 1:
            self._enter(event)
        elif isinstance(event, StepEvent):
            return self._conclude()
        return []

    def finish(self) -> list[Violation]:
        return self._conclude()

    def _enter(self, event: BatchEvent) -> None:
        place = (event.loader, event.epoch, event.index)
        ranks = self._open.setdefault(place, {})
        ranks[event.rank] = event
        if self._ranks <= ranks.keys():
            del self._open[place]
            self._compare(event.loader, ranks)
        elif len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]

    def _compare(self, loader: str, ranks: dict[int, BatchEvent]) -> None:
        contents = {content_of(batch) for batch in ranks.values()}
        if () in contents:
            return
        self.triggered += 1
        if len(contents) > 1:
            self._differs.add(loader)
            return
        first = min(ranks.values(), key=lambda batch: batch.rank)
        shared = self._shared.setdefault(loader, {})
        if len(shared) < _PROOF:
            shared.setdefault(contents.pop(), first)

    def _conclude(self) -> list[Violation]:
        found = []
        for loader, batches in self._shared.items():
            if loader in self._told or loader in self._differs or len(batches) < _PROOF:
                continue
            if any((rank, loader) in self._training for rank in self._ranks):
                self._told.add(loader)
                found.append(self._violation(list(batches.values())))
        return found

    def _violation(self, batches: list[BatchEvent]) -> Violation:
        first = batches[0]
        return Violation(
            check_id="TC502",
            step=first.step,
            rank=first.rank,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=first.loader),
            symptom=Symptom.REPEATED_DATA,
            message=(
                f"{len(self._ranks)} ranks train one model together, but {first.loader} gives all "
                f"of them the same batches (sampler {_short(first.sampler)})"
            ),
            expected="each rank has batches of its own",
            observed=f"the first {len(batches)} batches are the same on {len(self._ranks)} ranks",
            evidence=tuple(batches),
        )


def _short(sampler: str | None) -> str:
    return (sampler or "none").rpartition(".")[2]
