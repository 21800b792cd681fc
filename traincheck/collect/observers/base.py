"""What every observer has: what it produces, where it stands, and whether anything needs it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.observations.base import Observation

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder


class Hook(Enum):
    """Where an instrument calls an observer of it.

    The first two are served for all observers of the table. At the others the instrument calls each
    observer by name, with what that one needs: they are on the hot path.
    """

    BEFORE_BACKWARD = "before backward"  # `Observer.before`
    ON_INSTALL = "on install"  # `Observer.install` alone, which replaces functions or adds hooks
    FORWARD = "forward"
    GRADIENT_SCAN = "gradient scan"
    OPTIMIZER_STEP = "optimizer step"
    LOAD = "load"
    WORKER_START = "worker start"


class Patcher(Protocol):
    """An instrument, as observers see it that replace functions."""

    def replace(
        self,
        holder: Any,
        attribute: str,
        make: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        """Set ``holder.attribute`` to ``make(original)``, until the instrument is removed."""


class Observer:
    """Looks at one thing of a program and writes what it finds as observations. No verdict.

    produces: the types that it writes; all are recorded by the same instrument. hook: where this
    instrument calls it. is_wanted: whether a check needs what it produces.
    """

    produces: ClassVar[tuple[type[Observation], ...]]
    hook: ClassVar[Hook]

    def __init__(self, session: Recorder) -> None:
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
        """Its instrument is in place. What ``patcher`` replaces is put back with it."""

    def remove(self) -> None:
        """Its instrument is taken out."""
