"""The changes within a step, and gradients that have faded.

Scans may be written late (on CUDA), but before the step ends. So read this at the ``step`` event.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from traincheck.readings import recorded
from traincheck.readings.step_facts import Forwards
from traincheck.readings.variables import Variable
from traincheck.schema.events import CallEvent, StateEvent, StepEvent
from traincheck.schema.observations.gradients import UnclearedGradients, WrittenGradients

_SHARE = 1e-3  # of the largest gradient; less is almost zero
_PRECISE = ("float32", "float64")  # others lose updates while there is still much to learn


class FadedGradients:
    """The last and the largest gradient norm of each parameter or other key."""

    def __init__(self) -> None:
        self._norms: dict[int | str, tuple[float, float]] = {}

    def enter(self, key: int | str, norm: float) -> None:
        self._norms[key] = norm, max(norm, self._norms.get(key, (norm, norm))[1])

    def forget(self, key: int | str) -> None:
        self._norms.pop(key, None)

    def is_faded(self, key: int | str, dtype: str) -> bool:
        """Whether small updates of a parameter of this dtype may now round to zero."""
        last, largest = self._norms.get(key, (0.0, 0.0))
        return last < _SHARE * largest and dtype in _PRECISE


# In the vocabulary of a run: it shows whether zero_grad is called
ADDED = "gradients that zero_grad clears, or that backward adds to"


class StepChanges:
    """The changes since the step began. Read it at the ``step`` event, then begin a new page."""

    def __init__(self) -> None:
        self.first_step: int | None = None  # the first one with a recorded end
        self.rates: Mapping[str, Any] = {}  # of the step before
        self.highest: dict[tuple[str, int], float] = {}  # rate of an optimizer's group so far
        self.gradients: set[str] = set()  # set and not known to be zero, now
        self.at_start: set[str] = set()  # gradients that existed when the step began
        self._fading = FadedGradients()
        self.turn(None)

    def turn(self, event: StepEvent | None) -> None:
        """Begin a new page after ``event``. After a gap, gradients are not known."""
        if event is not None:
            self._note_rates(event.lr)
            if self.first_step is None:
                self.first_step = event.step
            if not event.recorded:
                self.gradients.clear()
        self.at_start = set(self.gradients)
        self.reached: set[str] = set()  # gradients that came or changed
        self.changed: dict[str, set[str]] = defaultdict(set, gradient=self.reached)
        self.unknown: dict[str, set[str]] = defaultdict(set)
        self.cleared: set[str] = set()
        self.zero: set[str] = set()  # gradients that were all zero after a backward
        self.left: dict[str, int | None] = {}  # gradients that vanished: by which call
        self.after: dict[int, set[str]] = defaultdict(set)  # span -> changed or unknown

    def _note_rates(self, rates: Mapping[str, Any]) -> None:
        if rates is self.rates or rates == self.rates:
            return
        self.rates = rates
        for optimizer, known in rates.items():
            for group, rate in enumerate(known):
                if isinstance(rate, (int, float)):
                    key = optimizer, group
                    self.highest[key] = max(self.highest.get(key, 0.0), rate)

    def observe(self, event: StateEvent) -> None:
        """Enter a change."""
        change, role, name = event.change, event.role, event.name
        if role == "gradient":
            self._gradient(event, name, change)
            return
        if change == "content" or (change == "new" and role == "optimizer_state"):
            self.changed[role].add(name)
        elif change == "unknown":
            self.unknown[role].add(name)
        else:
            if role == "parameter" and change in ("replaced", "gone"):
                # Another object has the name: the old gradient does not belong to it
                self.gradients.discard(name)
                self.at_start.discard(name)
                self._fading.forget(name)
            return
        if event.after is not None:
            self.after[event.after].add(name)

    def _gradient(self, event: StateEvent, name: str, change: str) -> None:
        is_zero = event.summary is not None and event.summary.zero is True
        norm = recorded.norm(event)
        if norm:
            self._fading.enter(name, norm)
        if change == "cleared" or (change == "content" and is_zero):
            self.cleared.add(name)
            self.left[name] = event.after
            self.gradients.discard(name)
        elif change == "unknown":
            self.unknown["gradient"].add(name)
            self.gradients.add(name)
        elif change in ("set", "content", "replaced"):
            self.reached.add(name)
            if change != "content" and name in self.gradients:
                self.cleared.add(name)  # by hand, since the last scan
            if is_zero:
                self.zero.add(name)
            else:
                self.gradients.add(name)

    def is_faded(self, parameter: Variable) -> bool:
        """Whether a gradient is almost zero, and small updates may round to zero."""
        return self._fading.is_faded(parameter.name, parameter.dtype)

    def has_gradient(self, parameter: str) -> bool:
        """Whether a gradient reached the parameter in this step or still exists."""
        return parameter in self.reached or parameter in self.gradients

    def is_new(self, variable: Variable, event: StepEvent) -> bool:
        """Whether the variable appeared within this step, so that it need not change in it.

        In the first step all of them did: there it counts as an earlier one.
        """
        return variable.born == event.step and event.step != (
            event.step if self.first_step is None else self.first_step
        )


class Additions:
    """Whether backward() adds to gradients that existed when a step began.

    This needs scans in two consecutive steps: otherwise they may have vanished in between.
    """

    def __init__(self, book: StepChanges) -> None:
        self._book = book
        self._has_looked = self._had_looked = False  # at gradients, in this step and the last

    def read(self) -> None:
        """Read the state of a step that ends, before the next one begins."""
        looked = bool(self._book.reached or self._book.cleared)
        self._had_looked, self._has_looked = self._has_looked, looked

    def any_of(self, names: AbstractSet[str] | None = None) -> bool:
        """Whether it added to a gradient, of these parameters or of all, in that step."""
        book = self._book
        kept = book.at_start & book.reached
        return self._had_looked and not (kept if names is None else kept & names) <= book.cleared


Batch = tuple[str, int, int]


class Scan(NamedTuple):
    """Scans of gradients, in order, without a landmark call between them.

    Attributes:
        after: span of the call at whose end they took place.
        place: number of landmark calls before them.
        looks: what they found, and of which parameters.
    """

    after: int | None
    place: int
    looks: list[tuple[StateEvent, int]]


@dataclass(slots=True)
class StepEntries:
    """The entries since the last step ended, in order.

    Attributes:
        calls: landmark calls, each with the last batch before it.
        scans: of gradients.
        gradients: the last scan of each existing gradient, by identity of the parameter.
    """

    calls: list[tuple[CallEvent, Batch | None]] = field(default_factory=list)
    scans: list[Scan] = field(default_factory=list)
    gradients: dict[int, StateEvent] = field(default_factory=dict)
    uses: dict[str, CallEvent] = field(default_factory=dict)
    forwards: Forwards = field(default_factory=Forwards)
    softmaxes: list[CallEvent] = field(default_factory=list)
    changed: set[int] = field(default_factory=set)
    flipped: set[int] = field(default_factory=set)
    uncertain: set[int] = field(default_factory=set)
    numbers: dict[int, StateEvent] = field(default_factory=dict)
    kept: UnclearedGradients | None = None
    written: list[WrittenGradients] = field(default_factory=list)
    has_own: bool = False

    def use(self, call: CallEvent, batch: Batch | None) -> None:
        """Enter the call of a module."""
        if call.root:
            self.forwards.root(call, batch)
            if call.grad_enabled:  # the rest may be a whole evaluation
                self.add(call, batch)
        if call.module is not None and call.module not in self.uses:
            self.uses[call.module] = call

    def add(self, call: CallEvent, batch: Batch | None) -> None:
        """Enter a landmark call."""
        self.calls.append((call, batch))

    def look(self, event: StateEvent, identity: int) -> None:
        """Enter the scan of a gradient."""
        place = len(self.calls)
        last = self.scans[-1] if self.scans else None
        if last is None or last.after != event.after or last.place != place:
            last = Scan(event.after, place, [])
            self.scans.append(last)
        last.looks.append((event, identity))
        if event.summary is not None:
            self.gradients[identity] = event

    def norms(self) -> tuple[dict[int, float], frozenset[int]]:
        """The norms of the gradients, and those that hold NaN or infinity."""
        norms: dict[int, float] = {}
        broken: set[int] = set()
        for identity, look in self.gradients.items():
            norm = recorded.norm(look)
            if norm is not None:
                norms[identity] = norm
                if recorded.non_finite(look):
                    broken.add(identity)
        return norms, frozenset(broken)
