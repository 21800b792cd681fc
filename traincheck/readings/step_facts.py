"""The facts of a training step: forward passes, owners of parameters, changes of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.readings.modal_modules import BATCH_NORM, is_dropping
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, StateEvent, StepEvent
from traincheck.schema.torch_api import MODAL, Families

Batch = tuple[str, int, int]  # loader, epoch, index

_MOST_WAITING = 10_000


@dataclass(slots=True)
class Forward:
    """Calls of one outermost module in one mode.

    Attributes:
        call: the first call.
        dropping, idle: the first call of an active or inactive dropout, by the path of its parent.
        norms: calls of batch norm, by the path of its parent.
        fresh: number of calls with another batch than the call before.
        loaders: loaders of these batches.
    """

    call: CallEvent
    count: int = 0
    fresh: int = 0
    dropping: dict[str, CallEvent] = field(default_factory=dict)
    idle: dict[str, CallEvent] = field(default_factory=dict)
    norms: dict[str, CallEvent] = field(default_factory=dict)
    loaders: set[str] = field(default_factory=set)
    last: Batch | None = None

    @property
    def path(self) -> str:
        """Path of the called module."""
        return self.call.module or ""

    @property
    def is_training(self) -> bool:
        return self.call.training is True

    @property
    def active(self) -> list[str]:
        """Paths of the dropout and batch normalization modules that act as in training."""
        active = {p for p, c in self.dropping.items() if c.training is not False}
        return sorted(active | {p for p, c in self.norms.items() if c.args.get("training") is True})

    def covers(self, name: str) -> bool:
        """Whether a variable is below the module that was called."""
        return name.startswith(f"{self.path}.")


@dataclass(slots=True)
class Forwards:
    """The forward passes of one step. waiting: calls whose outermost module has not ended."""

    entries: dict[tuple[str, bool, bool], Forward] = field(default_factory=dict)
    waiting: list[CallEvent] = field(default_factory=list)

    def wait(self, call: CallEvent) -> None:
        """A call that may belong to an outermost module that has not ended."""
        if len(self.waiting) >= _MOST_WAITING:  # no enclosing module
            self.waiting.clear()
        self.waiting.append(call)

    def root(self, call: CallEvent, batch: Batch | None) -> None:
        """An outermost module was called: waiting calls that began after it are within it."""
        key = (call.module or "", call.training is True, call.grad_enabled)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = Forward(call)
        entry.count += 1
        if batch is not None and batch != entry.last:
            entry.fresh += 1
            entry.last = batch
            entry.loaders.add(batch[0])
        for inner in self.waiting:
            if inner.span > call.span:
                _enter(entry, inner)
        self.waiting.clear()


def _enter(entry: Forward, call: CallEvent) -> None:
    path = call.module or entry.path
    if call.api == BATCH_NORM:
        entry.norms.setdefault(path, call)
        return
    on = is_dropping(call)
    if on is not None:
        (entry.dropping if on else entry.idle).setdefault(path, call)


# "new" is the moment of discovery, which every view records: it needs no scan.
DISCOVERY = Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"optimizer", "step"}))
GRADIENTS = Needs(
    calls=frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}),
    states=frozenset({"gradient@backward", "parameter@hand"}),
)
# Forward passes, their modes, and their effects.
MODES = Needs(calls=MODAL | {Families.MODULE, Families.EVAL})


@dataclass(slots=True)
class Parameter:
    """A parameter that a module owns.

    Attributes:
        names: several if weights are tied. `add_name` and `discard_name` change them.
        name: the first of them. root: the model in it.
        began_zero: whether it was zero when it was found.
    """

    names: set[str]
    requires_grad: bool
    shape: tuple[int, ...] = ()
    dtype: str = ""
    began_zero: bool = False
    name: str = field(init=False)  # rules ask for it often
    root: str = field(init=False)

    def __post_init__(self) -> None:
        self._name()

    def add_name(self, name: str) -> None:
        self.names.add(name)
        self._name()

    def discard_name(self, name: str) -> None:
        """Remove one of its names, possibly the last."""
        self.names.discard(name)
        self._name()

    def _name(self) -> None:
        self.name = min(self.names, default="")
        self.root = self.name.partition(".")[0]

    @property
    def is_fine_scale(self) -> bool:
        """Whether it may be the scale of a normalization, and is not in half precision."""
        return len(self.shape) == 1 and self.dtype in ("float32", "float64")

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements: FSDP leaves some parameters of a rank empty."""
        return 0 in self.shape


class Moment(NamedTuple):
    """A landmark call and the changes of gradients up to its end, as identities of parameters.

    Attributes:
        cleared: gradients that vanished, became zero or were replaced; before those in reached.
        reached: gradients that appeared or changed and are not zero.
        applied: for an optimizer step, the nonzero gradients of its parameters.
        present: for an optimizer step, all of them, zero or not.
        batch: loader, epoch and index of the last batch before it.

    Calls of outermost modules with grad enabled are moments too: of family MODULE.
    """

    call: CallEvent
    family: str
    cleared: frozenset[int]
    reached: frozenset[int]
    applied: frozenset[int]
    present: frozenset[int]
    batch: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The facts of one step.

    Attributes:
        gradients: the last scan of each.
        changed: parameters that changed.
        flipped: parameters that were frozen or unfrozen within the step.
        uncertain: parameters whose scans could not decide.
        norms: of gradients, by identity of the parameter, where numbers were recorded.
        broken: those of them that hold NaN or infinity.
        numbers: for parameters, the last scan with numbers.
        kept: by optimizer, gradients that it applied in an unrecorded step and that still exist
            when the first backward pass begins.
        has_own: an optimizer got other gradients than backward() left.
        by_hand: parameters with gradients that the program updated itself; no optimizer has stepped
            so far.
        written: parameters whose gradient it changed itself before a backward pass.
        uses: paths of the called modules, in order, and the first call of each.
        forwards: in order of their first call.
        softmaxes: calls of softmax with grad enabled.
    """

    event: StepEvent
    moments: Sequence[Moment]
    uses: Mapping[str, CallEvent]
    forwards: Sequence[Forward]
    softmaxes: Sequence[CallEvent]
    gradients: Mapping[int, StateEvent]
    norms: Mapping[int, float]
    broken: frozenset[int]
    reached: frozenset[int]
    changed: frozenset[int]
    flipped: frozenset[int]
    uncertain: frozenset[int]
    numbers: Mapping[int, StateEvent]
    kept: Mapping[str, frozenset[int]] = field(default_factory=dict)
    has_own: bool = False
    by_hand: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()

    @property
    def is_gap(self) -> bool:
        """The step was not recorded: awaited events may have happened in it."""
        return not self.event.recorded

    @property
    def is_complete(self) -> bool:
        """Whether absence is evidence: the step was recorded completely."""
        return self.event.recorded and self.event.complete

    def updates(self) -> list[Moment]:
        """Optimizer steps that ran to their end."""
        return [
            moment
            for moment in self.moments
            if moment.family == Families.OPTIMIZER_STEP and moment.call.exception is None
        ]

    @property
    def applied(self) -> frozenset[int]:
        """Parameters whose gradients were applied, by optimizers or by the program itself."""
        return self.by_hand.union(*(moment.applied for moment in self.updates()))
