"""Collectives, process groups and DDP. The rank becomes known here when no launcher told it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from traincheck.collect.emit import Emitter, hidden, where
from traincheck.collect.fingerprint import fingerprint
from traincheck.collect.instruments._base import Instrument
from traincheck.collect.summarize import summarize
from traincheck.collect.wrap import guarded, span_wrapper

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier", "send", "recv", "all_gather_object", "broadcast_object_list",
)  # fmt: skip
DDP_INIT = "torch.nn.parallel.DistributedDataParallel.__init__"


class Distributed(Instrument):
    """Numbers the collectives of each group, so that ranks can be compared call by call."""

    name = "distributed"
    kinds = ("collective",)
    always = True

    def install(self) -> None:
        self._numbers: Counter[str] = Counter()
        if not dist.is_available():
            return
        self.replace(dist, "init_process_group", self._wrap_init)
        needs = self.session.needs
        if needs is None or "collective" in needs.kinds:
            for name in COLLECTIVES:
                if hasattr(dist, name):
                    self.replace(dist, name, functools.partial(self._wrap_collective, op=name))
        if self.wants_call(DDP_INIT):
            self.replace(torch.nn.parallel.DistributedDataParallel, "__init__", self._wrap_ddp)

    def _wrap_init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        session = self.session

        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            try:
                session.set_rank(dist.get_rank())
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(self._wrap_init, error)
            return result

        return hidden(init_process_group)

    def _wrap_ddp(self, original: Callable[..., None]) -> Callable[..., None]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            named = {
                name: summarize(value)
                for name, value in kwargs.items()
                if isinstance(value, (bool, int, str))
            }
            return {"api": DDP_INIT, "args": named, "where": where()}

        return span_wrapper(original, self.session, describe)

    def _wrap_collective(self, original: Callable[..., Any], op: str) -> Callable[..., Any]:
        session = self.session

        def collective(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not session.switch.on:
                return original(*args, **kwargs)
            em = session.local.em or session.emitter()
            if em.busy:
                return original(*args, **kwargs)
            fields: dict[str, Any] = {"op": op}
            tensor = _first_tensor(args, kwargs)
            guarded(em, self._before, fields, tensor, kwargs.get("group"))
            result = original(*args, **kwargs)
            # An asynchronous one may still be under way
            guarded(em, self._after, fields, None if result is not None else tensor)
            return result

        return hidden(collective)

    def _before(
        self, em: Emitter, fields: dict[str, Any], tensor: torch.Tensor | None, group: Any
    ) -> None:
        name = "world" if group is None else str(getattr(group, "group_name", "group"))
        fields["group"] = name
        fields["number"] = self._numbers[name]
        self._numbers[name] += 1
        if tensor is not None:
            fields["shape"] = list(tensor.shape)
            fields["dtype"] = str(tensor.dtype).removeprefix("torch.")
            fields["before"] = _digest(tensor)

    def _after(self, em: Emitter, fields: dict[str, Any], tensor: torch.Tensor | None) -> None:
        if tensor is not None:
            fields["after"] = _digest(tensor)
        em.event("collective", fields)


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value
    return None


def _digest(tensor: torch.Tensor | None) -> str | None:
    return fingerprint(tensor) if tensor is not None and tensor.is_cpu else None
