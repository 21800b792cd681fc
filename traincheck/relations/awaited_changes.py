"""Whether an update, or a zero_grad, was due in a step that has none.

The exemptions are those of the rules about the same facts (TC201, TC202).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from traincheck.readings.distributed.rank_steps import FIRST, LATER, LATER_AT_END
from traincheck.readings.optimizers import UPDATED
from traincheck.readings.step_changes import Additions, StepChanges
from traincheck.readings.variables import Variables
from traincheck.relations.iterations import Examples
from traincheck.schema.claims import Needs, sampled
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Example
from traincheck.schema.torch_api import Families

# Gradients show which parameters await an update, and whether backward() adds to old gradients.
GRADIENTS = Needs(
    calls=frozenset({Families.BACKWARD}),
    states=frozenset({"parameter@new"}) | sampled("gradient@backward"),
    kinds=frozenset({"step", "optimizer"}),
)
UPDATES = Needs(states=sampled("parameter@step"))  # those by hand


class ClearedByHand:
    """Drops examples of a missing zero_grad if backward() adds to no gradient anyway.

    claims: indices of those about zero_grad.
    """

    def __init__(self, claims: Collection[int]) -> None:
        self.claims = claims
        self._changes = StepChanges()
        self._additions = Additions(self._changes)
        self._held: list[tuple[int, Example]] = []  # until the step ends

    def observe(self, event: Event, found: Examples) -> Examples:
        """Enter an event and its examples. Return the examples that are certain now."""
        if not self.claims:
            return found
        if isinstance(event, StateEvent):
            if event.role == "gradient":
                self._changes.observe(event)
            return found
        doubtful = [one for one in found if one[0] in self.claims and not one[1].holds]
        if doubtful:
            self._held += doubtful
            found = [one for one in found if one not in doubtful]
        if isinstance(event, StepEvent):
            self._additions.read()
            if self._held and event.recorded and self._additions.any_of():
                found = [*found, *self._held]
            self._held = []
            self._changes.turn(event)
        return found


class Awaited:
    """Follows the gradients of parameters that an optimizer holds.

    Attributes:
        has_updated: whether any optimizer has stepped.
        longest: most steps in a row without an update that an update ended.
    """

    def __init__(self, variables: Variables, changes: StepChanges) -> None:
        self._variables, self._changes = variables, changes
        self.has_updated = False
        self.longest = 0
        self._held: frozenset[str] = frozenset()
        self._version = -1
        self._reached: set[str] = set()  # held parameters that ever got a gradient
        self._by_hand: Counter[str] = Counter()  # held parameter -> changes in steps without update
        self._lines: set[str | None] = set()  # that call backward() in steps with an update
        self._calls: set[str | None] = set()  # in this step
        self._additions = Additions(changes)

    def backward(self, event: CallEvent) -> None:
        """Enter a backward pass."""
        self._calls.add(event.where)

    def read(self) -> None:
        """Read the changes of a step that ends, before the next step begins."""
        if self._version != self._variables.version:
            self._version = self._variables.version
            self._held = frozenset(v.name for v in self._variables.held_parameters())
        self._reached |= self._changes.reached & self._held
        self._additions.read()

    def updated(self, lapse: int) -> None:
        """An optimizer stepped, after so many steps without."""
        self.has_updated = True
        self.longest = max(self.longest, lapse)
        self._lines |= self._calls
        self._calls.clear()

    def is_update_due(self, event: StepEvent) -> bool:
        """Whether an optimizer holds parameters whose gradients await an update in this step.

        After the first update, only gradients count that are computed and cleared as for an update.
        """
        calls, self._calls = self._calls, set()
        self._by_hand.update(self._changes.changed["parameter"] & self._held)
        reached = self._changes.reached & self._held if self._changes.reached else self._reached
        if not any(self._by_hand[name] < UPDATED for name in reached):
            return False
        if not self.has_updated:
            return True
        return bool(event.counters.get("zero_grad", 0)) and not calls.isdisjoint(self._lines)

    def needed(self, within: int, *, is_over: bool = False) -> int:
        """How many such steps in a row break the claim. is_over: the run has ended."""
        if not self.has_updated:
            return max(within, FIRST)
        return max(within, LATER_AT_END, 2 * self.longest) if is_over else max(within, LATER)

    def is_added_to(self) -> bool:
        """Whether backward() adds to gradients that an optimizer is to apply."""
        return self._additions.any_of(self._held)


def needs(family: str) -> Needs:
    """The needs for deciding whether a landmark is due in every step."""
    if family == Families.OPTIMIZER_STEP:
        return GRADIENTS | UPDATES
    return GRADIENTS if family == Families.ZERO_GRAD else Needs()
