"""The present gradients, from one landmark call to the next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from traincheck.facts.optimizers import Holder
from traincheck.facts.step_entries import StepEntries
from traincheck.facts.step_facts import Moment, Parameter
from traincheck.schema.events import CallEvent, StateEvent
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
        spans = {entry.span for entry in page.entries if isinstance(entry, CallEvent)}
        looks: dict[int, list[tuple[StateEvent, int]]] = defaultdict(list)
        stray = False
        for look, identity in zip(page.entries, page.ids):
            if isinstance(look, StateEvent) and identity is not None:
                if look.after in spans:
                    looks[look.after].append((look, identity))
                else:
                    stray = True
        written = {(mark.after, name) for mark in page.written for name in mark.names}
        moments: list[Moment] = []
        cleared: set[int] = set()
        reached: set[int] = set()
        for entry, identity, batch in zip(page.entries, page.ids, page.batches):
            if isinstance(entry, CallEvent):
                for look, parameter in looks.get(entry.span, ()):
                    if (entry.span, look.name) in written:  # before it began, by the program
                        written.discard((entry.span, look.name))
                    else:
                        self._gradient(look, parameter, cleared, reached)
                moments.append(self._moment(entry, cleared, reached)._replace(batch=batch))
                cleared, reached = set(), set()
            elif stray and identity is not None and entry.after not in spans:
                self._gradient(entry, identity, cleared, reached)
        return moments

    def _gradient(
        self, look: StateEvent, identity: int, cleared: set[int], reached: set[int]
    ) -> None:
        if look.summary is None:
            cleared.add(identity)
            self.nonzero.discard(identity)
            self._present.discard(identity)
            return
        self._present.add(identity)
        # Set to None by hand and computed again: the old gradient is gone.
        if look.change != "content":
            cleared.add(identity)
        if look.summary.zero is True:
            cleared.add(identity)
            self.nonzero.discard(identity)
        else:
            reached.add(identity)
            self.nonzero.add(identity)

    def _moment(self, call: CallEvent, cleared: set[int], reached: set[int]) -> Moment:
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
        return Moment(call, family, frozenset(cleared), frozenset(reached), applied, present)

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
