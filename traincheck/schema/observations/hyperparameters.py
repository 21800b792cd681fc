"""Hyper-parameters of optimizers that a load replaces, or that are written without effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation

STATE_DICT = "state_dict"
OLD_GROUP = "old group"
DEFAULTS = "defaults"
ATTRIBUTE = "attribute"
OTHER_KEY = "other key"


@dataclass(frozen=True, slots=True)
class LoadedSetting:
    """A hyper-parameter of a group that a load changed.

    Attributes:
        group: index of the group.
        name: such as `lr`; `initial_lr` is the rate that a schedule starts from.
        before: the value right before the load; of `initial_lr` without a scheduler, that of `lr`.
        loaded: the value right after it.
        later: the value after the next update.
        is_default: whether `before` is the default of the class, so that nobody need have asked
            for it.
    """

    group: int
    name: str
    before: str
    loaded: str
    later: str
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class LoadedHyperparameters(Observation):
    """`Optimizer.load_state_dict` returned; written after the next update.

    Attributes:
        owner: id of the optimizer.
        settings: the hyper-parameters that it changed; values of Python are texts, as `repr` gives
            them.
        where: the line that called it.
    """

    text: ClassVar[str] = "hyperparameters loaded"
    instrument: ClassVar[str] = "optimizers"

    owner: str
    settings: tuple[LoadedSetting, ...]
    where: str | None = None


@dataclass(frozen=True, slots=True)
class IneffectiveWrite(Observation):
    """A hyper-parameter was written to a place that the optimizer does not read.

    Attributes:
        owner: id of the optimizer.
        place: `state_dict`, a group of a state that `Optimizer.state_dict` returned and that was
            neither loaded nor saved; `old group`, a group that `load_state_dict` has replaced;
            `defaults`, which new groups alone get; `attribute`, one of the optimizer itself; or
            `other key`, one of its first group that its class does not have.
        name: of the hyper-parameter, the attribute or the key.
        before: the value in this place before the write.
        written: the value there now.
        in_force: the value in the group that the optimizer uses.
        where: the line that called `state_dict()` or `load_state_dict()`.
    """

    text: ClassVar[str] = "hyperparameter written elsewhere"
    instrument: ClassVar[str] = "optimizers"

    owner: str
    place: str
    name: str
    before: str
    written: str
    in_force: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class OverwrittenRates(Observation):
    """A scheduler replaced learning rates that no update has used.

    Attributes:
        owner: id of the optimizer.
        scheduler: its class.
        written: the rates of the groups before its step.
        used: those of the last update.
        scheduled: those after its step.
        where: the line that called its step.
    """

    text: ClassVar[str] = "rates overwritten"
    instrument: ClassVar[str] = "schedulers"

    owner: str
    scheduler: str
    written: tuple[float, ...]
    used: tuple[float, ...]
    scheduled: tuple[float, ...]
    where: str | None = None
