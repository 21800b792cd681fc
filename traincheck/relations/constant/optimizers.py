"""Hyper-parameters of optimizers, and parameters that something else writes to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.facts.resumptions import brings_back
from traincheck.relations.constant.setting import BETWEEN, HYPER, KEPT, Key, Setting
from traincheck.schema.events import (
    CheckpointEvent,
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject
from traincheck.schema.observations.gradients import ExternalWrites
from traincheck.schema.observations.reading import observed
from traincheck.schema.parameter_names import is_unowned
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_number

_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"})  # *schedule* covers these
_CYCLES = "max_momentum"  # OneCycleLR adds it if it moves momentum against the rate
_CYCLED = ("betas", "momentum")


class WritesBetweenSteps:
    """Whether anything else writes to parameters between two steps of their optimizer."""

    def __init__(self) -> None:
        self._is_loaded = False  # since the last scan

    def load(self, event: CheckpointEvent) -> None:
        """Something was saved or loaded."""
        self._is_loaded |= brings_back(event)

    def mark(self, event: MarkEvent) -> Setting | None:
        """The parameters that changed since the last step of their optimizer, if known."""
        found = observed(event, ExternalWrites)
        if found is None:
            return None
        is_loaded, self._is_loaded = self._is_loaded, False
        if is_loaded:
            return None
        names = [name for name in found.names if not is_unowned(name)]
        subject = Subject(variable=names[0] if names else None, api=Families.OPTIMIZER_STEP)
        return Setting(Key(BETWEEN, found.owner), {found.owner: not names}, event, subject)


class Optimizers:
    """Hyper-parameters of each optimizer, without learning rates, at the end of each step."""

    def __init__(self) -> None:
        self._now: dict[str, OptimizerEvent] = {}
        self._first: dict[str, OptimizerEvent] = {}

    def optimizer(self, event: OptimizerEvent) -> None:
        """An optimizer was created or changed."""
        self._now[event.id] = event
        self._first.setdefault(event.id, event)

    def step(self, event: StepEvent) -> Iterator[Setting]:
        """The hyper-parameters at the end of a step that trained."""
        for name, now in self._now.items():
            if name not in event.lr:
                continue
            # By position: groups may be added later.
            was = [_hyper(group.hyper) for group in self._first[name].groups]
            is_ = [_hyper(group.hyper) for group in now.groups]
            subject = Subject(api=f"{now.cls}.__init__")
            yield Setting(
                Key(HYPER, f"{name} {now.cls}"), _by_name(is_[: len(was)]), event, subject
            )
            cycled = _CYCLED if any(_CYCLES in group for group in is_) else ()
            kept = {
                key: all(key not in b or a.get(key) == b[key] for a, b in zip(was, is_))
                for key in {key for group in was for key in group}.difference(cycled)
            }
            yield Setting(Key(KEPT), kept, event, subject)


def _hyper(hyper: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in hyper.items()
        if key not in _RATES
        and (is_number(value) or (isinstance(value, list) and all(map(is_number, value))))
    }


def _by_name(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A value for each group by name; one, if all are equal."""
    names = sorted({name for group in groups for name in group})
    found = {}
    for name in names:
        values = [group.get(name) for group in groups]
        found[name] = [values[0]] if all(value == values[0] for value in values) else values
    return found
