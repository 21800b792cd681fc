"""The base of observers: their observations, their hook, and whether a check needs them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from traincheck.collect.listeners import Listener
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.observations.base import Observation

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder


class Hook(Enum):
    """The moment at which an instrument calls its observer.

    The first two are called for all observers of the table. At the others the instrument calls each
    observer by name, with specific arguments: they are on the hot path.
    """

    BEFORE_BACKWARD = "before backward"  # `Observer.before`
    ON_INSTALL = "on install"  # `Observer.install` alone, which replaces functions or adds hooks
    FORWARD = "forward"
    GRADIENT_SCAN = "gradient scan"
    OPTIMIZER_STEP = "optimizer step"
    SCHEDULER_STEP = "scheduler step"
    LOAD = "load"
    WORKER_START = "worker start"


class Patcher(Protocol):
    """An instrument, as seen by observers that replace functions."""

    def replace(
        self,
        holder: Any,
        attribute: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """Set ``holder.attribute`` to ``make(original)``, until the instrument is removed."""


class Observer(Listener):
    """Observes one aspect of a program and writes observations.

    produces: the types that it writes; all are recorded by the same instrument. hook: the moment at
    which this instrument calls it. is_wanted: whether a check needs its observations.
    """

    produces: ClassVar[tuple[type[Observation], ...]]
    hook: ClassVar[Hook]

    def __init__(self, session: Recorder) -> None:
        super().__init__()
        self._session = session
        self.is_wanted = any(
            not kind.need or session.tracker.wants(*kind.need.split("@")) for kind in self.produces
        )

    @classmethod
    def instrument(cls) -> str:
        """Name of the instrument that it depends on."""
        return cls.produces[0].instrument

    def before(self, em: Emitter, args: tuple[Any, ...]) -> None:
        """A backward pass begins, called with ``args``."""

    def install(self, patcher: Patcher) -> None:
        """Its instrument is installed. Replacements of ``patcher`` are restored with it."""

    def remove(self) -> None:
        """Its instrument is removed. It listens no more."""
