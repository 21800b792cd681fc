"""The calls that show whether a claim holds: of a step, inside a call, or between two calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from traincheck.readings.steps import landmark_of
from traincheck.relations.phrasing import STEP, format_args
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

# These may be many steps apart, so a single step does not show their order.
_SELDOM = frozenset(
    {Families.TRAIN, Families.EVAL, Families.SCHEDULER_STEP, Families.SCALER_UPDATE}
)
_MODES = frozenset({Families.TRAIN, Families.EVAL})
_STEP_COUNTS = frozenset({"count"})  # relations that claim how often something is called


@dataclass(frozen=True, slots=True, kw_only=True)
class CallWindow:
    """Which calls to show. At most one of ``outer`` and ``after`` is given; neither means a step.

    Attributes:
        outer: API of the call whose inner calls are shown.
        after: landmark at which the window begins.
        needed: landmark that it must contain.
        before: landmark at which it ends.
        inner: API that must be called inside ``outer``.
        args: with these arguments.
    """

    outer: str = ""
    after: str = ""
    needed: str = ""
    before: str = ""
    inner: str = ""
    args: tuple[tuple[str, bool | int | str], ...] = ()

    @property
    def key(self) -> str:
        """Equal for windows that show the same calls with the same arguments."""
        if self.outer:
            return " ".join(("inside", self.outer, *(name for name, _ in self.args)))
        if self.after:
            return f"between {self.after} {self.needed} {self.before}"
        return STEP

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arguments to show."""
        return tuple(name for name, _ in self.args)

    @property
    def argument_text(self) -> str:
        """The arguments, as the note of a line begins."""
        return format_args(dict(self.args)) if self.args else ""


def window_of(claim: Hypothesis) -> CallWindow | None:
    """The window that shows whether a claim holds; None where calls do not show it."""
    params = claim.params
    outer = params.get("outer")
    if "role" in params:
        return None
    if {"after", "needs", "before"} <= params.keys():
        triple = (params["after"], params["needs"], params["before"])
        if _SELDOM.isdisjoint(triple):
            return CallWindow()
        return CallWindow(after=triple[0], needed=triple[1], before=triple[2])
    if outer == STEP or claim.relation in _STEP_COUNTS:
        return CallWindow()
    if isinstance(outer, str) and "inner" in params:
        args = params.get("args") or {}
        plain = {k: v for k, v in args.items() if isinstance(v, (bool, int, str))}
        return CallWindow(outer=outer, inner=params["inner"], args=tuple(sorted(plain.items())))
    return None


def calls_of_step(calls: Iterable[CallEvent], step: int) -> list[CallEvent]:
    """The calls of a step, without evaluation after it and initialization before the first."""
    return [
        call
        for call in calls
        if call.step == step
        and call.stage != "eval"
        and call.api not in _MODES
        and not (call.stage == "init" and call.api.startswith("torch.nn.init."))
    ]


def calls_inside(calls: deque[CallEvent], outer: CallEvent) -> list[CallEvent]:
    """A call and the calls inside it. ``calls`` are in order of their ends, inner ones first."""
    start, stream = outer.start_ns, outer.stream
    found = []
    for call in reversed(calls):
        if call.stream == stream and start <= call.start_ns and call.time_ns <= outer.time_ns:
            found.append(call)
        elif call.time_ns < start:
            break
    return found


def calls_between(calls: deque[CallEvent], first: CallEvent, last: CallEvent) -> list[CallEvent]:
    """The calls from one to another, both included."""
    return [c for c in calls if c.start_ns >= first.start_ns and c.time_ns <= last.time_ns]


def latest_calls(calls: deque[CallEvent], window: CallWindow) -> list[CallEvent]:
    """The calls of a window that ends with the last of ``calls``; none if it is not complete."""
    last = calls[-1]
    if landmark_of(last) != window.before:
        return []
    is_met = False
    backwards = reversed(calls)
    next(backwards)
    for call in backwards:
        landmark = landmark_of(call)
        is_met |= landmark == window.needed
        if landmark == window.after:
            return calls_between(calls, call, last) if is_met else []
        if landmark == window.before:
            return []
    return []
