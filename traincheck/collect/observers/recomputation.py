"""Segments of `torch.utils.checkpoint`: whether their second pass computes what the first did.

Some elements of the tensors that autograd saves are compared, in the order of saving, and of the
outputs if the second pass reaches them: without ``use_reentrant`` it stops early. No tensor is kept
alive; small copies are, from the first pass to the end of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import starmap
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import checkpoint

from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.reading import FLOATS, HALF, PLAIN_TYPES, is_countable, modes
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.gradients import DifferingSegment, Recomputation

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_SEGMENTS = 16  # of a step that are compared
_SCHEDULE = Schedule(first=4, every=100)
_MOST_TENSORS = 64  # of a pass
_ELEMENTS = 256  # of a tensor
_MOST_FOUND = 8
# Kernels may differ without grad, or add in another order. Then the last digits differ, and
# sometimes an element near a threshold. Another mask or state changes far more.
_ROUNDING, _ROUNDING_OF_HALF = 1e-2, 1e-1
_FEW = 0.02

_Function = Callable[..., Any]
_top_hooks: Callable[[bool], Any] = getattr(
    torch._C._autograd, "_top_saved_tensors_default_hooks", lambda _: None
)
_push, _pop = (
    torch._C._autograd._push_saved_tensors_default_hooks,
    torch._C._autograd._pop_saved_tensors_default_hooks,
)


class _Sample(NamedTuple):
    """Some elements of a tensor, and the identity of its memory."""

    values: torch.Tensor
    storage: StorageWeakRef


class _Pass:
    """The samples of one pass through a segment so far."""

    def __init__(self) -> None:
        self.saved: list[_Sample | None] = []
        self.outputs: list[_Sample | None] = []

    def pairs(self, again: _Pass) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The samples that must be equal. Memory that both passes read is not computed."""
        both = [*zip(self.saved, again.saved), *zip(self.outputs, again.outputs)]
        return [
            (first.values, second.values)
            for first, second in both
            if first is not None
            and second is not None
            and first.storage.cdata != second.storage.cdata
            and first.values.shape == second.values.shape
            and first.values.dtype is second.values.dtype
        ]


class _Segment(NamedTuple):
    """The arguments of one call of ``checkpoint``."""

    function: str
    where: str | None
    reentrant: bool
    preserves_rng: bool


class RecomputationObserver(Observer):
    """Wraps the function passed to `torch.utils.checkpoint.checkpoint`, in few steps."""

    produces: ClassVar = (Recomputation,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._use = UseSchedule(_SEGMENTS, _SCHEDULE)
        self._compared: list[tuple[_Segment, _Pass, _Pass]] = []

    def install(self, patcher: Patcher) -> None:
        """Wrap the function, and write at the ends of steps."""
        patcher.replace(checkpoint, "checkpoint", self._wrap)
        self.listen(self._session.hooks.at_step_end, self._tell)

    def _wrap(self, original: _Function) -> _Function:
        def checkpoint(*args: Any, **kwargs: Any) -> Any:
            if args and self._is_due(kwargs):
                try:
                    args = (self._followed(args[0], kwargs), *args[1:])
                except Exception as error:  # training must go on whatever we got wrong
                    self._session.fault(self._followed, error)
            return original(*args, **kwargs)

        return hidden(checkpoint)

    def _is_due(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether to compare. Not if the program itself chooses the recomputed parts."""
        session = self._session
        return (
            session.recording.on
            and not is_traced()
            and torch.is_grad_enabled()
            and "context_fn" not in kwargs
            and not modes()
            and self._use.is_due(session.clock.step)
        )

    def _followed(self, function: _Function, kwargs: Mapping[str, Any]) -> _Function:
        """A wrapper of the function, two calls of which are observed."""
        segment = _Segment(
            _name(function),
            where(),
            reentrant=kwargs.get("use_reentrant") is not False,
            preserves_rng=kwargs.get("preserve_rng_state", True) is not False,
        )
        passes: list[_Pass] = []

        def run(*args: Any, **kwargs: Any) -> Any:
            if len(passes) > 1:  # as with retain_graph
                return function(*args, **kwargs)
            here = _Pass()
            passes.append(here)
            is_pushed = self._look_at_saved(here.saved)
            try:
                result = function(*args, **kwargs)
            finally:
                if is_pushed:
                    _pop()
                if len(passes) > 1:
                    self._compared.append((segment, passes[0], here))
            for value in result if type(result) in (tuple, list) else (result,):
                self._look(here.outputs, value)
            return result

        return hidden(run)

    def _look_at_saved(self, samples: list[_Sample | None]) -> bool:
        """Take samples of the tensors that autograd saves, before ``checkpoint`` gets them."""
        try:
            top = _top_hooks(False) if torch.is_grad_enabled() else None
            if top is None:  # with use_reentrant nothing is saved in the first pass
                return False
            pack_of_checkpoint, unpack = top

            def pack(tensor: torch.Tensor) -> Any:
                self._look(samples, tensor)
                return pack_of_checkpoint(tensor)

            _push(hidden(pack), unpack)
        except Exception as error:  # training must go on whatever we got wrong
            self._session.fault(self._look_at_saved, error)
            return False
        return True

    def _look(self, samples: list[_Sample | None], value: Any) -> None:
        if len(samples) >= _MOST_TENSORS:
            return
        em = self._session.local.em or self._session.emitter()
        guarded(em, self._take, samples, value)

    def _take(self, samples: list[_Sample | None], value: Any) -> None:
        samples.append(_sample(value))

    def _tell(self, em: Emitter) -> None:
        """A step ends: devices have finished its recomputation."""
        compared, self._compared = self._compared, []
        if not compared:
            return
        shares: dict[_Segment, float] = {}
        count = 0
        for segment, first, second in compared:
            found = [*starmap(_share, first.pairs(second))]
            count += bool(found)
            shares[segment] = max((shares.get(segment, 0.0), *found))
        if not count:  # this torch shows none of the saved tensors, and the outputs came late
            return
        differing = [
            DifferingSegment(*segment, share=share)
            for segment, share in shares.items()
            if share > _FEW
        ]
        write(em, Recomputation(count, tuple(differing[:_MOST_FOUND])))


def _name(function: _Function) -> str:
    """The class of a module, or the name of another function."""
    owner = getattr(function, "__self__", function)  # of a method
    if isinstance(owner, torch.nn.Module):
        return type(owner).__qualname__
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _sample(value: Any) -> _Sample | None:
    """Some elements of a tensor, evenly spread if it is contiguous; None if it cannot be read."""
    if type(value) not in PLAIN_TYPES or value.dtype is torch.uint8:  # as a kernel's memory is
        return None
    tensor = value.view(torch.uint8) if value.dtype is torch.bool else value
    if not is_countable(tensor):
        return None
    tensor = tensor.detach()
    storage = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    if tensor.is_contiguous():
        tensor = tensor.view(-1)[:: max(1, tensor.numel() // _ELEMENTS)]
    while tensor.dim() > 1:
        tensor = tensor[0]
    return _Sample(tensor.reshape(-1)[:_ELEMENTS].clone(), storage)


def _share(first: torch.Tensor, second: torch.Tensor) -> float:
    """Share of elements that differ by more than rounding."""
    mine, theirs = host(first).double(), host(second).double()
    if first.dtype not in FLOATS:
        return float((mine != theirs).double().mean())
    rounding = _ROUNDING_OF_HALF if first.dtype in HALF else _ROUNDING
    sizes = mine.abs().maximum(theirs.abs()).nan_to_num(0.0, 0.0)
    is_near = (mine - theirs).abs() <= rounding * (sizes + sizes.mean())
    is_same = is_near | (mine == theirs) | (mine.isnan() & theirs.isnan())
    return 1 - float(is_same.double().mean())
