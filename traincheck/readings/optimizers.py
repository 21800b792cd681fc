"""Optimizers and their parameters, and parameters that a program updates itself."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from traincheck.schema.events import OptimizerEvent
from traincheck.schema.words import is_unowned


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An optimizer and its parameters.

    Attributes:
        event: the last event, with the present groups.
        made: the first event, with the line that created it.
        names: by identity.
        groups: index of the group by identity.
    """

    event: OptimizerEvent
    made: OptimizerEvent
    ids: frozenset[int]
    names: dict[int, str]
    groups: dict[int, int]

    @property
    def label(self) -> str:
        """``opt0 (Adam)``."""
        return f"{self.event.id} ({self.event.cls.rpartition('.')[2]})"

    def is_unowned(self, identity: int) -> bool:
        """Whether no module ever owned this parameter: a tensor that is optimized directly."""
        return is_unowned(self.names[identity])


class Holders:
    """The present optimizers of one process, by id.

    is_of_models: any has had parameters of a module, alive or not.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Holder] = {}
        self.is_of_models = False

    def enter(self, event: OptimizerEvent) -> Holder:
        """Enter the present parameters of an optimizer."""
        names: dict[int, str] = {}
        groups: dict[int, int] = {}
        for index, group in enumerate(event.groups):
            names.update(zip(group.ids, group.params))
            groups.update(dict.fromkeys(group.ids, index))
            self.is_of_models |= not all(map(is_unowned, group.params))
        known = self.by_id.get(event.id)
        holder = self.by_id[event.id] = Holder(
            event=event,
            made=event if known is None else known.made,
            ids=frozenset(names),
            names=names,
            groups=groups,
        )
        return holder

    def held(self) -> set[int]:
        """Identities of the parameters of all optimizers."""
        return {identity for holder in self.by_id.values() for identity in holder.ids}

    def of(self, identity: int) -> set[str]:
        """The optimizers that hold this parameter."""
        return {id_ for id_, holder in self.by_id.items() if identity in holder.ids}


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
