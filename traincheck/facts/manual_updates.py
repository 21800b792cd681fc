"""Parameters that a program updates itself, without an optimizer, such as a Lagrange multiplier."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

UPDATED = 2  # steps that change it: a limit on weights (WGAN) also does once

Key = TypeVar("Key", bound=Hashable)
Claim = TypeVar("Claim")


@dataclass(slots=True)
class _Doubt(Generic[Claim]):
    """held: claims that are held back. changes: further consecutive steps that changed it."""

    held: list[Claim] = field(default_factory=list)
    changes: int = 0


class ByHand(Generic[Key, Claim]):
    """Holds claims about a parameter back until later steps show whether it is updated.

    Keys name parameters: an identity, or a name.
    """

    def __init__(self) -> None:
        self._doubts: dict[Key, _Doubt[Claim]] = {}
        self._moving: set[Key] = set()
        self._resting: set[Key] = set()
        self._changed: set[Key] = set()

    @property
    def is_open(self) -> bool:
        """Whether any claim is held back."""
        return bool(self._doubts)

    def note(self, changed: Iterable[Key]) -> None:
        """Note parameters that differ from the scan before, in any step."""
        self._changed.update(changed)

    def settle(self, found: Iterable[tuple[Key, Claim]]) -> list[Claim]:
        """The claims that are certain after this step, earlier ones included.

        found: claims of this step, by parameter.
        """
        certain: list[Claim] = []
        for key, doubt in list(self._doubts.items()):
            if key not in self._changed:
                self._resting.add(key)
                certain += self._doubts.pop(key).held
                continue
            doubt.changes += 1
            if doubt.changes == UPDATED:
                self._moving.add(key)
                del self._doubts[key]
        for key, claim in found:
            if key in self._resting:
                certain.append(claim)
            elif key not in self._moving:
                self._doubts.setdefault(key, _Doubt()).held.append(claim)
        self._changed.clear()
        return certain

    def finish(self) -> list[Claim]:
        """The claims that no step has contradicted."""
        doubts, self._doubts = self._doubts, {}
        return [claim for doubt in doubts.values() if not doubt.changes for claim in doubt.held]
