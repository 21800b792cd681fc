"""Backward passes, and scans of gradients after them. Grad mode is part of every call's context."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from threading import get_ident
from typing import Any

import torch

from traincheck.collect.context import Recorder, diverged
from traincheck.collect.instruments._wrap import (
    CallTemplates,
    function_wrapper,
    span_wrapper,
)
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.observers.base import Hook
from traincheck.collect.observers.outside_updates import StaleGradientObserver
from traincheck.collect.templates import BACKWARD
from traincheck.collect.tensors.summarize import encode
from traincheck.collect.trace_writer.call_site import place, where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded, tell
from traincheck.collect.trace_writer.recording_state import is_traced, state
from traincheck.schema.marks import Marks
from traincheck.schema.torch_api import GRAD, Families


class Autograd(Instrument):
    """``Tensor.backward`` calls ``torch.autograd.backward`` by name, so one wrapper is enough."""

    name = "autograd"
    always = True

    def install(self) -> None:
        self._looks_at_gradients = self.session.tracker.wants("gradient", "backward")
        compared = self.session.compared
        self._loss = _encoded if compared is None else compared.loss
        self._graph_looks = [observer.before for observer in self.observers(Hook.BEFORE_BACKWARD)]
        self._kept = StaleGradientObserver(self.session)
        self._glance = self.session.tracker.scans.scan_gradients_before_backward
        self.replace(torch.autograd, "backward", self._wrap_backward)
        if self.wants_call(GRAD):
            names = ("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph")
            templates = CallTemplates(GRAD, names, {}, self)
            self.replace(
                torch.autograd, "grad", lambda f: function_wrapper(f, templates, self.session)
            )

    def _wrap_backward(self, original: Callable[..., None]) -> Callable[..., None]:
        session = self.session
        if session.hooks.before_backward.all:
            original = _with_listeners(original, session)
        recorded = span_wrapper(
            original,
            self.session,
            self._describe,
            before=self._before if self._looks_at_gradients or self._graph_looks else None,
            after=self._after if self._looks_at_gradients else None,
            looks=True,
            count=self._count,
        )
        going: set[int] = set()
        steps = session.steps

        def backward(*args: Any, **kwargs: Any) -> None:
            if is_traced() or state._is_compiling_flag:
                original(*args, **kwargs)
                return
            if (expected := steps.expects()) is not None:
                if expected == get_ident():
                    original(*args, **kwargs)
                    return
                diverged(session)
            given = args[0] if args else kwargs.get("tensors")
            key = id(given[0] if type(given) in (list, tuple) and given else given)
            if key in going:  # a mode, or a subclass of tensors, has torch call it once more
                steps.mark_irregular()
                original(*args, **kwargs)
                return
            handles: list[Any] = []
            try:
                going.add(key)
                if session.stats.arguments.compares_ranks:
                    self._tell_entered(given, handles)
                recorded(*args, **kwargs)
            finally:
                going.discard(key)
                for handle in handles:
                    handle.remove()

        return hidden(backward)

    def _tell_entered(self, given: Any, handles: list[Any]) -> None:
        """Record that a backward pass begins: ranks exchange gradients in it and may hang."""
        session = self.session
        em = session.local.em or session.emitter()
        if session.recording.on and not em.busy:
            guarded(em, _enter, em, given, handles)

    def _count(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.session.tracker.trainers.register()  # also in unrecorded steps
        self.session.steps.backward(get_ident())

    def _before(self, em: Emitter, args: tuple[Any, ...]) -> None:
        for look_at_graph in self._graph_looks:
            look_at_graph(em, args)
        if self._looks_at_gradients:
            # The span that begins now; its changes follow it
            look = self._kept.glance if self.session.applied else self._glance
            look(em, em.next_span)

    def _after(
        self, em: Emitter, span: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        self.session.tracker.scans.scan_gradients(em, span, norms=True)

    def _describe(
        self, em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> bytes:
        is_usual = len(args) == len(_NAMES) and args[1] is args[2] is None and args[3] is False
        if is_usual and kwargs.get("inputs") is None:  # the form of `loss.backward()`
            return _USUAL % (self._loss(em, args[0]), place(sys._getframe(2)))
        given = [
            b'"%b":%b' % (n.encode(), self._loss(em, v) if n == _NAMES[0] else encode(v))
            for n, v in (*zip(_NAMES, args), *kwargs.items())
            if v is not None
        ]
        parts = (_HEAD, b",".join(given), place(sys._getframe(2)))
        return BACKWARD % parts


def _with_listeners(original: Callable[..., None], session: Recorder) -> Callable[..., None]:
    moment = session.hooks.before_backward

    def backward(*args: Any, **kwargs: Any) -> None:
        tell(session, moment, args, kwargs)
        original(*args, **kwargs)

    return hidden(backward)


def _encoded(em: Emitter, value: Any) -> bytes:
    return encode(value)


def _enter(em: Emitter, given: Any, handles: list[Any]) -> None:
    """Record the begin, and let torch tell when all nodes of the graph are computed.

    A callback of the graph runs then, before those that DistributedDataParallel adds later, which
    wait for other ranks.
    """
    tensor = given[0] if type(given) in (list, tuple) and given else given
    node = _node_of(tensor) if isinstance(tensor, torch.Tensor) else None
    data = {"where": where(), "tells": node is not None}
    em.event("mark", {"text": Marks.BACKWARD_ENTERED, "data": data})
    em.flush()
    if node is None:
        return

    def queue(*_: Any) -> None:
        try:
            _engine.queue_callback(computed)
        except Exception as error:  # training must go on whatever we got wrong
            em.session.fault(queue, error)

    def computed() -> None:
        try:
            em.event("mark", {"text": Marks.BACKWARD_COMPUTED})
            em.flush()
        except Exception as error:
            em.session.fault(computed, error)

    handles.append(node.register_prehook(queue))


_engine: Any = torch.autograd.Variable._execution_engine
_base: Any = torch._C.TensorBase
_node_of: Callable[[torch.Tensor], Any] = _base.grad_fn.__get__


_HEAD = b'"api":"%b"' % Families.BACKWARD.encode()
_NAMES = ("tensors", "grad_tensors", "retain_graph", "create_graph")
_USUAL = _HEAD + b',"args":{"tensors":%b,"create_graph":false},"where":%b'
