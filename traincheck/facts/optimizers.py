"""Optimizers and their parameters."""

from __future__ import annotations

from dataclasses import dataclass

from traincheck.schema.events import OptimizerEvent
from traincheck.schema.parameter_names import is_unowned


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
