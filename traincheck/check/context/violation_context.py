"""Calls of a run around a violation, compared with those of its reference runs.

The last calls of each process are kept in memory. Without invariants that have an excerpt, nothing
is kept. A reference is compared with this run line by line: calls of a window, changes of
variables. The report decides how wide a line may be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import reduce
from operator import or_

from traincheck.check.context.call_tree import (
    CallWindow,
    Node,
    build_tree,
    calls_between,
    calls_inside,
    calls_of_step,
    excerpt,
    is_recorded,
    landmarks,
    lines,
    visible_excerpt,
    window_of,
)
from traincheck.check.grouping.root_causes import RootCause
from traincheck.check.verdicts import TraceView
from traincheck.check.wording.symptom_messages import SYMPTOM_MESSAGES
from traincheck.relations.phrasing import ROLE_NAMES, selector_text
from traincheck.schema.claims import Excerpt, Invariant, Line, Needs, Row
from traincheck.schema.events import CallEvent, Event, OptimizerEvent
from traincheck.schema.findings import Symptom, Violation
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

_CONTEXT = 2  # equal lines around different ones
_MAX_ROWS = 16
_MAX_VARIABLES = 3
_GAP = Row(reference="...", observed="...")

PlacedLine = tuple[Line, str | None]


def diff_calls(reference: Excerpt, observed: Sequence[Node]) -> tuple[Row, ...]:
    """Rows that compare the two; none if they are equal."""
    theirs: list[PlacedLine] = [(line, None) for line in reference.lines]
    ours = lines(observed, reference.depth)
    if _models(theirs) and _models(ours) and _models(theirs).isdisjoint(_models(ours)):
        # Another program: only its landmarks can be compared.
        theirs = [(line, where) for line, where in theirs if line.family or not line.api]
        theirs = [(line, where) for line, where in _outermost(theirs)]
        ours = lines(landmarks(observed), 0)
    rows: list[Row] = []
    matcher = SequenceMatcher(None, _keys(theirs), _keys(ours), autojunk=False)
    for what, i, j, k, m in matcher.get_opcodes():
        if what == "equal":
            for left, right in zip(theirs[i:j], ours[k:m]):
                same = (left[0].note, left[0].count) == (right[0].note, right[0].count)
                mark = " " if same else "~"
                rows.append(Row(reference=_label(left), observed=_label(right), mark=mark))
        else:
            rows += [Row(reference=_label(one), observed=None, mark="-") for one in theirs[i:j]]
            rows += [Row(reference=None, observed=_label(one), mark="+") for one in ours[k:m]]
    if all(row.mark == " " for row in rows):
        return ()
    return tuple(rows if len(rows) <= _MAX_ROWS else _shortened(rows))


def _models(found: Iterable[PlacedLine]) -> set[str]:
    return {line.api for line, _ in found if line.family == Families.MODULE}


def _outermost(found: Sequence[PlacedLine]) -> Iterable[PlacedLine]:
    """Without the lines below a call, and without empty repeat counts."""
    below: int | None = None
    kept: list[PlacedLine] = []
    for line, where in found:
        if below is not None and line.depth > below:
            continue
        below = line.depth if line.api else None
        kept.append((line, where))
    for one, after in zip(kept, [*kept[1:], None]):
        if one[0].api or (after is not None and after[0].depth > one[0].depth):
            yield one


def _keys(found: Sequence[PlacedLine]) -> list[tuple[int, str]]:
    """Keys that are equal for lines to be paired, whatever their repeat counts."""
    keys = []
    times: list[int] = []  # depths of the repeat counts above a line
    for line, _ in found:
        times = [depth for depth in times if depth < line.depth]
        keys.append((line.depth - len(times), line.family or line.api))
        times += [] if line.api else [line.depth]
    return keys


def _label(placed: PlacedLine) -> str:
    """``  Linear.forward x3 (in evaluation mode)  train.py:32``."""
    line, where = placed
    indent = "  " * line.depth
    if not line.api:
        return f"{indent}{line.count} times:"
    name = "backward" if line.api == Families.BACKWARD else ".".join(line.api.split(".")[-2:])
    times = f" x{line.count}" if line.count > 1 else ""
    note = f" ({line.note})" if line.note else ""
    place = f"  {short(where)}" if where else ""
    return f"{indent}{name}{times}{note}{place}"


def _shortened(rows: Sequence[Row]) -> list[Row]:
    """The rows that differ, with a little context."""
    marked = [i for i, row in enumerate(rows) if row.mark != " "][: _MAX_ROWS - 2 * _CONTEXT]
    near = {i for at in marked for i in range(at - _CONTEXT, at + _CONTEXT + 1)}
    found: list[Row] = []
    for i, row in enumerate(rows):
        if i in near:
            found.append(row)
        elif not found or found[-1] is not _GAP:
            found.append(_GAP)
    return found


def variable_changes(
    invariant: Invariant, counts: Sequence[tuple[str, int]], steps: int
) -> tuple[Row, ...]:
    """How often variables changed in the reference, and how often they did not here.

    Args:
        invariant: claims that the variables change.
        counts: name of a variable and number of steps in which it did not change.
        steps: number of steps of this run.
    """
    params = invariant.hypothesis.params
    verb = "is cleared" if params.get("change") == "cleared" else "changes"
    kind = selector_text(params)
    every, within = int(params.get("period", 1)), int(params.get("within", 1))
    often = f"{invariant.support.steps} steps" if every == 1 else f"every {every} steps"
    text = f"every {kind} {verb} in all of {often}" if every == 1 else f"{kind} {verb} {often}"
    if within > 1:
        text = f"every {kind} {verb} within {within} steps"
    rows = []
    for name, count in counts[:_MAX_VARIABLES]:
        missed = min(count * within, steps) if within > 1 else count
        seen = f"{name}: not in {missed} of {max(steps, missed)} steps"
        rows.append(Row(reference=text, observed=seen, mark="~"))
        text = ""
    left = len(counts) - _MAX_VARIABLES
    if left > 0:
        rows[-1] = replace(rows[-1], observed=f"{rows[-1].observed}, and {left} more variables")
    return tuple(rows)


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
