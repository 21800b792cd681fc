"""The present gradients, from one landmark call to the next."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_changes import Batch, Scan, StepEntries
from traincheck.readings.step_facts import Moment, Parameter
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families


class Gradients:
    """The gradients of one process, by identity of their parameters.

    nonzero: those that exist and are not known to be zero.
    """

    def __init__(self, holders: Mapping[str, Holder], parameters: Mapping[int, Parameter]) -> None:
        self._holders, self._parameters = holders, parameters
        self.nonzero: set[int] = set()
        self._present: set[int] = set()

    def forget(self, identity: int | None = None) -> None:
        """Forget one gradient, or all."""
        if identity is None:
            self.nonzero.clear()
            self._present.clear()
        else:
            self.nonzero.discard(identity)
            self._present.discard(identity)

    def walk(self, page: StepEntries) -> list[Moment]:
        """The landmark calls of a step, with the changes of gradients by each."""
        spans = {call.span for call, _ in page.calls}
        scans: dict[int, list[Scan]] = defaultdict(list)
        strays: deque[Scan] = deque()
        for scan in page.scans:
            if scan.after in spans:
                scans[scan.after].append(scan)
            else:
                strays.append(scan)
        written = {(mark.after, name) for mark in page.written for name in mark.names}
        moments: list[Moment] = []
        cleared: set[int] = set()
        reached: set[int] = set()
        for place, (call, batch) in enumerate(page.calls):
            while strays and strays[0].place <= place:
                self._enter(strays.popleft(), cleared, reached, set())
            for scan in scans.get(call.span, ()):
                self._enter(scan, cleared, reached, written)
            moments.append(self._moment(call, cleared, reached, batch))
            cleared, reached = set(), set()
        for scan in strays:
            self._enter(scan, cleared, reached, set())
        return moments

    def _enter(
        self,
        scan: Scan,
        cleared: set[int],
        reached: set[int],
        written: set[tuple[int, str]],
    ) -> None:
        """Enter what a scan found, but for gradients that the program wrote before the call."""
        nonzero, present = self.nonzero, self._present
        for look, identity in scan.looks:
            if written and (scan.after, look.name) in written:
                written.discard((scan.after, look.name))
            elif look.summary is None:
                cleared.add(identity)
                nonzero.discard(identity)
                present.discard(identity)
            else:
                present.add(identity)
                is_zero = look.summary.zero is True
                # Set to None by hand and computed again: the old gradient is gone.
                if is_zero or look.change != "content":
                    cleared.add(identity)
                if is_zero:
                    nonzero.discard(identity)
                else:
                    reached.add(identity)
                    nonzero.add(identity)

    def _moment(
        self, call: CallEvent, cleared: set[int], reached: set[int], batch: Batch | None
    ) -> Moment:
        family = call.family or call.api
        holder = self._holders.get(call.owner or "")
        applied: frozenset[int] = frozenset()
        present: frozenset[int] = frozenset()
        if family == Families.ZERO_GRAD:
            zeroed = self._zeroed_by(call)
            cleared |= zeroed
            # Gradients that the program has set again in the same scan exist afterwards.
            self.nonzero -= cleared - reached
            if call.args.get("set_to_none") is not False:
                self._present -= zeroed - reached
        elif family == Families.OPTIMIZER_STEP and holder is not None:
            applied = holder.ids & self.nonzero
            present = holder.ids & self._present
        sets = frozenset(cleared), frozenset(reached), applied, present
        return Moment(call, family, *sets, batch)

    def _zeroed_by(self, call: CallEvent) -> set[int]:
        """The gradients that a zero_grad clears, if no scan after it shows them."""
        holder = self._holders.get(call.owner or "")
        if holder is not None:
            return set(holder.ids)
        below = f"{call.module}."
        return {
            identity
            for identity, parameter in self._parameters.items()
            if call.module is None or any(name.startswith(below) for name in parameter.names)
        }
