"""The difference of two sets of invariants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from traincheck.schema.claims import Invariant, key_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The difference. changed: the same claims with other preconditions, before and after."""

    added: Sequence[Invariant]
    removed: Sequence[Invariant]
    changed: Sequence[tuple[Sequence[Invariant], Sequence[Invariant]]]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def compare(before: Iterable[Invariant], after: Iterable[Invariant]) -> Difference:
    """Compare two sets. The number of examples is ignored."""
    old, new = _by_claim(before), _by_claim(after)
    both = [(old[key], new[key]) for key in sorted(old.keys() & new.keys())]
    return Difference(
        added=[one for key in sorted(new.keys() - old.keys()) for one in new[key]],
        removed=[one for key in sorted(old.keys() - new.keys()) for one in old[key]],
        changed=[(a, b) for a, b in both if {i.id for i in a} != {i.id for i in b}],
    )


def _by_claim(invariants: Iterable[Invariant]) -> Mapping[str, list[Invariant]]:
    found: dict[str, list[Invariant]] = {}
    for invariant in invariants:
        found.setdefault(key_of(invariant.hypothesis), []).append(invariant)
    return found
