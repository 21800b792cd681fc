"""Loads, and the first updates after them: what is restored, replaced or left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from traincheck.schema.observations.base import Observation


@dataclass(frozen=True, slots=True)
class FollowedValue:
    """One parameter from a load to the second update after it, as L2 norms of differences.

    Attributes:
        jump: between the values before the load and the loaded ones.
        moved: between the loaded values and those after the first update.
        back: between the values before the load and those after the first update.
        later: between the values after the first update and those after the second.
    """

    jump: float
    moved: float
    back: float
    later: float


@dataclass(frozen=True, slots=True)
class LoadFollowed(Observation):
    """A load changed parameters, the model was trained with them, and two updates have followed.

    Distances are those of samples of at most 4096 elements of a parameter.

    Attributes:
        model: its path.
        where: line that called load_state_dict.
        step: of the first update.
        parameters: how many the load changed.
        values: by name, for those that the load and the first update changed.
    """

    text: ClassVar[str] = "load followed"
    need: ClassVar[str] = "parameter@load"
    instrument: ClassVar[str] = "checkpoint"

    model: str
    where: str | None
    step: int
    parameters: int
    values: Mapping[str, FollowedValue]


@dataclass(frozen=True, slots=True)
class EmbeddingRows(Observation):
    """An embedding is used in a training step, with rows that may never be trained.

    Attributes:
        name: of its weight.
        rows: number of rows.
        frozen: whether it does not require grad, or no optimizer holds it.
        earlier: number of rows of an earlier embedding whose values its first rows still have; null
            if there was none.
        new_ids: how many ids of the batch are those of rows behind these, without rows that are
            copies of others.
        new_rows: the first of these rows.
        ids: number of ids of the batch that were compared.
        padding: index of the padding row; null if it has none.
        padding_ids: how many ids of the batch are those of this row.
        padding_norm: L2 norm of this row.
        usual_norm: median of the L2 norms of other rows.
        padding_gradient: L2 norm of the gradient that reaches the results of this row, relative to
            that of all results; null if it is not known.
        is_loaded: whether a load has set the weight.
    """

    text: ClassVar[str] = "embedding rows"
    need: ClassVar[str] = "row@lookup"
    instrument: ClassVar[str] = "functional"

    name: str
    rows: int
    frozen: bool
    earlier: int | None
    new_ids: int
    new_rows: tuple[int, ...]
    ids: int
    padding: int | None
    padding_ids: int
    padding_norm: float
    usual_norm: float
    padding_gradient: float | None
    is_loaded: bool


@dataclass(frozen=True, slots=True)
class AverageDecay(Observation):
    """A model that no optimizer holds moved towards a trained one of the same structure in a step.

    Attributes:
        model: its path.
        model_class: of its outermost module.
        of: the trained model.
        decay: share of the earlier values that it kept: 0 for a copy, 1 if it does not move.
        residual: L2 norm of the part of its move that this does not explain, relative to the move.
    """

    text: ClassVar[str] = "average moved"
    need: ClassVar[str] = "average@step"
    instrument: ClassVar[str] = "optimizers"

    model: str
    model_class: str
    of: str
    decay: float
    residual: float


@dataclass(frozen=True, slots=True)
class OptimizerValues(Observation):
    """The state of an optimizer was taken to be saved, or was loaded.

    Attributes:
        moment: "saved" or "loaded".
        owner: id of the optimizer.
        where: line of the call.
        values: sketches of its tensors by name of the parameter and key of the state: eight signed
            sums of at most 512 elements, and their L2 norm. Equal tensors have equal sketches.
    """

    text: ClassVar[str] = "optimizer values"
    need: ClassVar[str] = "optimizer_state@load"
    instrument: ClassVar[str] = "checkpoint"

    moment: str
    owner: str
    where: str | None
    values: Mapping[str, Mapping[str, tuple[float, ...]]]


@dataclass(frozen=True, slots=True)
class PartNotLoaded(Observation):
    """A load left parameters out, no other load has set them, and they are frozen in training.

    Attributes:
        model: path of the loaded model.
        where: line that called load_state_dict.
        loaded: how many of its parameters the load set.
        names: the first of those that it left out, that require no grad and are in no optimizer.
        parameters: how many there are.
    """

    text: ClassVar[str] = "part not loaded"
    need: ClassVar[str] = "parameter@missing"
    instrument: ClassVar[str] = "checkpoint"

    model: str
    where: str | None
    loaded: int
    names: tuple[str, ...]
    parameters: int


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


@dataclass(frozen=True, slots=True)
class LoadedAverage(Observation):
    """A model that no optimizer holds has changed soon after it was loaded.

    Attributes:
        model: its path.
        of: the trained model with the same structure.
        parameters: how many it has.
        equal: whether it equals the trained model; null if that was written to by hand.
    """

    text: ClassVar[str] = "loaded model changed"
    need: ClassVar[str] = "average@loaded"
    instrument: ClassVar[str] = "checkpoint"

    model: str
    of: str
    parameters: int
    equal: bool | None


@dataclass(frozen=True, slots=True)
class LoadedGenerator:
    """One state of a random generator in a loaded object, at the end of the next update.

    Attributes:
        key: its place in the object, such as `rng.torch`; `[]` for indices and other numbers.
        generator: `torch`, `python`, `numpy` or `cuda`.
        restored: whether a generator got this state, and was not seeded since.
        seeded: whether the global generator was seeded since the load, or since it got this state.
        drawn: whether the global generator has another state than at the load.
        owned: whether the program holds further generators of this kind.
    """

    key: str
    generator: str
    restored: bool
    seeded: bool
    drawn: bool
    owned: bool


@dataclass(frozen=True, slots=True)
class LoadedGenerators(Observation):
    """The first update ends after a load of states of random generators.

    The states of ranks in one list are one state, which is restored if any of them is.

    Attributes:
        where: line of the load.
        states: those that the file holds.
    """

    text: ClassVar[str] = "loaded generators"
    instrument: ClassVar[str] = "checkpoint"

    where: str | None
    states: tuple[LoadedGenerator, ...]
