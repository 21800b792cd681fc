"""What a run did around a violation: its last calls are kept, and some of them shown beside it.

Costs nothing where no invariant has an excerpt. Judges nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from traincheck.check.beside import changes, side_by_side
from traincheck.check.call_tree import Node, excerpt, in_view, is_in_view, tree
from traincheck.check.folding import Fault
from traincheck.check.verdicts import View
from traincheck.check.windows import Window, between, inside, of_step, window_of
from traincheck.check.wording.symptoms import WORDING
from traincheck.relations.phrasing import ROLE_NAMES
from traincheck.schema.apis import Families
from traincheck.schema.claims import Invariant, Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent
from traincheck.schema.excerpts import Row
from traincheck.schema.findings import Symptom, Violation

_KEPT = 4096  # calls of one process
_STEPS = 2  # that ended: ranks may be a step apart
_OF_RANKS = frozenset({Symptom.RANKS_DIFFER, Symptom.OUT_OF_STEP, Symptom.NOT_SYNCHRONIZED})
_CHANGING = frozenset({"contains", "periodic"})  # relations that say what changes, with a role
# Where to look when a check gives no line: the call that should have done it.
_NEAR = {
    Symptom.NOT_UPDATED: Families.OPTIMIZER_STEP,
    Symptom.STATE_UNCHANGED: Families.OPTIMIZER_STEP,
    Symptom.NO_GRADIENT: Families.BACKWARD,
    Symptom.FROZEN: "optimizer",
    Symptom.MISSING_CALL: Families.BACKWARD,
}


class Ring:
    """The last calls of one process.

    Attributes:
        rank: of the process.
        calls: in the order they ended.
        view: what the trace holds.
        ended: the last step that ended.
        optimizers: that were created.
        awaited: checks whose step has not ended yet.
    """

    def __init__(self, rank: int, view: View) -> None:
        self.rank = rank
        self.calls: deque[CallEvent] = deque(maxlen=_KEPT)
        self.view = view
        self.ended = -1
        self.optimizers: list[OptimizerEvent] = []
        self.awaited: list[tuple[str, int]] = []

    def end(self, step: int) -> None:
        """A step ended: let go of those long before it, so that what is kept stays in a cache."""
        self.ended = step
        calls, oldest = self.calls, step - _STEPS + 1
        while calls and calls[0].step is not None and calls[0].step < oldest:
            calls.popleft()

    def is_whole(self, step: int) -> bool:
        """Whether no call of a step was dropped."""
        if step <= self.ended - _STEPS:
            return False
        calls = self.calls
        return len(calls) < _KEPT or (calls[0].step is not None and calls[0].step < step)


class Witness:
    """Remembers for the first violation of each invariant what the run did.

    Args:
        invariants: all that are checked.
    """

    def __init__(self, invariants: Iterable[Invariant]) -> None:
        self._invariants = {invariant.id: invariant for invariant in invariants}
        self._needs = reduce(or_, (i.needs for i in self._invariants.values()), Needs())
        self._seen: dict[str, tuple[Node, ...] | None] = {}
        self._recorded: dict[str, Needs | None] = {}
        self._near: dict[str, Event] = {}
        self._rings: dict[int, Ring] = {}  # of the first process of each rank
        self._ranks: dict[str, tuple[tuple[str, str], tuple[Row, ...]]] = {}  # sides and rows
        self._is_watching = any(i.excerpt is not None for i in self._invariants.values())

    def ring(self, rank: int, view: View) -> Ring | None:
        """Where the calls of a process are to be kept, if they are."""
        if not self._is_watching:
            return None
        ring = Ring(rank, view)
        self._rings.setdefault(rank, ring)
        return ring

    def note(self, violation: Violation, ring: Ring | None) -> None:
        """A check found something new, in the process of a ring if that is known."""
        check_id = violation.check_id
        if violation.symptom in _OF_RANKS and check_id not in self._ranks:
            self._compare_ranks(violation)
        invariant = self._invariants.get(check_id)
        if invariant is None or check_id in self._seen:
            return
        if ring is None or ring.rank != violation.rank:  # a check of all ranks
            ring = self._rings.get(violation.rank)
        if ring is None:
            return
        self._seen[check_id] = None
        self._recorded[check_id] = ring.view.at(violation.step, violation.stage)
        self._look_near(violation, ring)
        window = window_of(invariant.hypothesis)
        if invariant.excerpt is None or window is None:
            return
        if window.outer or window.after:
            self._keep(check_id, _around(violation, ring, window), ring, window)
        elif violation.step is not None and violation.step > ring.ended:
            ring.awaited.append((check_id, violation.step))
        elif violation.step is not None:
            self._keep_step(check_id, violation.step, ring)

    def step_ended(self, ring: Ring, step: int) -> None:
        """All calls of a step are told."""
        ring.end(step)
        awaited, ring.awaited = ring.awaited, []
        for check_id, at in awaited:
            if at <= step:
                self._keep_step(check_id, at, ring)
            else:
                ring.awaited.append((check_id, at))

    def _keep_step(self, check_id: str, step: int, ring: Ring) -> None:
        if ring.is_whole(step):
            self._keep(check_id, of_step(ring.calls, step), ring, Window())

    def _compare_ranks(self, violation: Violation) -> None:
        """What two ranks did in the step in which they differ."""
        step, rank = violation.step, violation.rank
        others = {event.rank for event in violation.evidence} | set(self._rings)
        other = min(others - {rank}, default=rank)
        pair = [self._rings.get(one) for one in sorted((rank, other))]
        if step is None or rank == other:
            return
        trees = [
            tree(of_step(ring.calls, step), lambda _: True)
            for ring in pair
            if ring is not None and ring.is_whole(step)
        ]
        first = excerpt(trees[0]) if len(trees) == len(pair) else None
        if first is not None:
            sides = (f"rank {min(rank, other)}", f"rank {max(rank, other)}")
            self._ranks[violation.check_id] = (sides, side_by_side(first, trees[1]))

    def _keep(self, check_id: str, calls: Sequence[CallEvent], ring: Ring, window: Window) -> None:
        needs, recorded = self._needs, self._recorded[check_id]

        def is_shown(call: CallEvent) -> bool:
            return all(
                is_in_view(call.api, call.family, view, is_root=call.root)
                for view in (needs, recorded)
                if view is not None
            )

        nodes = tree(calls, is_shown, window.names)
        self._seen[check_id] = _with_end(nodes, calls[-1]) if window.after and calls else nodes

    def _look_near(self, violation: Violation, ring: Ring) -> None:
        near = WORDING[violation.symptom].near or _NEAR.get(violation.symptom)
        told = [event for event in violation.evidence if getattr(event, "where", None)]
        if near is None or any(is_near(event, near) for event in told):
            return
        if near == "optimizer":
            found: Iterable[Event] = ring.optimizers
        else:
            found = (c for c in reversed(ring.calls) if near in (c.family, c.api) and c.where)
        event = next(iter(found), None)
        if event is not None:
            self._near[violation.check_id] = event

    def near(self, check_id: str) -> tuple[Event, ...]:
        """An event that knows a line of the program, where the evidence of a check has none."""
        event = self._near.get(check_id)
        return () if event is None else (event,)

    def beside(self, fault: Fault, steps: int) -> tuple[Row, ...]:
        """The reference beside this run: calls, then changes of variables."""
        told = [(fault.check_id, fault.symptom, tally) for tally in fault.tallies]
        told += sorted(
            fault.explained, key=lambda one: (one[1] is not fault.symptom, one[2].key, one[0])
        )
        order = list(dict.fromkeys(check_id for check_id, _, _ in told))
        rows = next(filter(None, map(self._calls, order)), ())
        for check_id in order:
            invariant = self._invariants.get(check_id)
            if invariant is None or not _speaks_of_changes(invariant):
                continue
            counts = [
                (tally.first.subject.variable or "", tally.count)
                for other, _, tally in sorted(told, key=lambda one: one[2].key)
                if other == check_id
            ]
            return (*rows, *changes(invariant, counts, steps))
        return rows

    def of_ranks(self, fault: Fault) -> tuple[tuple[str, str], tuple[Row, ...]] | None:
        """Two ranks beside each other, and which; None where they made the same calls."""
        for tally in fault.tallies:
            found = self._ranks.get(tally.first.check_id)
            if found is not None and found[1]:
                return found
        return None

    def _calls(self, check_id: str) -> tuple[Row, ...]:
        nodes = self._seen.get(check_id)
        invariant = self._invariants.get(check_id)
        if nodes is None or invariant is None or invariant.excerpt is None:
            return ()
        reference, recorded = in_view(invariant.excerpt, self._needs), self._recorded[check_id]
        if recorded is not None:
            reference = in_view(reference, recorded)
        return side_by_side(reference, nodes)


def _with_end(nodes: tuple[Node, ...], last: CallEvent) -> tuple[Node, ...]:
    """The last call of a window on a line of its own, though it may be equal to the first."""
    end = nodes[-1] if nodes else None
    if end is None or end.count == 1 or end.api != last.api:
        return nodes
    begin = replace(end, count=end.count - 1)
    return (*nodes[:-1], begin, replace(end, count=1, where=last.where))


def _around(violation: Violation, ring: Ring, window: Window) -> list[CallEvent]:
    """The calls of the window that the evidence of a violation tells of."""
    calls = [event for event in violation.evidence if isinstance(event, CallEvent)]
    if window.outer:
        outer = next((call for call in calls if call.api == window.outer), None)
        return [] if outer is None else inside(ring.calls, outer)
    if len(calls) > 1:
        return between(ring.calls, calls[0], calls[-1])
    return []


def _speaks_of_changes(invariant: Invariant) -> bool:
    claim = invariant.hypothesis
    return claim.relation in _CHANGING and claim.params.get("role") in ROLE_NAMES


def is_near(event: Event, near: str | None) -> bool:
    """Whether the line to look at, by family of call or kind of event, is that of this event."""
    if isinstance(event, CallEvent):
        return near in (event.family, event.api)
    return event.kind == near
