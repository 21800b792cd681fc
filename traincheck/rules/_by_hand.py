"""What a program updates by itself, outside any optimizer, as a multiplier of Lagrange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from traincheck.schema.findings import Violation

_UPDATED = 2  # steps in a row that change it: once, a limit on weights (WGAN) does, too


@dataclass(slots=True)
class _Doubt:
    """told: what is held back. changes: steps in a row after the first that changed it."""

    told: list[Violation] = field(default_factory=list)
    changes: int = 0


class ByHand:
    """Holds violations about a parameter back until later steps show whether it is updated."""

    def __init__(self) -> None:
        self._doubts: dict[int, _Doubt] = {}
        self._moving: set[int] = set()
        self._resting: set[int] = set()
        self._changed: set[int] = set()

    def note(self, changed: Iterable[int]) -> None:
        """Parameters that differ from the look before, in any step."""
        self._changed.update(changed)

    def settle(self, found: Iterable[tuple[int, Violation]]) -> list[Violation]:
        """What is certain after this step, of those before and of it.

        found: of this step, by identity.
        """
        certain: list[Violation] = []
        for identity, doubt in list(self._doubts.items()):
            if identity not in self._changed:
                self._resting.add(identity)
                certain += self._doubts.pop(identity).told
                continue
            doubt.changes += 1
            if doubt.changes == _UPDATED:
                self._moving.add(identity)
                del self._doubts[identity]
        for identity, violation in found:
            if identity in self._resting:
                certain.append(violation)
            elif identity not in self._moving:
                self._doubts.setdefault(identity, _Doubt()).told.append(violation)
        self._changed.clear()
        return certain

    def finish(self) -> list[Violation]:
        """What no step has spoken against."""
        doubts, self._doubts = self._doubts, {}
        return [v for doubt in doubts.values() if not doubt.changes for v in doubt.told]
