"""Datasets: random numbers for the order of an epoch, and samples that change as they are read.

A few samples of the first passes over a map-style dataset are compared: the sample with that of an
earlier pass, and the stored item before and after the fetch. No item is read again that the program
did not read: only digests are kept. Workers have copies of the dataset, and are not observed.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch.utils import data
from torch.utils.data import _utils

from traincheck.collect import masking
from traincheck.collect.moments.calls import Link
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.worker_rng import states
from traincheck.collect.tensors.fingerprint import byte_view, hash64, is_plain_cpu
from traincheck.collect.tensors.reading import PLAIN_TYPES, modes, own
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded, observe
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.data import DatasetReads, EpochOrder

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_EPOCHS = 4  # of a sampler
_SAMPLERS = 64
_DRAWN = "_traincheck_order"  # attribute of an iterator, until its first batch is fetched

_States = dict[str, str]


class EpochOrderObserver(Observer):
    """Compares generators before and after the first indices of an epoch."""

    produces: ClassVar = (EpochOrder,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._epochs: Counter[int] = Counter()

    def install(self, patcher: Patcher) -> None:
        """Listen to the function that draws the indices of a batch."""
        self.listen(self._session.moments.draws, self._link())
        self.listen(self._session.hooks.after_batch, self._tell)

    def _link(self) -> Link:
        session = self._session

        def draw(original: Callable[..., Any], iterator: Any, args: Any, kwargs: Any) -> Any:
            if iterator._num_yielded or session.is_worker or not session.recording.on:
                return original(iterator)
            em = session.local.em or session.emitter()
            before = guarded(em, self._before, iterator)
            drawn = original(iterator)
            if before is not None:
                guarded(em, self._after, iterator, before)
            return drawn

        return hidden(draw)

    def _before(self, iterator: Any) -> _States | None:
        """States of the generators; None if this is not the first index of one of the first epochs.

        Workers fetch ahead: an iterator draws several batches before it gives the first.
        """
        sampler = iterator._index_sampler
        if _DRAWN in vars(iterator) or len(self._epochs) > _SAMPLERS:
            return None
        self._epochs[id(sampler)] += 1
        return states(sampler) if self._epochs[id(sampler)] <= _EPOCHS else None

    def _after(self, iterator: Any, before: _States) -> None:
        after = states(iterator._index_sampler)
        changed = [name for name, state in after.items() if before.get(name, state) != state]
        drawn = [name.replace("dataset", "sampler", 1) for name in changed]
        sampler = iterator._index_sampler
        inner = getattr(sampler, "sampler", sampler)  # of a batch sampler
        if "Distributed" in type(inner).__name__ and getattr(inner, "shuffle", False) is True:
            drawn.append("shuffle")
        setattr(iterator, _DRAWN, tuple(drawn))

    def _tell(self, iterator: Any, batch: Any) -> None:
        """A batch of training was fetched."""
        drawn = vars(iterator).pop(_DRAWN, None)
        known = getattr(iterator, "_traincheck", None)
        if drawn is not None and known is not None:
            em = self._session.local.em or self._session.emitter()
            write(em, EpochOrder(known[0], drawn))


_PASSES, _FETCHES = 4, 4  # of a dataset that are observed
_DATASETS = 16
_SAMPLES = 32  # of a fetch that are compared with an earlier pass
_ITEMS = 8  # of a fetch whose stored items are compared
_MOST_LEAVES, _MOST_DEPTH = 16, 3
_LARGEST = 1 << 20  # bytes of a leaf
_ATTRIBUTES, _COLUMNS = 32, 8
_PLAIN = (bool, int, float, str, type(None))

_Digests = dict[int, int]


class _Item(NamedTuple):
    """A stored item: digests of its leaves, and whether they are more than one repeated value."""

    leaves: frozenset[int]
    has_data: bool


@dataclass(slots=True)
class _Pass:
    """One pass over a dataset, by the fetcher of its iterator."""

    fetcher: weakref.ref[Any]
    number: int
    left: int = _FETCHES
    compared: int = 0
    differing: int = 0
    watched: int = 0
    written: int = 0
    returned: int = 0
    attribute: str = ""


@dataclass(slots=True)
class _Dataset:
    """A dataset. samples: digests of the samples of earlier passes, by index."""

    ref: weakref.ref[Any]
    plain: dict[str, Any]
    samples: _Digests = field(default_factory=dict)
    passes: int = 0
    now: _Pass | None = None
    is_over: bool = False


class DatasetReadObserver(Observer):
    """Wraps the function that fetches a batch from a map-style dataset."""

    produces: ClassVar = (DatasetReads,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._datasets: dict[int, _Dataset] = {}

    def install(self, patcher: Patcher) -> None:
        """Wrap the function."""
        patcher.replace(_utils.fetch._MapDatasetFetcher, "fetch", self._wrap)

    def remove(self) -> None:
        """Forget all datasets."""
        self._datasets.clear()

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self._session

        def fetch(fetcher: Any, index: Any) -> Any:
            if session.is_worker or not session.recording.on or _OVER in vars(fetcher):
                return original(fetcher, index)
            found = observe(session, self._begin, fetcher, index)
            if found is None:
                return original(fetcher, index)
            current, seen, see = found
            collate = fetcher.collate_fn
            try:
                fetcher.collate_fn = see
                result = original(fetcher, index)
            finally:
                fetcher.collate_fn = collate
            em = session.local.em or session.emitter()
            guarded(em, self._end, em, fetcher.dataset, current, seen)
            return result

        return hidden(fetch)

    def _begin(self, fetcher: Any, index: Any) -> tuple[_Pass, _Fetch, Callable[[Any], Any]] | None:
        """The pass, what is known before the fetch, and a function that sees its samples."""
        em = self._session.local.em or self._session.emitter()
        known = self._known(fetcher.dataset)
        current = None if known is None else self._pass(em, known, fetcher)
        if known is None or current is None:
            setattr(fetcher, _OVER, True)
            return None
        indices = index if fetcher.auto_collation else [index]
        if modes() or not all(type(one) is int for one in indices[:_SAMPLES]):
            return None
        stored = _items(fetcher.dataset, indices[:_ITEMS])
        seen = _Fetch(known, states(fetcher.dataset), stored)
        return current, seen, self._seer(seen, index, fetcher.collate_fn)

    def _known(self, dataset: Any) -> _Dataset | None:
        known = self._datasets.get(id(dataset))
        if known is None or known.ref() is not dataset:  # reused address
            if len(self._datasets) >= _DATASETS or not type(dataset).__weakrefoffset__:
                return None
            known = _Dataset(weakref.ref(dataset), _plain_of(dataset))
            self._datasets[id(dataset)] = known
        return None if known.is_over else known

    def _pass(self, em: Emitter, known: _Dataset, fetcher: Any) -> _Pass | None:
        """The present pass; None if it is observed no longer."""
        now = known.now
        if now is None or now.fetcher() is not fetcher:
            if now is not None and now.number and now.left > 0:  # it was short
                self._tell(em, known.ref(), now)
            now = known.now = _Pass(weakref.ref(fetcher), known.passes)
            known.passes += 1
            known.is_over = known.passes >= _PASSES
            if known.plain != _plain_of(known.ref()):  # such as a size that grows with the epoch
                known.is_over = True
                return None
        now.left -= 1
        return now if now.left >= 0 else None

    def _seer(
        self, seen: _Fetch, index: Any, collate: Callable[[Any], Any]
    ) -> Callable[[Any], Any]:
        session = self._session

        def see(samples: Any) -> Any:
            guarded(session.local.em or session.emitter(), self._see, seen, index, samples)
            return collate(samples)

        return hidden(see)

    def _see(self, seen: _Fetch, index: Any, samples: Any) -> None:
        """Take digests of samples before they are collated."""
        several = samples if type(index) in (list, tuple) else [samples]
        if type(several) is list and len(several) == len(seen.indices(index)):
            for one, sample in zip(seen.indices(index)[:_SAMPLES], several):
                leaves = _leaves(sample)
                if leaves is not None:
                    seen.samples[one] = [digest for digest, _ in leaves]

    def _end(self, em: Emitter, dataset: Any, current: _Pass, seen: _Fetch) -> None:
        if states(dataset) == seen.states:  # else the samples may be drawn
            self._compare(dataset, current, seen)
        if not current.left and current.number:
            self._tell(em, dataset, current)

    def _compare(self, dataset: Any, current: _Pass, seen: _Fetch) -> None:
        for index, leaves in seen.samples.items():
            digest = hash(tuple(leaves))
            before = seen.dataset.samples.setdefault(index, digest)
            if current.number:
                current.compared += 1
                current.differing += before != digest
        after = _items(dataset, list(dict.fromkeys(index for index, _ in seen.stored)))
        for key, item in seen.stored.items():
            index, attribute = key
            now = after.get(key)
            if now is None or index not in seen.samples:
                continue
            current.watched += 1
            if now.leaves != item.leaves:
                current.written += 1
                current.attribute = current.attribute or attribute
                is_part = not (now.leaves - item.leaves).isdisjoint(seen.samples[index])
                current.returned += is_part and item.has_data

    def _tell(self, em: Emitter, dataset: Any, current: _Pass) -> None:
        counts = current.compared, current.differing, current.watched, current.written
        found = current.number, *counts, current.returned, current.attribute
        write(em, DatasetReads(dotted(type(dataset)), *found))


_OVER = "_traincheck_over"  # attribute of a fetcher that is observed no longer


@dataclass(slots=True)
class _Fetch:
    """A fetch that is observed.

    states: of generators before it. stored: items by index and attribute. samples: by index.
    """

    dataset: _Dataset
    states: dict[str, str]
    stored: dict[tuple[int, str], _Item]
    samples: dict[int, list[int]] = field(default_factory=dict)

    @staticmethod
    def indices(index: Any) -> list[int]:
        return list(index) if type(index) in (list, tuple) else [index]


def _plain_of(dataset: Any) -> dict[str, Any]:
    """Plain attributes of a dataset: where one changes, its samples may change too."""
    return {name: value for name, value in own(dataset).items() if type(value) in _PLAIN}


def _items(dataset: Any, indices: list[int]) -> dict[tuple[int, str], _Item]:
    """The stored items of a dataset, by index and attribute. Runs no code of the dataset."""
    found = {}
    places = [(index, index) for index in indices]
    while type(dataset) is data.Subset:
        places = [(index, dataset.indices[place]) for index, place in places]
        dataset = dataset.dataset
    count = 1 + max((place for _, place in places), default=0)
    for name, value in _columns(dataset):
        if len(value) < count:
            continue
        for index, place in places:
            leaves = _leaves(value[place])
            if leaves:
                digests = frozenset(digest for digest, _ in leaves)
                found[index, name] = _Item(digests, any(has_data for _, has_data in leaves))
    return found


def _columns(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Attributes that an index may go to, and the tensors and arrays in short lists and dicts."""
    for name, value in list(own(dataset).items())[:_ATTRIBUTES]:
        if _is_indexed(value):
            yield name, value
        parts: list[tuple[Any, Any]] = []
        if type(value) is dict and len(value) <= _COLUMNS:
            parts = [(masking.key(str(key)), item) for key, item in value.items()]
        elif type(value) in (list, tuple) and len(value) <= _COLUMNS:
            parts = list(enumerate(value))
        for key, item in parts:
            if type(item) not in (list, tuple) and _is_indexed(item):
                yield f"{name}[{key}]", item


def _is_indexed(value: Any) -> bool:
    if type(value) in PLAIN_TYPES:
        return value.dim() > 0 and is_plain_cpu(value)
    return type(value) in (list, tuple) or (_is_array(value) and value.ndim > 0)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject


def _leaves(value: Any) -> list[tuple[int, bool]] | None:
    """Digests of the values in a sample, each with whether it is data; None if one is unknown."""
    found: list[tuple[int, bool]] = []
    for leaf in _walk(value, 0):
        digest = _digest(leaf)
        if digest is None or len(found) >= _MOST_LEAVES:
            return None
        found.append(digest)
    return found


def _walk(value: Any, depth: int) -> Iterator[Any]:
    if isinstance(value, Mapping) and depth < _MOST_DEPTH:
        for item in value.values():
            yield from _walk(item, depth + 1)
    elif type(value) in (list, tuple) and depth < _MOST_DEPTH:
        for item in value:
            yield from _walk(item, depth + 1)
    else:
        yield value


def _digest(value: Any) -> tuple[int, bool] | None:
    """A digest of a leaf, without its shape, and whether it is more than one repeated value."""
    if isinstance(value, torch.Tensor):
        if type(value) not in PLAIN_TYPES or not is_plain_cpu(value) or value.nbytes > _LARGEST:
            return None
        flat = value.detach().reshape(-1)
        has_data = bool((flat != flat[:1]).any()) if len(flat) > 1 else False
        return hash64(bytes(byte_view(value.nbytes)(value.data_ptr()))), has_data
    if _is_array(value):
        if value.nbytes > _LARGEST:
            return None
        flat = value.reshape(-1)
        return hash64(value.tobytes()), bool(len(flat) > 1 and (flat != flat[0]).any())
    if type(value) in (bool, int, float, str, bytes):
        return hash64(repr(value).encode()), False
    return None
