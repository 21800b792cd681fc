"""Ranks that train one model together all receive the same batches."""

from __future__ import annotations

from collections import Counter
from math import prod

from traincheck.rules.base.rule import fresh
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, LoaderRule, content_of
from traincheck.schema.claims import MIN_MATCHED_ELEMENTS, Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import DDP_FORWARD, DDP_INIT
from traincheck.schema.values import tensor_summary

_PROOF = 2  # different batches shared by all ranks
_OPEN = 64  # batches that wait for the other ranks

_Place = tuple[str, int, int]  # loader, epoch, index; or model, step, call in it
_Given = BatchEvent | CallEvent
_DRAWN_CAUSE = (
    "No loader shards the data: every rank may draw the batches of {variables} itself with the "
    "same seed. From step {step} on, all ranks have the same batches."
)
_DRAWN_FIX = "Seed the generator that draws the batches differently on each rank, e.g. seed + rank."


class SameBatchOnEveryRank(LoaderRule, code="TC502", severity="error"):
    """same-batch-on-every-rank: data is not sharded between data-parallel ranks.

    What it checks:
        If DistributedDataParallel wraps a model, the n-th training batch is not the same on all
        ranks. In a loop without a DataLoader, the same holds for the model inputs.

    Why it matters:
        All ranks compute the same gradient. The run costs as much as with all ranks and learns as
        with one.

    Fires on:
        - A DataLoader without DistributedSampler on every rank, with the same seed or without
          shuffling: all ranks share two different batches.
        - Batches that each rank draws itself, with the same seed.

    Stays quiet on:
        - Evaluation.
        - Groups of ranks that share batches (tensor or pipeline parallel).
        - Runs without DistributedDataParallel.
        - A single batch that is repeated.

    Fix:
        Pass sampler=DistributedSampler(dataset) to the loader and call its set_epoch(epoch). If the
        loop draws batches itself, seed its generator with seed + rank.

    Source:
        https://github.com/pytorch/pytorch/issues/31771, https://docs.pytorch.org/docs/stable/data.html
    """

    title = "All ranks train on the same batches of {variables}"
    likely_cause = (
        "{variables} {has|have} no sampler that divides the data among ranks. From step "
        "{step} on, every rank draws the same samples in the same order."
    )
    fix = "Build the training loader with sampler=DistributedSampler(dataset)."
    scope = "run"
    needs = BATCHES | Needs(calls=frozenset({DDP_INIT, DDP_FORWARD}), stats=frozenset({"batch"}))
    _ranks: set[int] = fresh(set)  # that wrap a model
    _open: dict[_Place, dict[int, _Given]] = fresh(dict)
    _shared: dict[str, dict[tuple[str, ...], _Given]] = fresh(dict)  # by loader, or model
    _differs: set[str] = fresh(set)
    _has_loader = False
    _calls: Counter[tuple[int, str]] = fresh(Counter)  # of models, in this step of a rank

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent) and event.api == DDP_INIT:
            self._ranks.add(event.rank)
        elif isinstance(event, BatchEvent) and event.stage == "train":
            self._has_loader = True
            self._enter((event.loader, event.epoch, event.index), event)
        elif isinstance(event, CallEvent) and event.api == DDP_FORWARD:
            if event.root and event.training and event.grad_enabled and event.module:
                key = (event.rank, event.module)
                self._enter((event.module, event.step or 0, self._calls[key]), event)
                self._calls[key] += 1
        elif isinstance(event, StepEvent):
            self._calls = Counter({k: n for k, n in self._calls.items() if k[0] != event.rank})
            return self._conclude()
        return []

    def finish(self) -> list[Violation]:
        return self._conclude()

    def _enter(self, place: _Place, event: _Given) -> None:
        if len(self._ranks) == 1 or event.rank not in self._ranks:
            return
        ranks = self._open.setdefault(place, {})
        ranks[event.rank] = event
        if self._ranks <= ranks.keys():
            del self._open[place]
            source = place[0]
            contents = {_content(event) for event in ranks.values()}
            if () in contents:
                return
            self.triggered += 1
            if len(contents) > 1:
                self._differs.add(source)
                return
            first = min(ranks.values(), key=lambda event: event.rank)
            shared = self._shared.setdefault(source, {})
            if len(shared) < _PROOF:
                shared.setdefault(contents.pop(), first)
        elif len(self._open) > _OPEN:
            del self._open[next(iter(self._open))]

    def _conclude(self) -> list[Violation]:
        found = []
        for source, batches in self._shared.items():
            if source in self.reported or source in self._differs or len(batches) < _PROOF:
                continue
            feeds = any((rank, source) in self.training for rank in self._ranks)
            if feeds or not self._has_loader:
                self.reported.add(source)
                found.append(self._violation(list(batches.values())))
        return found

    def _violation(self, batches: list[_Given]) -> Violation:
        first, count = batches[0], len(self._ranks)
        is_drawn = isinstance(first, CallEvent)
        if isinstance(first, CallEvent):
            source, api = first.module, first.api
            given = f"{source} receives the same batches on all of them"
        else:
            source, api = first.loader, DATA_LOADER
            sampler = (first.sampler or "none").rpartition(".")[2]
            given = f"{source} gives all of them the same batches (sampler {sampler})"
        return self.violation(
            first,
            stage="train",
            subject=Subject(api=api, variable=source),
            symptom=Symptom.REPEATED_DATA,
            message=f"{count} ranks train one model together, but {given}",
            expected="each rank has its own batches",
            observed=f"the first {len(batches)} batches are the same on {count} ranks",
            evidence=tuple(batches),
            likely_cause=_DRAWN_CAUSE if is_drawn else "",
            fix=_DRAWN_FIX if is_drawn else "",
        )


def _content(event: _Given) -> tuple[str, ...]:
    """Fingerprints of a batch or model input; empty if one of a large tensor is missing."""
    if isinstance(event, BatchEvent):
        return content_of(event)
    tensors = [t for t in map(tensor_summary, event.args.values()) if t is not None]
    found = [t.fingerprint for t in tensors if prod(t.shape) >= MIN_MATCHED_ELEMENTS]
    return tuple(map(str, found)) if all(found) else ()
