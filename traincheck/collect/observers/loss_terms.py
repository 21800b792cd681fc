"""The terms of a loss, in a few steps: their weights, constants, and sums that are not used.

In a step that is armed, results of loss functions are noted, and additions of scalars are seen
(`TensorMethods`). Nodes are known by their numbers, so that no graph is kept alive. A hook of a
node shows that a backward pass reached it, and its gradient, which is the weight of the term.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from sys import _getframe
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from traincheck.collect.moments.moment import Args, Named
from traincheck.collect.moments.tensor_methods import TensorMethods
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.label_gradients import LabelGradients
from traincheck.collect.observers.loss_ledger import Constant, LossLedger, node_of
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.loss_graph import IS_TOLD, Input, ScalarGraph, key_of
from traincheck.collect.tensors.reading import modes, sequence_of, unseen
from traincheck.collect.trace_writer.call_site import outside
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import observe
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.losses import LabelPositions, LossSums, LossTerms

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_SCHEDULE = Schedule(first=6, every=200)
_MOST_ROOTS = 4  # of a step
_FREE, _ARMED = "free", "armed"

_F = torch.nn.functional
LOSSES = tuple(
    name
    for name in vars(_F)
    if name.endswith(("_loss", "cross_entropy", "_with_logits", "kl_div"))
    and not name.startswith("_")
    and callable(getattr(_F, name))
)
_ADDING = {
    "__add__": 1.0, "__iadd__": 1.0, "__isub__": -1.0, "__radd__": 1.0, "__rsub__": -1.0,
    "__sub__": -1.0, "add": 1.0, "sub": -1.0,
}  # fmt: skip
_SCALING = (
    "__mul__", "__neg__", "__rmul__", "__truediv__", "detach", "div", "mean", "mul", "sum",
)  # fmt: skip
_IS_KNOWN = IS_TOLD and hasattr(torch._C, "_current_graph_task_id")


class LossTermObserver(Observer):
    """Observes results of loss functions, sums of scalars, and backward passes."""

    produces: ClassVar = (LossTerms, LossSums, LabelPositions)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self.is_wanted &= _IS_KNOWN
        self._use = UseSchedule(1, _SCHEDULE)
        self._methods = TensorMethods((*_ADDING, *_SCALING), self._seen, session.fault)
        self._ledger = LossLedger(session.fault)
        self._labels = LabelGradients(session.fault)
        self._thread: int | None = None  # that trains; None while not armed
        # One of two keys, which one thread takes at a time. Several threads may end steps.
        self._turn = {_FREE: True}

    def install(self, patcher: Patcher) -> None:
        """Listen to loss functions and backward passes, and arm at the ends of steps."""
        hooks = self._session.hooks
        for name in LOSSES:
            hooks.around[f"{_F.__name__}.{name}"] = self._loss(name)
        for name in (*_ADDING, *_SCALING):  # where an instrument replaces them, too
            hooks.around[f"torch.Tensor.{name}"] = partial(self._methods.around, name)
        self.listen(hooks.before_backward, self._before_backward)
        self.listen(hooks.after_batch, self._fetched)
        self.listen(hooks.at_step_end, self._end)
        self.listen(hooks.at_close, self._write)

    def remove(self) -> None:
        """Stop observing."""
        self._disarm()

    # -- in the step

    def _loss(self, name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def loss(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if self._thread is not None:
                    self._guarded(self._noted, name, result)
                return result

            return hidden(loss)

        return make

    def _before_backward(self, args: Args, kwargs: Named) -> None:
        if self._thread is not None:
            self._guarded(self._begins, args[0] if args else kwargs.get("tensors"))

    def _fetched(self, _iterator: Any, batch: Any) -> None:
        """A batch was fetched. The instrument guards this call."""
        if self._thread == get_ident() and not modes():
            self._labels.batch(batch)

    def _seen(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        """A method of tensors was called. Most results are no scalars and of no loss function."""
        if self._thread != get_ident():
            return
        with unseen():
            if result.dim() and not self._ledger.constants:
                return
        self._guarded(self._calculated, name, args, result)

    def _guarded(self, action: Callable[..., None], *args: Any) -> None:
        session = self._session
        if self._thread != get_ident() or is_traced() or state._is_compiling_flag or modes():
            return
        observe(session, action, *args)

    def _noted(self, name: str, result: Any) -> None:
        if type(result) is not torch.Tensor:
            return
        where = outside(_getframe(1)) or ""
        if result.grad_fn is not None:
            self._ledger.functions[key_of(result.grad_fn)] = name, where
        elif torch.is_grad_enabled() or result.dim() == 0:
            self._ledger.note_constant(result, (Constant(name, where, 1.0),))
        if result.dim() == 0:
            self._ledger.note_value(name, where, result)

    def _calculated(self, name: str, args: tuple[Any, ...], result: torch.Tensor) -> None:
        sign = _ADDING.get(name)
        if node_of(result) is None:
            self._ledger.derive(name, sign, args, result)
        elif sign is not None and result.dim() == 0:
            self._ledger.add(args[0], args[1:2], sign, result, outside(_getframe(1)) or "")

    def _begins(self, given: Any) -> None:
        tensors = sequence_of(given) or (given,)
        self._ledger.open = None
        for tensor in tensors:
            if type(tensor) is not torch.Tensor or tensor.grad_fn is None or tensor.numel() != 1:
                continue
            if len(self._ledger.roots) < _MOST_ROOTS:
                root = Input(tensor.grad_fn, tensor.output_nr, ())
                graph = ScalarGraph(root, self._ledger.functions)
                self._labels.begin(tensor.grad_fn)
                if graph.is_whole:
                    self._ledger.begin(graph, tensor.grad_fn)

    # -- at its end

    def _end(self, em: Emitter) -> None:
        """A recorded step ends: write what was seen, and arm the next step."""
        self._write(em)
        step = self._session.clock.step
        if step is None or self._session.is_worker:
            return
        if self._session.sampling.foresees(step + 1) and self._use.is_due(step):
            self._arm()
        else:
            self._labels.clear()

    def _write(self, em: Emitter) -> None:
        sums = self._ledger.sums()
        if sums is not None:
            write(em, sums)
        if self._turn.pop(_ARMED, None) is None:
            return
        self._thread = None
        self._methods.remove()
        try:
            for terms in self._ledger.terms():
                write(em, terms)
            positions = self._labels.end()
            if positions is not None:
                write(em, positions)
        finally:
            self._ledger.end(self._session.clock.step)
            self._turn[_FREE] = True

    def _arm(self) -> None:
        if self._turn.pop(_FREE, None) is not None:
            self._methods.install()
            self._thread = get_ident()
            self._turn[_ARMED] = True

    def _disarm(self) -> None:
        self._turn.clear()
        self._thread = None
        self._methods.remove()
        self._ledger.end(None)
