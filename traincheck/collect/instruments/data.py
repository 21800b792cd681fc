"""DataLoader batches as they reach the loop, and their origin. Identity of worker processes."""

from __future__ import annotations

import functools
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import torch
from torch import is_grad_enabled
from torch.utils import data
from torch.utils.data import _utils, dataloader

from traincheck.collect import masking
from traincheck.collect.context import diverged
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.worker_rng import WorkerRngObserver
from traincheck.collect.stats.next_token_labels import token_facts
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.templates import BATCH, FINGERPRINT, INDICES, ROWS, SAMPLES, TOKENS
from traincheck.collect.tensors.fingerprint import fingerprint, is_plain_cpu, row_fingerprints
from traincheck.collect.tensors.reading import (
    as_plain,
    has_memory,
    is_a,
    items_of,
    modes,
    own,
    sequence_of,
    unseen,
)
from traincheck.collect.tensors.rows import RowPrints
from traincheck.collect.tensors.summarize import dotted, dumps, encode
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import tell
from traincheck.collect.tracking.naming import FEW, ByObject
from traincheck.handlers import give_back
from traincheck.schema.claims import BATCH_CONTENT, BATCH_ROWS, SAMPLED_STEPS

MAX_SAMPLES = 64  # fingerprinted rows of a batch
_MOST_EVALUATED = 512  # batches of evaluations whose rows are fingerprinted
_MOST_TRAINED = 8  # batches of a step
_MAX_LEAVES = 16
_MAX_DEPTH = 3
_OF_INDICES = b"0123456789-,"
_PLAIN_BATCHES = (list, tuple)


class _Ahead(deque[Any]):
    """The indices of batches that workers fetch meanwhile."""


@dataclass(slots=True)
class _Loader:
    label: str
    epoch: int = -1


class Data(Instrument):
    """A batch fetched with grad enabled signals a new training iteration."""

    name = "data"
    always = True

    def install(self) -> None:
        self._loaders = ByObject[tuple[weakref.ref[Any], _Loader]]()
        self._count = 0
        self._feeding: set[str] = set()
        self._data: dict[Any, str] = {}  # label by `_data_of`
        self._starting: tuple[str, int] | None = None  # forked workers find the original
        needs = self.session.needs
        self._is_recorded = needs is None or "batch" in needs.kinds
        self._has_content = needs is not None and needs.scans(BATCH_CONTENT)
        self._is_rare = needs is not None and BATCH_CONTENT in needs.sampled_states
        has_rows = needs is None or needs.scans(BATCH_ROWS)
        self._rows = RowPrints(bytes.fromhex(self.session.secret)) if has_rows else None
        self._trained = UseSchedule(_MOST_TRAINED, SAMPLED_STEPS)
        self._evaluated = 0
        moments = self.session.moments
        iterates = moments.at(data.DataLoader, "__iter__")
        self.listen(iterates, Around(self._begin, self._begun, always=True))
        self.listen(iterates, Around(self._tell_begin))
        made = moments.at(dataloader._BaseDataLoaderIter, "__init__")
        self.listen(made, Around(after=self._made, always=True))
        self.replace(dataloader._BaseDataLoaderIter, "__next__", self._wrap_next)
        if self._is_recorded:
            self.replace(dataloader._BaseDataLoaderIter, "_reset", self._wrap_reset)
            self.listen(moments.draws, _draw)
        self.replace(_utils.worker, "_worker_loop", self._wrap_worker)

    def _wrap_worker(self, original: Callable[..., None]) -> Callable[..., None]:
        session = self.session

        def _worker_loop(*args: Any, **kwargs: Any) -> None:
            try:
                session.become_worker()
                if self._is_recorded and session.recording.on:
                    observer = WorkerRngObserver(session)
                    changed = observer.watched(original, self._starting, args, kwargs)
                    args, kwargs = changed[0], dict(changed[1])
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(self._wrap_worker, error)
            try:
                original(*args, **kwargs)
            finally:
                session.close()

        return hidden(_worker_loop)

    def _begin(self, args: Args, kwargs: Named) -> None:
        self._starting = self._epoch(args[0])

    def _begun(self, _: None, args: Args, kwargs: Named, iterator: Any) -> None:
        if self._starting is not None:
            label, epoch = self._starting
            dataset = args[0].dataset
            head = _head(label, epoch, args[0], self._label(dataset), self._whole(dataset))
            iterator._traincheck = label, head, _may_repeat(iterator)

    def _tell_begin(self, args: Args, kwargs: Named) -> None:
        session = self.session
        if not session.is_worker:
            em = session.local.em or session.emitter()
            tell(session, session.hooks.before_loader, em)

    def _made(self, _: None, args: Args, kwargs: Named, result: None) -> None:
        """Loaders of other libraries, such as fastai, also create its iterators."""
        iterator, loader = args[:2]
        if not isinstance(loader, data.DataLoader) and hasattr(loader, "__weakref__"):
            label, epoch = self._epoch(loader)
            iterator._traincheck = label, _head(label, epoch), _may_repeat(iterator)

    def _wrap_reset(self, original: Callable[..., None]) -> Callable[..., None]:
        def _reset(iterator: Any, /, *args: Any, **kwargs: Any) -> None:
            iterator._traincheck_drawn = _Ahead()
            original(iterator, *args, **kwargs)

        return hidden(_reset)

    def _epoch(self, loader: Any) -> tuple[str, int]:
        """Name of a loader, and how often it was iterated before."""
        found = self._loaders.get(id(loader))
        if found is None or found[0]() is not loader:  # reused address
            found = weakref.ref(loader), _Loader(f"loader{self._count}")
            self._loaders.keep(loader, found)
            self._count += 1
        known = found[1]
        known.epoch += 1
        return known.label, known.epoch

    def _wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session, steps, fetches = self.session, self.session.steps, self.session.moments.fetches
        fetches.within(original)

        def __next__(iterator: Any) -> Any:
            if fetches.all:
                batch = fetches.outer(fetches.inner, iterator, (), {})
            else:  # the usual case
                batch = original(iterator)
            if is_grad_enabled() and (expected := steps.expects()) is not None:
                known = getattr(iterator, "_traincheck", _UNKNOWN)
                if expected is known[0]:
                    try:
                        if iterator._num_workers:
                            _take(iterator)
                    except Exception as error:  # training must go on whatever we got wrong
                        session.fault(_take, error)
                    return batch
                diverged(session)
            if not session.is_worker:
                em = session.local.em or session.emitter()
                if not em.busy:
                    em.busy = True
                    try:
                        with unseen():
                            self._fetched(em, iterator, batch)
                    except Exception as error:  # training must go on whatever we got wrong
                        session.fault(self._fetched, error)
                    finally:
                        em.busy = False
            return batch

        return hidden(__next__)

    def _begins_to_feed(self, label: str) -> bool:
        """Whether a batch with grad is the first of a loader whose batches signal iterations.

        Trainers also fetch batches for evaluation with grad enabled. Then all models are in eval
        mode, and were so at each earlier fetch from this loader.
        """
        if self.session.is_evaluating():
            return False
        if len(self._feeding) >= FEW:  # others begin again
            self._feeding.clear()
        self._feeding.add(label)
        return True

    def _fetched(self, em: Emitter, iterator: Any, batch: Any) -> None:
        session = self.session
        known: Any = getattr(iterator, "_traincheck", _UNKNOWN)
        is_training = is_grad_enabled() and (
            known[0] in self._feeding or self._begins_to_feed(known[0])
        )
        if is_training:
            session.steps.batch(known[0])
        if not session.recording.on:
            _take(iterator)
            return
        if is_training and session.clock.stage != "train":
            session.stage(em, "train")
        if self._is_recorded:
            body = self._body(em, known, iterator, batch, is_training=is_training)
            em.write_json("batch", body)
        if is_training:
            tell(session, session.hooks.after_batch, iterator, batch)

    def _body(
        self, em: Emitter, known: Any, iterator: Any, batch: Any, *, is_training: bool
    ) -> bytes:
        """The record of a batch."""
        session, needs = self.session, self.session.needs
        _, head, may_repeat = known
        leaves = leaves_of(batch)
        has_samples = needs is None or needs.exact or may_repeat
        drawn = _drawn(iterator)  # in other steps these tell what comes again
        is_due = self._has_content and (session.recording.scans or not self._is_rare or not drawn)
        has_content = has_samples or is_due or session.stats.arguments.follows_batches
        numbers = session.stats.for_batch(em, leaves) if session.stats.batch else {}
        texts = [
            b"%b:%b" % (quoted_path(path), _leaf(leaf, numbers.get(path), has_content=has_content))
            for path, leaf in leaves.items()
        ]
        index = iterator._num_yielded - 1
        if session.compared is not None:
            values = list(zip(leaves, texts, leaves.values()))
            texts = session.compared.batch(known[0], drawn, values)
        body = BATCH % (head, index, b",".join(texts))
        if has_samples:
            first = next((leaf for leaf in leaves.values() if leaf.dim() > 0), None)
            if first is not None and is_plain_cpu(first):
                body += SAMPLES + orjson.dumps(row_fingerprints(first, MAX_SAMPLES))
        body += drawn
        if self._rows is not None and self._has_rows(index, is_training=is_training):
            rows = self._rows.of(leaves)
            told = [b'%b:"%b"' % (quoted_path(path), text) for path, text in rows.items()]
            if told:
                body += ROWS % b",".join(told)
        if not modes():
            tokens = token_facts(batch, session.tracker.special_ids)
            if tokens:
                body += TOKENS + dumps(tokens)
        return body

    def _has_rows(self, index: int, *, is_training: bool) -> bool:
        """Whether the rows of a batch are fingerprinted.

        The first batch of an evaluation is often fetched before anything shows that it is one.
        """
        if modes():
            return False
        if is_training and self._trained.is_due(self.session.clock.step):
            return True
        if (is_training and index) or self._evaluated >= _MOST_EVALUATED:
            return False
        self._evaluated += 1
        return True

    def _label(self, dataset: Any) -> str:
        """The name of the data that a dataset reads."""
        if len(self._data) >= FEW:
            self._data.clear()
        return self._data.setdefault(_data_of(dataset), f"dataset{len(self._data)}")

    def _whole(self, dataset: Any) -> str:
        """The name of the data that a dataset takes samples from, if a loader has read it."""
        whole = own(dataset).get("dataset")
        return self._data.get(_data_of(whole), "") if is_a(whole, data.Dataset) else ""


def _head(
    label: str,
    epoch: int,
    loader: data.DataLoader[Any] | None = None,
    of: str = "",
    whole: str = "",
) -> bytes:
    """The common fields of all batches of an iterator."""
    fields: dict[str, Any] = {"loader": label, "epoch": epoch, "sampler": None}
    if loader is None:
        return orjson.dumps(fields)[1:-1]
    batches, sampler = loader.batch_sampler, _drawn_by(loader)
    fields |= {"sampler": dotted(type(sampler)), "dataset": of}
    if whole:
        fields["part_of"] = whole
    order = own(loader.sampler).get("epoch")
    if type(order) is int:  # of set_epoch()
        fields["sampler_epoch"] = order
    if loader.num_workers:
        fields["workers"] = loader.num_workers
    if type(sampler) in _DRAWING:
        try:
            fields["dataset_size"] = len(loader.dataset)  # type: ignore[arg-type]
            if type(sampler) is data.WeightedRandomSampler:
                fields["weights"] = len(sampler.weights)
            if type(sampler) is data.DistributedSampler:
                fields["replicas"] = sampler.num_replicas
            if type(batches) is data.BatchSampler and batches.drop_last:
                fields["dropped"] = len(sampler) % batches.batch_size
        except (TypeError, NotImplementedError) as error:  # the number of samples may be unknown
            give_back(error)
    return orjson.dumps(fields)[1:-1]


_DRAWING = (
    data.SequentialSampler,
    data.RandomSampler,
    data.WeightedRandomSampler,
    data.DistributedSampler,
)


def _data_of(dataset: Any) -> tuple[Any, ...]:
    """The class of a dataset and its arrays: equal for two datasets over the same ones.

    Its other attributes, such as transforms, do not count. A dataset without a known array, list
    or dataset equals only itself.
    """
    held: list[tuple[object, ...]] = []
    for name, value in own(dataset).items():
        inner: Any = sequence_of(value, _MAX_LEAVES + 1)
        items = [] if inner is None or len(inner) > _MAX_LEAVES else list(inner)
        known = list(filter(None, map(_array, items))) or list(filter(None, [_array(value)]))
        held += [(name, *one) for one in known]
    return (type(dataset), *held) if held else (type(dataset), id(dataset))


def _array(value: Any) -> tuple[Any, ...] | None:
    """The identity of an array, a list or a dataset; None for other values."""
    if is_a(value, torch.Tensor):
        plain = as_plain(value)
        return plain.data_ptr() if has_memory(plain) else id(value), plain.shape
    if type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
        return value.__array_interface__["data"][0], value.shape
    return (id(value),) if is_a(value, (list, dict, data.Dataset)) else None


# An iterator from before the start of the recording.
_UNKNOWN = ("loader", _head("loader", 0), True)


@hidden
def _draw(original: Callable[..., Any], iterator: Any, args: Any, kwargs: Any) -> Any:
    """Workers fetch ahead, but batches come in the order in which they were drawn."""
    drawn = original(iterator)
    if not getattr(iterator, "_num_workers", 0):
        iterator._traincheck_drawn = drawn
        return drawn
    ahead = getattr(iterator, "_traincheck_drawn", None)
    if type(ahead) is not _Ahead:
        ahead = iterator._traincheck_drawn = _Ahead()
    ahead.append(drawn)
    return drawn


def _take(iterator: Any) -> Any:
    """Take the indices of the current batch: the next one has others."""
    drawn = getattr(iterator, "_traincheck_drawn", None)
    if type(drawn) is not _Ahead:
        return drawn
    return drawn.popleft() if drawn else None


def _drawn_by(loader: data.DataLoader[Any]) -> Any:
    """The sampler, also the one that a batch sampler of torch draws from."""
    batches: Any = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is data.BatchSampler else batches


def _may_repeat(iterator: Any) -> bool:
    """Whether others fetch from the same data: then the content shows if they fetch the same."""
    is_stream = iterator._dataset_kind != dataloader._DatasetKind.Map
    if is_stream and iterator._num_workers > 1:
        return True
    distributed = torch.distributed
    return (
        distributed.is_available()
        and distributed.is_initialized()
        and distributed.get_world_size() > 1
    )


def _drawn(iterator: Any) -> bytes:
    """The indices into the dataset that the sampler drew for the current batch."""
    drawn = _take(iterator)
    if iterator._dataset_kind != dataloader._DatasetKind.Map or not getattr(
        iterator, "_in_order", True
    ):
        return b""
    if isinstance(drawn, int):
        drawn = [drawn]
    if not isinstance(drawn, (list, tuple)):
        return b""
    try:
        indices = orjson.dumps(drawn[:MAX_SAMPLES])
    except TypeError as error:  # keys of the user
        give_back(error)
        return b""
    if indices[1:-1].translate(None, _OF_INDICES):
        return b""
    return INDICES % (indices, len(drawn))


def _leaf(tensor: torch.Tensor, numbers: bytes | None, *, has_content: bool) -> bytes:
    text = encode(tensor)[:-1]
    digest = fingerprint(tensor) if has_content and tensor.is_cpu else None
    if digest is not None:
        text += FINGERPRINT % digest.encode()
    if numbers is not None:
        text += b',"stats":' + numbers
    return text + b"}"


@functools.lru_cache(maxsize=256)
def quoted_path(path: str) -> bytes:
    """The path of a leaf as JSON text, with keys of the user masked."""
    return orjson.dumps(".".join(map(_part, path.split("."))))


def _part(name: str) -> str:
    """A part of a path, which may be a user's key: ``batch``, ``labels[0]``."""
    head, bracket, place = name.partition("[")
    return masking.key(head) + bracket + place if head else name


def leaves_of(batch: Any) -> dict[str, torch.Tensor]:
    """Tensors in a batch by path."""
    if type(batch) not in _PLAIN_BATCHES or len(batch) > _MAX_LEAVES:
        return dict(_leaves("batch", batch))
    leaves = {}
    for index, item in enumerate(batch):  # of tensors only, the usual case
        if type(item) is not torch.Tensor:
            return dict(_leaves("batch", batch))
        leaves[f"batch[{index}]"] = item
    return leaves


def _leaves(path: str, value: Any, depth: int = 0) -> list[tuple[str, torch.Tensor]]:
    """Tensors in a batch with their paths; searches sequences, mappings and plain objects."""
    if is_a(value, torch.Tensor):
        return [(path, as_plain(value))]
    if depth >= _MAX_DEPTH:
        return []
    if (sequence := sequence_of(value, _MAX_LEAVES)) is not None:
        items = [(f"{path}[{i}]", item) for i, item in enumerate(sequence)]
    else:
        held = items_of(value, _MAX_LEAVES)
        held = list(own(value).items())[:_MAX_LEAVES] if held is None else held
        items = [(f"{path}.{key}", item) for key, item in held]
    return [leaf for name, item in items for leaf in _leaves(name, item, depth + 1)][:_MAX_LEAVES]
