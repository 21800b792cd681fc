"""Optimizers, and the parameters that they hold."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.schema.events import OptimizerEvent
from traincheck.schema.parameter_names import is_unowned


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An optimizer and what it holds.

    event: of its groups as they are. made: the first of it, which tells where it was made. names:
    by identity; groups: index of the group by identity.
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
        """Whether no module ever owned this one: a tensor that is optimized for itself."""
        return is_unowned(self.names[identity])


class Holders:
    """The optimizers of one process, by id, as they are now.

    is_of_models: any was given parameters of a module, alive or not.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Holder] = {}
        self.is_of_models = False

    def enter(self, event: OptimizerEvent) -> Holder:
        """Take note of what an optimizer holds now."""
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
        """Identities of all that any optimizer holds."""
        return {identity for holder in self.by_id.values() for identity in holder.ids}

    def of(self, identity: int) -> set[str]:
        """The optimizers that hold this one."""
        return {id_ for id_, holder in self.by_id.items() if identity in holder.ids}
