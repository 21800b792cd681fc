"""Optimizers: whether their groups changed, what wraps one, and what a load is about to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer

from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import groups_of, has_groups, is_a, own, state_of
from traincheck.collect.tensors.summarize import dotted, summarize_named
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.tracking.tracker import Tracker
from traincheck.handlers import give_back
from traincheck.schema.words import is_unowned

_RATES = frozenset({"lr", "initial_lr"})
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

    def _signature(self, owner: str, optimizer: Optimizer) -> Any:
        tracker = self._tracker
        return [
            (
                [(id(p), tracker.name_of(p)) for p in group["params"]],
                [
                    (key, value)
                    for key, value in group.items()
                    if _is_plain(value)
                    and (type(value) is not float or (self._is_exact and key not in _RATES))
                ],
            )
            for group in groups_of(optimizer)
        ]


_INNER = ("optimizer", "_optimizer")  # attribute in schedulers and wrappers of frameworks
_MOST_WRAPPERS = 3


# Accelerate, Lightning and Fabric wrap each optimizer, and so do searches for flat minima. All
# instruments use this module, so that none compares a wrapper with the wrapped optimizer.
def layers(given: Any) -> Iterator[Any]:
    """``given``, and the optimizers that it wraps, from the outside in."""
    for _ in range(_MOST_WRAPPERS + 1):
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


_MAX_DEPTH = 5
_UNKNOWN = object()
_Count: TypeAlias = int | None  # None if a value is on a device: comparing would wait for it


# Accelerate loads the state of each optimizer that it prepares into the same optimizer. Such a load
# changes nothing, so it does not mean that a run resumes another one.
def of_optimizer(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> _Count:
    """Number of values of groups and state that differ from those of the optimizer.

    Returns None if unknown: the state has another form, or values are on a device.
    """
    groups, given = groups_of(optimizer), state.get("param_groups")
    entries = state.get("state")
    if not isinstance(given, list) or not isinstance(entries, Mapping):
        return None
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in given]:
        return None  # the load raises
    pairs = [
        (entries.get(key), state_of(optimizer, parameter))
        for told, group in zip(given, groups)
        for key, parameter in zip(told["params"], group["params"])
    ]
    counts = [_compare(new or {}, old or {}) for new, old in pairs]
    counts += [_compare(_hyper(told), _hyper(group)) for told, group in zip(given, groups)]
    return _total(counts)


def of_scheduler(scheduler: Any, state: Mapping[str, Any]) -> _Count:
    """Number of values that differ from those of the scheduler; None if unknown."""
    own = vars(scheduler)
    return _total([_compare(value, own.get(key, _UNKNOWN)) for key, value in state.items()])


def _hyper(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _total(counts: list[_Count]) -> _Count:
    known = sum(count for count in counts if count is not None)
    return None if not known and None in counts else known


def _compare(new: Any, old: Any, depth: int = 0) -> _Count:
    """Number of values that differ. A value that cannot be compared counts as different."""
    if new is old:
        return 0
    if isinstance(new, torch.Tensor) and isinstance(old, torch.Tensor):
        if (new.shape, new.dtype) != (old.shape, old.dtype):
            return 1
        return int(fingerprint(new) != fingerprint(old)) if new.is_cpu and old.is_cpu else None
    if type(new) in _SCALARS and type(old) in _SCALARS:
        return int(new != old)
    if new is None and callable(old):  # a function, which is not saved
        return 0
    if depth >= _MAX_DEPTH:
        return 1
    if isinstance(new, Mapping):
        inner = old if isinstance(old, Mapping) else getattr(old, "__dict__", None)
        if not isinstance(inner, Mapping):
            return 1
        keys = dict.fromkeys([*new, *(inner if inner is old else ())])
        pairs = [(new.get(key, _UNKNOWN), inner.get(key, _UNKNOWN)) for key in keys]
    elif isinstance(new, (list, tuple)) and isinstance(old, (list, tuple)) and len(new) == len(old):
        pairs = list(zip(new, old))
    else:
        return 1
    return _total([_compare(one, other, depth + 1) for one, other in pairs])
