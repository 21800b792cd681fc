"""What a training step did: who holds which parameters, and what became of gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.facts.forwards import Forward
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, StateEvent, StepEvent
from traincheck.schema.torch_api import MODAL, Families

# "new" is the moment of discovery, which every view records: it asks for no look.
DISCOVERY = Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"optimizer", "step"}))
GRADIENTS = Needs(
    calls=frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}),
    states=frozenset({"gradient@backward", "parameter@hand"}),
)
# Forward passes, their modes, and what depends on these.
MODES = Needs(calls=MODAL | {Families.MODULE, Families.EVAL})


@dataclass(slots=True)
class Parameter:
    """A parameter that a module owns.

    names: several when weights are tied. began_zero: whether all of it was zero when it was found.
    """

    names: set[str]
    requires_grad: bool
    shape: tuple[int, ...] = ()
    dtype: str = ""
    began_zero: bool = False

    @property
    def name(self) -> str:
        return min(self.names)

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_fine_scale(self) -> bool:
        """Whether it may be the scale of a normalization, and is not in half precision."""
        return len(self.shape) == 1 and self.dtype in ("float32", "float64")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it to train: FSDP leaves some parameters of a rank so."""
        return 0 in self.shape


class Moment(NamedTuple):
    """A landmark call and what became of gradients up to its end, as identities of parameters.

    cleared: gradients that left, became zero or were replaced; before those in reached. reached:
    gradients that came or changed and are not zero. applied: of an optimizer step, the non-zero
    gradients that its parameters had. present: of an optimizer step, all of them, zero or not.
    batch: loader, epoch and index of the batch that came last before it.

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
    """The books of one step.

    gradients: the last look at each. changed: parameters that differ since; flipped: that were
    frozen, or are no longer, at some moment of it; uncertain: whose looks could not tell. numbers:
    of parameters, the last look that took any. kept: by optimizer, gradients that it has applied
    in a step that was not recorded, and that are there when the first backward pass begins.
    has_own: an optimizer was given other gradients than backward() left. by_hand: parameters with
    gradients that the program has updated itself, as no optimizer has stepped so far; written: of
    which it has changed a gradient itself before a backward pass. uses: paths of the modules
    that were called, in order; the first call of each. forwards: in order of their first.
    softmaxes: calls of softmax with grad enabled.
    """

    event: StepEvent
    moments: Sequence[Moment]
    uses: Mapping[str, CallEvent]
    forwards: Sequence[Forward]
    softmaxes: Sequence[CallEvent]
    gradients: Mapping[int, StateEvent]
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
        """The step was not recorded: what was awaited may have happened here."""
        return not self.event.recorded

    @property
    def is_complete(self) -> bool:
        """Whether what is absent really did not happen."""
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
