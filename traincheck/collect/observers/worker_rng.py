"""Random generators of a DataLoader worker: their states when it starts, and after its first batch.

Workers that start from the same state draw the same numbers.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch.utils.data import _utils, dataloader, get_worker_info

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.tensors.generator_states import torch_bytes
from traincheck.collect.tensors.reading import is_a, own
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import attempt
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.data import WorkerRng

_MAX_DEPTH = 3  # of attributes below the dataset: dataset.dataset.transform.rng
_MAX_ITEMS = 32  # of one object or sequence
_MAX_OBJECTS = 256

States = dict[str, str]  # name of a generator -> digest of its state


class WorkerRngObserver(Observer):
    """Observes the generators of this worker process."""

    produces: ClassVar = (WorkerRng,)
    hook: ClassVar = Hook.WORKER_START

    def watched(
        self,
        original: Callable[..., None],
        label: tuple[str, int] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments for the worker's loop that make it record its generators.

        Args:
            original: the loop.
            label: loader and epoch, if known.
            args: arguments of the loop.
            kwargs: further arguments by name.
        """
        bound = inspect.signature(original).bind(*args, **kwargs)
        given = bound.arguments
        if (
            given["dataset_kind"] != dataloader._DatasetKind.Map
        ):  # a stream is split by its own code
            return args, kwargs
        init = given["init_fn"]
        loader, epoch = label or (None, None)
        worker = WorkerRng(
            given["worker_id"], given["num_workers"], str(given["base_seed"]), loader, epoch
        )

        def init_fn(worker_id: int) -> None:
            if init is not None:
                init(worker_id)
            attempt(self._session.fault, self._write_after_first, worker)

        given["init_fn"] = hidden(init_fn)
        return bound.args, bound.kwargs

    def _write_after_first(self, worker: WorkerRng) -> None:
        """Write once the first batch is fetched: generators with changed states were used."""
        fetcher = _utils.fetch._MapDatasetFetcher
        fetch, session = fetcher.fetch, self._session
        # From torch 2.15, arguments of the loop have other names; this one does not.
        dataset = get_worker_info().dataset  # type: ignore[union-attr]
        start = states(dataset)

        def tell() -> None:
            em = session.local.em or session.emitter()
            write(em, replace(worker, start=start, after=states(dataset)))

        def first(fetching: Any, index: Any) -> Any:
            fetcher.fetch = fetch  # type: ignore[method-assign]
            fetched = fetch(fetching, index)  # type: ignore[no-untyped-call]
            attempt(session.fault, tell)
            return fetched

        fetcher.fetch = hidden(first)  # type: ignore[method-assign]


def states(dataset: Any) -> States:
    """Digests of the global generators and of those that ``dataset`` owns, by name."""
    found = {
        "python": _digest(random.getstate()),
        "torch": _digest(torch_bytes(torch.default_generator.get_state())),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = _digest(numpy.random.get_state())
    for name, generator in generators(dataset):
        state = _state(generator)
        if state is not None:
            found[name] = _digest(state)
    return found


def generators(dataset: Any) -> Iterator[tuple[str, Any]]:
    """Objects below ``dataset`` that look like generators. Runs no code of the user's."""
    waiting: list[tuple[str, Any, int]] = [("dataset", dataset, 0)]
    seen: set[int] = set()
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    if (numpy := sys.modules.get("numpy")) is not None:
        kinds += numpy.random.Generator, numpy.random.RandomState
    while waiting and len(seen) < _MAX_OBJECTS:
        path, value, depth = waiting.pop(0)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if is_a(value, kinds):
            yield path, value
        elif depth <= _MAX_DEPTH:
            waiting += [
                (f"{path}{name}", item, depth + 1)
                for name, item in _parts(value, kinds)
                if not is_a(item, (str, bytes, int, float, torch.Tensor, type(None)))
            ]


def _parts(value: Any, kinds: tuple[type, ...]) -> list[tuple[str, Any]]:
    """Attributes of an object and of its class, or items."""
    if type(value) is dict:
        first = itertools.islice(value.items(), _MAX_ITEMS)
        return [(f"[{key!r}]" if type(key) is str else "[]", item) for key, item in first]
    if type(value) in (list, tuple):  # no subclass, whose items may cost something
        return [(f"[{number}]", item) for number, item in enumerate(value[:_MAX_ITEMS])]
    if is_a(value, type):
        return []
    held = [(f".{name}", item) for name, item in list(own(value).items())[:_MAX_ITEMS]]
    of_class = [
        (f".{name}", item)
        for cls in type(value).__mro__
        for name, item in vars(cls).items()
        if issubclass(type(item), kinds)
    ]
    return held + of_class


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return torch_bytes(generator.get_state()) if generator.device.type == "cpu" else None
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _digest(state: Any) -> str:
    return hashlib.blake2b(pickle.dumps(state), digest_size=8).hexdigest()
