"""Collectives, process groups and DDP. Sets the rank if no launcher has set it."""

from __future__ import annotations

import functools
import os
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from traincheck.collect.instruments._wrap import span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import named_tensors
from traincheck.collect.tensors.summarize import dotted, summarize
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.handlers import give_back
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import DDP_HOOK, DDP_INIT, JOIN

COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier", "monitored_barrier", "send", "recv", "all_gather_object", "broadcast_object_list",
)  # fmt: skip
# How DistributedDataParallel broadcasts buffers, at the beginning of a forward
_SYNC_BUFFERS = "_sync_buffers"
_SPLIT = frozenset({"all_to_all_single"})
# Argument that names the peer
_PEER = {"send": "dst", "recv": "src"}
_Group: Any = getattr(dist, "ProcessGroup", ())
# Operations with sizes of parts: shapes may differ between ranks
_SIZES = ("input_split_sizes", "output_split_sizes")


class Distributed(Instrument):
    """Numbers the collectives of each group, so that ranks can be compared call by call."""

    name = "distributed"
    always = True

    def install(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._names: dict[tuple[int, torch.Size], tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._named_at: tuple[int, int] | None = None
        if not dist.is_available():
            return
        if int(os.environ.get("WORLD_SIZE") or 1) > 1:
            self._compare_ranks()
        begins = Around(after=self._begun, always=True)
        self.listen(self.session.moments.at(dist, "init_process_group"), begins)
        needs = self.session.needs
        self._digests = needs is None or needs.exact or "collective@ranks" in needs.states
        if needs is None or "collective" in needs.kinds:
            for name in COLLECTIVES:
                if hasattr(dist, name):
                    self.replace(dist, name, functools.partial(self._wrap_collective, op=name))
            ddp = torch.nn.parallel.DistributedDataParallel
            if hasattr(ddp, _SYNC_BUFFERS):
                sync = functools.partial(self._wrap_collective, op="broadcast_buffers")
                self.replace(ddp, _SYNC_BUFFERS, sync)
        if self.wants_call(DDP_INIT):
            self.replace(torch.nn.parallel.DistributedDataParallel, "__init__", self._wrap_ddp)
        if self.wants_call(DDP_HOOK):
            ddp = torch.nn.parallel.DistributedDataParallel
            self.replace(ddp, "register_comm_hook", self._wrap_hook)
        if self.wants_call(JOIN):
            from torch.distributed.algorithms.join import Join  # only where ranks are

            self.replace(Join, "__init__", self._wrap_join)

    def _compare_ranks(self) -> None:
        self.session.tracker.compare_ranks()
        self.session.stats.arguments.compares_ranks = True

    def _begun(self, _: None, args: Args, kwargs: Named, result: Any) -> None:
        """There is a process group."""
        session = self.session
        session.set_rank(dist.get_rank())
        world_size = dist.get_world_size()
        if world_size > 1:
            self._compare_ranks()
        em = session.local.em or session.emitter()
        data = {"rank": dist.get_rank(), "world_size": world_size}
        em.event("mark", {"text": Marks.PROCESS_GROUP, "data": data})

    def _wrap_ddp(self, original: Callable[..., None]) -> Callable[..., None]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            named = {
                name: summarize(value)
                for name, value in kwargs.items()
                if isinstance(value, (bool, int, str))
            }
            path = self._exchanged(em, args[0], named)
            return {"api": DDP_INIT, "module": path, "args": named, "where": where()}

        return span_wrapper(original, self.session, describe)

    def _exchanged(self, em: Emitter, wrapper: Any, named: dict[str, Any]) -> str:
        """Add the path of the model whose gradients a DDP wrapper exchanges."""
        tracker = self.session.tracker
        path, root = tracker.modules.find(wrapper)
        tracker.track(em, root)
        ignored = set(getattr(wrapper, "parameters_to_ignore", ()))
        inner = list(named_tensors(wrapper.module))
        exchanged = [p for name, p in inner if p.requires_grad and name not in ignored]
        named["parameters"] = [tracker.name_of(p) for p in exchanged]
        named["ids"] = [tracker.identities.of(p) for p in exchanged]
        named["ignored"] = [tracker.name_of(p) for name, p in inner if name in ignored]
        group = getattr(wrapper, "process_group", None)
        named["group_size"] = None if group is None else group.size()
        return path

    def _wrap_hook(self, original: Callable[..., None]) -> Callable[..., None]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            hook = next(iter((*args[2:], *kwargs.values())), None)
            named = {"hook": dotted(hook if hasattr(hook, "__qualname__") else type(hook))}
            return {"api": DDP_HOOK, "args": named, "where": where()}

        return span_wrapper(original, self.session, describe)

    def _wrap_join(self, original: Callable[..., None]) -> Callable[..., None]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            named = {**dict(zip(("joinables", "enable"), args[1:])), **kwargs}
            enabled = {"enable": bool(named.get("enable", True))}
            return {"api": JOIN, "args": enabled, "where": where()}

        return span_wrapper(original, self.session, describe)

    def _wrap_collective(self, original: Callable[..., Any], op: str) -> Callable[..., Any]:
        session = self.session

        def collective(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not session.recording.on:
                return original(*args, **kwargs)
            em = session.local.em or session.emitter()
            if em.busy:
                return original(*args, **kwargs)
            fields: dict[str, Any] = {"op": op}
            tensor = _first_tensor(args, kwargs)
            group = getattr(args[0], "process_group", None) if args else None
            group = (
                group
                or kwargs.get("group")
                or next((a for a in args if isinstance(a, _Group)), None)
            )
            if any(kwargs.get(name) for name in _SIZES) or (op in _SPLIT and args[2:]):
                fields["uneven"] = True
            if op in _PEER:
                fields["peer"] = _peer(op, args, kwargs)
            guarded(em, self._before, em, fields, tensor, group)
            guarded(em, self._entered, em, fields)
            result = None
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                tensor = None  # it was entered: this may show what others wait for
                fields["raised"] = type(error).__name__
                raise
            finally:
                if hasattr(result, "wait"):  # it may still run
                    tensor, fields["pending"] = None, True
                guarded(em, self._after, em, fields, tensor)
            return result

        return hidden(collective)

    def _before(
        self, em: Emitter, fields: dict[str, Any], tensor: torch.Tensor | None, group: Any
    ) -> None:
        name = "world"
        if group is not None and group is not dist.group.WORLD:  # disjoint groups may share a name
            members = ",".join(map(str, dist.get_process_group_ranks(group)))
            name = f"{getattr(group, 'group_name', 'group')} of ranks {members}"
        if fields["op"] not in COLLECTIVES:  # counted apart from those of the program
            name = f"buffers in {name}"
        fields["group"] = name
        fields["where"] = where()
        fields["number"] = self._numbers[name]
        self._numbers[name] += 1
        if tensor is not None:
            fields["shape"] = list(tensor.shape)
            fields["dtype"] = str(tensor.dtype).removeprefix("torch.")
            if self._digests and tensor.is_cpu:
                fields["before"] = fingerprint(tensor)
            variable = self._name_of(tensor)
            if variable is not None:
                fields["variable"] = variable

    def _entered(self, em: Emitter, fields: dict[str, Any]) -> None:
        """Record that a collective was entered: the process may hang or die in it."""
        em.event("mark", {"text": Marks.COLLECTIVE_ENTERED, "data": fields})
        em.flush()

    def _after(self, em: Emitter, fields: dict[str, Any], tensor: torch.Tensor | None) -> None:
        if tensor is not None and self._digests and tensor.is_cpu:
            fields["after"] = fingerprint(tensor)
        em.event("collective", fields)
        em.flush()  # else it would seem to wait inside

    def _name_of(self, tensor: torch.Tensor) -> str | None:
        """The parameter whose data or gradient a tensor is. Names are collected once a backward."""
        steps, tracker = self.session.steps, self.session.tracker
        now = (steps.step, steps.counters["backward"])
        if now != self._named_at:
            self._named_at = now
            self._names = {
                address: (name, weakref.ref(parameter))
                for name, parameter in tracker.live_parameters()
                for thing in (parameter, parameter.grad)
                if (address := _address(thing)) is not None
            }
        address = _address(tensor)
        found = None if address is None else self._names.get(address)
        parameter = None if found is None else found[1]()
        if found is None or parameter is None:
            return None
        # Its gradient may have been replaced since, and another tensor may have that address
        is_still = address in (_address(parameter), _address(parameter.grad))
        return found[0] if is_still else None


def _address(tensor: torch.Tensor | None) -> tuple[int, torch.Size] | None:
    """The address that a tensor shares with its ``.data``; None for one without memory."""
    try:
        start = 0 if tensor is None else tensor.data_ptr()
    except (RuntimeError, TypeError) as error:
        give_back(error)
        return None
    return (start, tensor.shape) if tensor is not None and start else None


def _peer(op: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int | None:
    """Rank of the peer, if it is given as a rank; a tag may change the order of arrival."""
    other = args[1] if len(args) > 1 else kwargs.get(_PEER[op])
    is_plain = type(other) is int and len(args) <= 2 and not kwargs.get("tag")  # noqa: PLR2004
    return other if is_plain else None


def _first_tensor(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value
    return None
