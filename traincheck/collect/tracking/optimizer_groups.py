"""Parameter groups of optimizers: whether they changed, and the record of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any

from torch.optim import Optimizer

from traincheck.collect.tensors.reading import groups_of, has_groups, is_a, own
from traincheck.collect.tensors.summarize import dotted, summarize_named
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.tracking.tracker import Tracker
from traincheck.handlers import give_back
from traincheck.schema.words import is_unowned

_SCALARS = frozenset({bool, int, float, str, type(None)})


def _is_plain(value: Any) -> bool:
    """Whether a value compares as what it is: arrays do not, others may run their own code."""
    if type(value) is tuple:
        return all(type(item) in _SCALARS for item in value)
    return type(value) in _SCALARS


class _KnownGroup:
    """A group of an optimizer as it was: which parameters, and what its hyper-parameters were."""

    __slots__ = ("get", "held", "size", "values")

    def __init__(self, group: dict[str, Any]) -> None:
        names = [
            name
            for name, value in group.items()
            if name not in ("params", "lr") and _is_plain(value)
        ]
        self.held = list(map(id, group["params"]))
        self.size = len(group)
        self.get: Callable[[dict[str, Any]], Any] = itemgetter(*names) if names else lambda _: None
        self.values = self.get(group)

    def fits(self, group: dict[str, Any]) -> bool:
        try:
            return (
                len(group) == self.size
                and list(map(id, group["params"])) == self.held
                and bool(self.get(group) == self.values)
            )
        except Exception as error:  # one was taken out, another put in, or arrays are compared
            give_back(error)
            return False


class OptimizerGroups:
    """Follows the groups of all optimizers of a process.

    Args:
        tracker: of the process.
        is_exact: whether numbers that a schedule may change in each step are followed, too, such as
            a momentum; the learning rate never is.

    Attributes:
        loose: optimizers that hold tensors of no model -> whether there was no gradient at all at
            the last step.
    """

    def __init__(self, tracker: Tracker, *, is_exact: bool = False) -> None:
        self._tracker = tracker
        self._is_exact = is_exact
        self._signatures: dict[str, Any] = {}
        self._known: dict[str, tuple[int, list[_KnownGroup]]] = {}
        self.loose: dict[str, bool] = {}

    def forget(self, owner: str) -> None:
        """An optimizer has died."""
        self._signatures.pop(owner, None)
        self._known.pop(owner, None)
        self.loose.pop(owner, None)

    def update(self, em: Emitter, owner: str, optimizer: Optimizer) -> None:
        """Record groups that may have changed, if they did."""
        if self._signatures.get(owner) != self._signature(owner, optimizer):
            self.write(em, owner, optimizer, "groups", None)
        self._known[owner] = (
            self._tracker.names_version,
            [_KnownGroup(group) for group in groups_of(optimizer)],
        )

    def are_unchanged(self, owner: str, optimizer: Optimizer) -> bool:
        """Whether groups are as at the last step, in a tenth of the time of a signature."""
        groups = groups_of(optimizer)
        version, known = self._known.get(owner, (-1, ()))
        if version != self._tracker.names_version or len(groups) != len(known):
            return False
        for before, group in zip(known, groups):  # noqa: SIM110  # a generator costs as much again
            if not before.fits(group):
                return False
        return True

    def write(
        self, em: Emitter, owner: str, optimizer: Optimizer, change: str, at: str | None
    ) -> None:
        """Record the groups of an optimizer. at: where it was made."""
        tracker = self._tracker
        tracker.track_unowned(em, owner, optimizer)
        known = [name for name, _ in tracker.named_parameters(owner, optimizer)]
        self.loose.pop(owner, None)
        if any(map(is_unowned, known)):
            self.loose[owner] = False
        names, groups = iter(known), []
        for group in groups_of(optimizer):
            hyper = {k: summarize_named(k, v) for k, v in group.items() if k != "params"}
            ids = [tracker.identities.of(p) for p in group["params"]]
            groups.append({"hyper": hyper, "params": [next(names) for _ in ids], "ids": ids})
        fields = {"change": change, "id": owner, "cls": dotted(type(optimizer)), "groups": groups}
        if at is not None:
            fields["where"] = at
        em.event("optimizer", fields)
        self._signatures[owner] = self._signature(owner, optimizer)

    def _follows(self, key: str) -> bool:
        return self._is_exact and key not in ("lr", "initial_lr")

    def _signature(self, owner: str, optimizer: Optimizer) -> Any:
        tracker = self._tracker
        return [
            (
                [(id(p), tracker.name_of(p)) for p in group["params"]],
                [
                    (key, value)
                    for key, value in group.items()
                    if _is_plain(value) and (type(value) is not float or self._follows(key))
                ],
            )
            for group in groups_of(optimizer)
        ]


_INNER = ("optimizer", "_optimizer")  # attribute in schedulers and wrappers of frameworks
_MAX_DEPTH = 3


# Accelerate, Lightning and Fabric wrap each optimizer, and so do searches for flat minima. All
# instruments use this module, so that none compares a wrapper with the wrapped optimizer.
def layers(given: Any) -> Iterator[Any]:
    """``given``, and the optimizers that it wraps, from the outside in."""
    for _ in range(_MAX_DEPTH + 1):
        yield given
        values = own(given)
        inner = next((values[n] for n in _INNER if n in values), None)
        if not is_a(inner, Optimizer):
            break
        given = inner


def innermost(given: Any) -> Optimizer | None:
    """The optimizer inside schedulers and wrappers; None if there is none."""
    *_, found = layers(given)
    return found if is_a(found, Optimizer) and has_groups(found) else None


def owner_of(live: Iterable[tuple[str, Optimizer]], given: Any) -> str | None:
    """The id of the optimizer that ``given`` is, wraps, or shares parameter groups with.

    Args:
        live: ids and objects of the optimizers that are known.
        given: an optimizer, or an object that represents one.
    """
    known = list(live)
    for layer in layers(given):
        for name, found in known:
            if found is layer:
                return name
    groups = groups_of(given) if has_groups(given) else None
    if groups is None:
        return None
    return next((name for name, found in known if groups_of(found) is groups), None)
