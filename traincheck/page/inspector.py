"""The calls and changes of a few steps in detail: the first ones, and those of violations.

Only the events of the step that goes on are kept until it ends.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from traincheck.page.timeline import StepNorms, norm_of
from traincheck.schema.events import BatchEvent, CallEvent, Event, StateEvent, StepEvent

_MOST = 16  # steps
_SHOWN = frozenset({"call", "state", "batch"})
_FIRST = 2  # steps that are shown of every run
_MOST_CALLS = 50  # of a step, outermost ones
_MOST_VARIABLES = 50
_MOST_HELD = 50_000  # events of a step
_INIT, _PACKAGES = "torch.nn.init.", "site-packages/"
_LONGEST = 300  # characters of a name


@dataclass(frozen=True, slots=True)
class Row:
    """One call, or several alike in a row.

    Attributes:
        times: how many. inner: calls within it. where: ``file:line``; empty if not known.
    """

    what: str
    detail: str = ""
    where: str = ""
    times: int = 1
    inner: int = 0
    raised: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A variable before and after the step, as norms; None if no number was recorded."""

    name: str
    role: str
    change: str
    before: float | None = None
    after: float | None = None


@dataclass(slots=True)
class InspectedStep:
    """The calls and changes in one step of one rank.

    Attributes:
        left_out: calls and variables beyond the limits.
        is_disputed: whether a check found a violation in it.
    """

    step: int
    rank: int
    rows: list[Row] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    is_disputed: bool = False


class Inspector:
    """Keeps what happened in a few steps.

    Args:
        wanted: steps to keep, with their ranks.

    Attributes:
        steps: in the order in which they ended.
    """

    def __init__(self, wanted: Iterable[tuple[int | None, int]] = ()) -> None:
        self._wanted = set(wanted)
        self.steps: list[InspectedStep] = []
        self._open: dict[int, list[Event]] = defaultdict(list)
        self._disputed: set[int] = set()
        self._ended: Counter[int] = Counter()
        # Rank -> role -> the last norm of each variable
        self._norms: dict[int, StepNorms] = defaultdict(lambda: defaultdict(dict))

    def dispute(self, rank: int) -> None:
        """A check found a violation in the step of this rank that goes on."""
        self._disputed.add(rank)

    def add(self, event: Event) -> None:
        """Take in an event that does not end a step."""
        if event.kind in _SHOWN:
            held = self._open[event.rank]
            if len(held) < _MOST_HELD:
                held.append(event)

    def end(self, event: StepEvent, norms: Mapping[str, Mapping[str, float | None]]) -> None:
        """End a step.

        Args:
            event: its end.
            norms: of the variables that were recorded in it, by role and name.
        """
        rank, events = event.rank, self._open.pop(event.rank, [])
        self._ended[rank] += 1
        is_disputed = rank in self._disputed or (event.step, rank) in self._wanted
        self._disputed.discard(rank)
        is_kept = is_disputed or (self._ended[rank] <= _FIRST and rank == 0)
        if is_kept and len(self.steps) < _MOST and event.step is not None:
            made = InspectedStep(event.step, rank, is_disputed=is_disputed)
            made.counts = dict(event.counters)
            _fill(made, events, self._norms[rank])
            self.steps.append(made)
        for role, found in norms.items():
            self._norms[rank][role].update(found)


def _fill(made: InspectedStep, events: list[Event], before: StepNorms) -> None:
    inner: Counter[int | None] = Counter()
    outermost: list[Row] = []
    changed: dict[tuple[str, str], StateEvent] = {}
    for event in events:
        if isinstance(event, CallEvent):
            if event.parent is not None:
                inner[event.parent] += 1
                continue
            outermost.append(_row(event, inner[event.span]))
        elif isinstance(event, BatchEvent):
            what = f"batch {event.index} of {event.loader}"[:_LONGEST]
            outermost.append(Row(what, f"epoch {event.epoch}"))
        elif isinstance(event, StateEvent) and event.change != "cleared":
            changed[event.role, event.name] = event
    rows = list(_together(outermost))
    made.rows = rows[:_MOST_CALLS]
    changes = list(changed.items())
    made.changes = [
        Change(name[:_LONGEST], role, e.change, before[role].get(name), norm_of(e.summary))
        for (role, name), e in changes[:_MOST_VARIABLES]
    ]
    made.left_out = max(len(rows) - _MOST_CALLS, 0) + max(len(changes) - _MOST_VARIABLES, 0)


def _row(event: CallEvent, inner: int) -> Row:
    what = (
        event.module if event.module and (event.family or "").startswith("torch.nn") else event.api
    )
    detail = " ".join(
        text
        for text in (
            event.owner or "",
            "" if event.grad_enabled else "without gradients",
            "" if event.training is None or event.training else "in eval mode",
        )
        if text
    )
    raised = (event.exception or "")[:_LONGEST]
    where = (event.where or "").rpartition(_PACKAGES)[2][-_LONGEST:]
    if not where and event.api.startswith(_INIT):  # dozens for a model; the loop comes after them
        return Row(f"{_INIT}*", inner=inner, raised=raised)
    return Row(str(what)[:_LONGEST], detail[:_LONGEST], where, inner=inner, raised=raised)


def _together(rows: list[Row]) -> list[Row]:
    """Alike calls in a row as one."""
    found: list[Row] = []
    for row in rows:
        last = found[-1] if found else None
        if last is not None and (last.what, last.detail, last.where) == (
            row.what, row.detail, row.where,
        ):  # fmt: skip
            found[-1] = Row(
                last.what, last.detail, last.where, last.times + 1, last.inner + row.inner
            )
        else:
            found.append(row)
    return found
