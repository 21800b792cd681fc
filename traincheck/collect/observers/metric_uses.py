"""Metrics of torchmetrics: the phases of their updates since the last reset.

Updates and resets are counted in all steps, at about a microsecond each. Nothing is read from a
metric, and none is kept alive.
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.import_hook import ImportHook
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.collect.trace_writer.guard import observe
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.observations.data import MetricUse

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_MODULE = "torchmetrics.metric"
_MOST_METRICS = 256
_MOST_WRITTEN = 3  # observations of one metric

_Function = Callable[..., Any]


@dataclass(slots=True)
class _Metric:
    """A metric since its last reset.

    counts, lines: of updates, by stage. computed: steps of evaluations that were computed.
    """

    ref: weakref.ref[Any]
    name: str
    counts: dict[str, int] = field(default_factory=dict)
    lines: dict[str, str | None] = field(default_factory=dict)
    computed: set[int | None] = field(default_factory=set)
    written: int = 0


class MetricObserver(Observer):
    """Wraps the methods of torchmetrics' base class, once it has been imported."""

    produces: ClassVar = (MetricUse,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._metrics: dict[int, _Metric] = {}
        self._count = 0
        self._inside = False  # forward() resets and updates the metric itself

    def install(self, patcher: Patcher) -> None:
        """Wrap the base class now, or when it is imported."""
        self._patcher = patcher
        self._imports = ImportHook(_MODULE.__eq__, self._wrap_class, self._session.fault)
        self._imports.install()
        if _MODULE in sys.modules:
            self._wrap_class(sys.modules[_MODULE])

    def remove(self) -> None:
        """Stop waiting for the import."""
        self._imports.remove()
        self._metrics.clear()

    def _wrap_class(self, module: types.ModuleType) -> None:
        cls = module.Metric
        self._patcher.replace(cls, "_wrap_update", lambda f: self._maker(f, self._updated))
        self._patcher.replace(cls, "_wrap_compute", lambda f: self._maker(f, self._computed))
        self._patcher.replace(cls, "forward", self._wrap_forward)
        self._patcher.replace(cls, "reset", self._wrap_reset)

    def _maker(self, original: _Function, note: Callable[[Any], None]) -> _Function:
        """A method that wraps a method of one metric: the wrapper also notes each call."""

        def make(metric: Any, function: _Function) -> _Function:
            inner, ref = original(metric, function), weakref.ref(metric)

            @functools.wraps(inner)
            def method(*args: Any, **kwargs: Any) -> Any:
                result = inner(*args, **kwargs)
                self._note(note, ref())
                return result

            return hidden(method)

        return hidden(make)

    def _wrap_forward(self, original: _Function) -> _Function:
        def forward(metric: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or not self._session.recording.on:
                return original(metric, *args, **kwargs)
            self._inside = True
            try:
                result = original(metric, *args, **kwargs)
            finally:
                self._inside = False
            self._note(self._updated, metric)
            return result

        return hidden(forward)

    def _wrap_reset(self, original: _Function) -> _Function:
        def reset(metric: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(metric, *args, **kwargs)
            known = None if self._inside else self._metrics.get(id(metric))
            if known is not None:
                known.counts, known.lines, known.computed = {}, {}, set()
            return result

        return hidden(reset)

    def _note(self, note: Callable[[Any], None], metric: Any) -> None:
        session = self._session
        if metric is not None and not (self._inside or session.is_worker):
            observe(session, note, metric)

    def _known(self, metric: Any) -> _Metric | None:
        known = self._metrics.get(id(metric))
        if known is None or known.ref() is not metric:  # reused address
            if len(self._metrics) >= _MOST_METRICS:
                alive = {key: one for key, one in self._metrics.items() if one.ref() is not None}
                self._metrics = alive
            if len(self._metrics) >= _MOST_METRICS:
                return None
            known = _Metric(weakref.ref(metric), f"metric{self._count}")
            self._metrics[id(metric)] = known
            self._count += 1
        return known

    def _updated(self, metric: Any) -> None:
        clock = self._session.clock
        known = self._known(metric)
        if known is None:
            return
        stage = clock.stage
        count = known.counts[stage] = known.counts.get(stage, 0) + 1
        if count == 1:
            known.lines[stage] = where()

    def _computed(self, metric: Any) -> None:
        known = self._known(metric)
        if known is None or not known.counts:
            return
        training, evaluation = known.counts.get("train", 0), known.counts.get(EVAL_STAGE, 0)
        step = self._session.clock.step
        earlier = len(known.computed - {step})
        if evaluation:
            known.computed.add(step)
        is_told = known.written and not (training and evaluation) and not earlier
        if known.written >= _MOST_WRITTEN or is_told:
            return
        known.written += 1
        lines = known.lines.get("train"), known.lines.get(EVAL_STAGE), where()
        use = known.name, dotted(type(metric)), training, evaluation, earlier
        em = self._session.local.em or self._session.emitter()
        write(em, MetricUse(*use, *lines))
