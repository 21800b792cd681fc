"""Calls of a run around a violation, compared with those of its reference runs.

The last calls of each process are kept in memory. Without invariants that have an excerpt, nothing
is kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from traincheck.check.context.call_tree import (
    Node,
    build_tree,
    excerpt,
    is_recorded,
    visible_excerpt,
)
from traincheck.check.context.reference_diff import diff_calls, variable_changes
from traincheck.check.context.windows import (
    CallWindow,
    calls_between,
    calls_inside,
    calls_of_step,
    window_of,
)
from traincheck.check.grouping.root_causes import RootCause
from traincheck.check.verdicts import TraceView
from traincheck.check.wording.symptom_messages import SYMPTOM_MESSAGES
from traincheck.relations.phrasing import ROLE_NAMES
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent
from traincheck.schema.excerpts import Row
from traincheck.schema.findings import Symptom, Violation
from traincheck.schema.torch_api import Families

_MAX_CALLS = 4096  # calls of one process
_MAX_STEPS = 2  # that ended: ranks may be a step apart
_BETWEEN_RANKS = frozenset({Symptom.RANKS_DIFFER, Symptom.OUT_OF_STEP, Symptom.NOT_SYNCHRONIZED})
_CHANGING = frozenset({"contains", "periodic"})  # relations that say what changes, with a role
# The call or event whose source line is shown when the evidence has no line.
_SOURCE = {
    Symptom.NOT_UPDATED: Families.OPTIMIZER_STEP,
    Symptom.STATE_UNCHANGED: Families.OPTIMIZER_STEP,
    Symptom.NO_GRADIENT: Families.BACKWARD,
    Symptom.FROZEN: "optimizer",
    Symptom.MISSING_CALL: Families.BACKWARD,
}


class RecentCalls:
    """The last calls of one process.

    Attributes:
        rank: of the process.
        calls: in the order they ended.
        view: what the trace holds.
        ended: the last step that ended; -1 for none.
        optimizers: created so far.
        awaited: checks violated in a step that has not ended yet, and this step.
    """

    def __init__(self, rank: int, view: TraceView) -> None:
        self.rank = rank
        self.calls: deque[CallEvent] = deque(maxlen=_MAX_CALLS)
        self.view = view
        self.ended = -1
        self.optimizers: list[OptimizerEvent] = []
        self.awaited: list[tuple[str, int]] = []

    def end_step(self, step: int) -> None:
        """Drop the calls of old steps when a step ends."""
        self.ended = step
        calls, oldest = self.calls, step - _MAX_STEPS + 1
        while calls and calls[0].step is not None and calls[0].step < oldest:
            calls.popleft()

    def is_complete(self, step: int) -> bool:
        """Whether all calls of a step are still kept."""
        if step <= self.ended - _MAX_STEPS:
            return False
        calls = self.calls
        return len(calls) < _MAX_CALLS or (calls[0].step is not None and calls[0].step < step)


class ViolationContext:
    """Records for the first violation of each invariant what the run did around it.

    Args:
        invariants: all that are checked.
    """

    def __init__(self, invariants: Iterable[Invariant]) -> None:
        self._invariants = {invariant.id: invariant for invariant in invariants}
        self._needs = reduce(or_, (i.needs for i in self._invariants.values()), Needs())
        self._nodes: dict[str, tuple[Node, ...] | None] = {}
        self._recorded: dict[str, Needs | None] = {}
        self._source_events: dict[str, Event] = {}
        self._recent: dict[int, RecentCalls] = {}  # of the first process of each rank
        self._ranks: dict[str, tuple[tuple[str, str], tuple[Row, ...]]] = {}  # sides and rows
        self._has_excerpts = any(i.excerpt is not None for i in self._invariants.values())

    def recent_calls(self, rank: int, view: TraceView) -> RecentCalls | None:
        """A buffer for the calls of a process; None if no invariant has an excerpt."""
        if not self._has_excerpts:
            return None
        recent = RecentCalls(rank, view)
        self._recent.setdefault(rank, recent)
        return recent

    def on_violation(self, violation: Violation, recent: RecentCalls | None) -> None:
        """Record the calls around a violation; ``recent`` are those of its process, if known."""
        check_id = violation.check_id
        if violation.symptom in _BETWEEN_RANKS and check_id not in self._ranks:
            self._compare_ranks(violation)
        invariant = self._invariants.get(check_id)
        if invariant is None or check_id in self._nodes:
            return
        if recent is None or recent.rank != violation.rank:  # a check of all ranks
            recent = self._recent.get(violation.rank)
        if recent is None:
            return
        self._nodes[check_id] = None
        self._recorded[check_id] = recent.view.recorded_in(violation.step, violation.stage)
        self._find_source_event(violation, recent)
        window = window_of(invariant.hypothesis)
        if invariant.excerpt is None or window is None:
            return
        if window.outer or window.after:
            self._keep(check_id, _around(violation, recent, window), recent, window)
        elif violation.step is not None and violation.step > recent.ended:
            recent.awaited.append((check_id, violation.step))
        elif violation.step is not None:
            self._keep_step(check_id, violation.step, recent)

    def end_step(self, recent: RecentCalls, step: int) -> None:
        """Record the calls of violations that waited for the end of this step."""
        recent.end_step(step)
        awaited, recent.awaited = recent.awaited, []
        for check_id, at in awaited:
            if at <= step:
                self._keep_step(check_id, at, recent)
            else:
                recent.awaited.append((check_id, at))

    def _keep_step(self, check_id: str, step: int, recent: RecentCalls) -> None:
        if recent.is_complete(step):
            self._keep(check_id, calls_of_step(recent.calls, step), recent, CallWindow())

    def _compare_ranks(self, violation: Violation) -> None:
        """Compare the calls of two ranks in the step in which they differ."""
        step, rank = violation.step, violation.rank
        others = {event.rank for event in violation.evidence} | set(self._recent)
        other = min(others - {rank}, default=rank)
        pair = [self._recent.get(one) for one in sorted((rank, other))]
        if step is None or rank == other:
            return
        trees = [
            build_tree(calls_of_step(recent.calls, step), lambda _: True)
            for recent in pair
            if recent is not None and recent.is_complete(step)
        ]
        first = excerpt(trees[0]) if len(trees) == len(pair) else None
        if first is not None:
            sides = (f"rank {min(rank, other)}", f"rank {max(rank, other)}")
            self._ranks[violation.check_id] = (sides, diff_calls(first, trees[1]))

    def _keep(
        self, check_id: str, calls: Sequence[CallEvent], recent: RecentCalls, window: CallWindow
    ) -> None:
        needs, recorded = self._needs, self._recorded[check_id]

        def is_shown(call: CallEvent) -> bool:
            return all(
                is_recorded(call.api, call.family, view, is_root=call.root)
                for view in (needs, recorded)
                if view is not None
            )

        nodes = build_tree(calls, is_shown, window.names)
        self._nodes[check_id] = _with_end(nodes, calls[-1]) if window.after and calls else nodes

    def _find_source_event(self, violation: Violation, recent: RecentCalls) -> None:
        source = SYMPTOM_MESSAGES[violation.symptom].source or _SOURCE.get(violation.symptom)
        located = [event for event in violation.evidence if getattr(event, "where", None)]
        if source is None or any(is_source_of(event, source) for event in located):
            return
        if source == "optimizer":
            found: Iterable[Event] = recent.optimizers
        else:
            found = (c for c in reversed(recent.calls) if source in (c.family, c.api) and c.where)
        event = next(iter(found), None)
        if event is not None:
            self._source_events[violation.check_id] = event

    def source_event(self, check_id: str) -> tuple[Event, ...]:
        """An event with a source line, if the evidence of the check has none; at most one."""
        event = self._source_events.get(check_id)
        return () if event is None else (event,)

    def compare(self, cause: RootCause, steps: int) -> tuple[Row, ...]:
        """Rows that compare the reference with this run: calls, then changes of variables."""
        violated = [(cause.check_id, cause.symptom, count) for count in cause.counts]
        violated += sorted(
            cause.explained, key=lambda one: (one[1] is not cause.symptom, one[2].key, one[0])
        )
        order = list(dict.fromkeys(check_id for check_id, _, _ in violated))
        rows = next(filter(None, map(self._calls, order)), ())
        for check_id in order:
            invariant = self._invariants.get(check_id)
            if invariant is None or not _claims_changes(invariant):
                continue
            counts = [
                (count.first.subject.variable or "", count.violations)
                for other, _, count in sorted(violated, key=lambda one: one[2].key)
                if other == check_id
            ]
            return (*rows, *variable_changes(invariant, counts, steps))
        return rows

    def compare_ranks(self, cause: RootCause) -> tuple[tuple[str, str], tuple[Row, ...]] | None:
        """Names of two ranks, and rows that compare their calls; None if these are equal."""
        for count in cause.counts:
            found = self._ranks.get(count.first.check_id)
            if found is not None and found[1]:
                return found
        return None

    def _calls(self, check_id: str) -> tuple[Row, ...]:
        nodes = self._nodes.get(check_id)
        invariant = self._invariants.get(check_id)
        if nodes is None or invariant is None or invariant.excerpt is None:
            return ()
        reference, recorded = (
            visible_excerpt(invariant.excerpt, self._needs),
            self._recorded[check_id],
        )
        if recorded is not None:
            reference = visible_excerpt(reference, recorded)
        return diff_calls(reference, nodes)


def _with_end(nodes: tuple[Node, ...], last: CallEvent) -> tuple[Node, ...]:
    """Put the last call of a window on its own line, even if it equals the one before."""
    end = nodes[-1] if nodes else None
    if end is None or end.count == 1 or end.api != last.api:
        return nodes
    begin = replace(end, count=end.count - 1)
    return (*nodes[:-1], begin, replace(end, count=1, where=last.where))


def _around(violation: Violation, recent: RecentCalls, window: CallWindow) -> list[CallEvent]:
    """The calls of the window that the evidence of a violation delimits."""
    calls = [event for event in violation.evidence if isinstance(event, CallEvent)]
    if window.outer:
        outer = next((call for call in calls if call.api == window.outer), None)
        return [] if outer is None else calls_inside(recent.calls, outer)
    if len(calls) > 1:
        return calls_between(recent.calls, calls[0], calls[-1])
    return []


def _claims_changes(invariant: Invariant) -> bool:
    claim = invariant.hypothesis
    return claim.relation in _CHANGING and claim.params.get("role") in ROLE_NAMES


def is_source_of(event: Event, source: str | None) -> bool:
    """Whether an event is of the given kind, or a call of the given API or family."""
    if isinstance(event, CallEvent):
        return source in (event.family, event.api)
    return event.kind == source
