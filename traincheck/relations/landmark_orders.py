"""Orders of landmarks that are worth learning, and the decision of one order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincheck.readings.steps import MODES, OWNED, key_of
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, OptimizerEvent
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import Families

_F = Families
_CLIP = _F.CLIP_NORM
# B -> (A, C): orders worth learning. Evaluation, schedules, accumulation and several losses are not
# required: healthy loops differ in them.
_ORDERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    _F.ZERO_GRAD: ((_F.OPTIMIZER_STEP, _F.BACKWARD), (_F.OPTIMIZER_STEP, _F.OPTIMIZER_STEP)),
    _F.MODULE: ((_F.OPTIMIZER_STEP, _F.BACKWARD),),
    _F.BACKWARD: ((_F.ZERO_GRAD, _F.OPTIMIZER_STEP), (_F.MODULE, _F.OPTIMIZER_STEP)),
    _F.OPTIMIZER_STEP: (
        (_F.BACKWARD, _F.ZERO_GRAD),
        (_F.SCHEDULER_STEP, _F.SCHEDULER_STEP),
    ),
    _F.UNSCALE: ((_F.BACKWARD, _CLIP),),
    _CLIP: ((_F.BACKWARD, _F.OPTIMIZER_STEP),),
    _F.SCALER_UPDATE: ((_F.SCALER_STEP, _F.SCALER_STEP),),
    _F.TRAIN: ((_F.EVAL, _F.BACKWARD),),
}
# Each program decides whether it clips gradients.
PRIVATE = frozenset({_CLIP, _F.UNSCALE})
# Gradients are also computed to look where they point: by adversaries, by searches for flat minima.
# And a step without any does nothing, where a batch is left out. Several schedulers may share an
# optimizer, step for each batch of an accumulation, or be moved forward.
HABITS = frozenset(
    {
        (_F.BACKWARD, _F.OPTIMIZER_STEP, _F.ZERO_GRAD),
        (_F.EVAL, _F.TRAIN, _F.BACKWARD),
        (_F.ZERO_GRAD, _F.BACKWARD, _F.OPTIMIZER_STEP),
        (_F.SCHEDULER_STEP, _F.OPTIMIZER_STEP, _F.SCHEDULER_STEP),
    }
)
TRIPLES = tuple((a, b, c) for b, pairs in _ORDERS.items() for a, c in pairs)
_SYMPTOMS = {
    _F.ZERO_GRAD: Symptom.MISSING_ZERO_GRAD,
    _F.BACKWARD: Symptom.STEP_WITHOUT_GRADIENT,
    _F.OPTIMIZER_STEP: Symptom.MISSING_STEP,
    _F.TRAIN: Symptom.EVAL_MODE,
}
# Calls that must be recorded beside these: their objects, or calls that may replace them.
BESIDE = {
    _F.OPTIMIZER_STEP: _F.SCALER_STEP,
    _F.ZERO_GRAD: _F.BACKWARD,
    _F.CLIP_NORM: _F.CLIP_VALUE,
    _F.TRAIN: _F.MODULE,
}
# A gradient scaler's step stands for the optimizer's, which the scaler may skip.
_ALSO = {_F.SCALER_STEP: _F.OPTIMIZER_STEP}


def triple_of(claim: Hypothesis) -> tuple[str, str, str]:
    """A, B and C of a claim."""
    params = claim.params
    return params["after"], params["needs"], params["before"]


@dataclass(slots=True)
class Pending:
    """An A whose C has not come yet.

    Attributes:
        is_satisfied: B came.
        is_due: C would belong to this A.
        symptom: the symptom if B is missing, unless it is the usual one.
    """

    event: CallEvent
    is_satisfied: bool = False
    is_due: bool = True
    symptom: Symptom | None = None


class SharedOptimizers:
    """Optimizers that hold the same parameters, such as one that wraps another.

    Attributes:
        of: optimizer -> the first optimizer that it shares parameters with.
    """

    def __init__(self) -> None:
        self.of: dict[str, str] = {}
        self._held_by: dict[int, str] = {}  # identity of a parameter -> optimizer
        self._backward_ns = -1  # when the last one began

    def hold(self, event: OptimizerEvent) -> None:
        """Enter the parameters of an optimizer."""
        for identity in (i for group in event.groups for i in group.ids):
            first = self._held_by.setdefault(identity, event.id)
            self.of.setdefault(event.id, self.of.get(first, first))

    def share(self, one: str | None, other: str | None) -> bool:
        """Whether two calls may concern the same gradients; None concerns everyone's."""
        if one is None or other is None:
            return True
        return self.of.get(one, one) == self.of.get(other, other)

    def call(self, event: CallEvent, landmark: str) -> None:
        """Enter a backward pass."""
        if landmark == _F.BACKWARD:
            self._backward_ns = event.start_ns

    def lose(self, held: Iterable[tuple[int, Pending, CallEvent]], step: CallEvent) -> None:
        """Mark gradients that were cleared in an iteration whose other gradients a step applies.

        With several optimizers it is not known whose step is missing.
        """
        for _, pending, cleared in held if len(set(self.of.values())) == 1 else ():
            if pending.event.step == step.step and cleared.start_ns < self._backward_ns:
                pending.symptom = Symptom.GRADIENT_LOST


class OrderWatch:
    """Decides one triple.

    Attributes:
        is_step_due: a step is to apply the gradients of A.
        is_of_gradients: the gradients of C matter once a step applies them.
        is_of_one_loss: undecided with several optimizers, whose losses may share a forward.
    """

    def __init__(self, after: str, needed: str, before: str) -> None:
        if (after, needed, before) not in TRIPLES:
            raise ValueError(f"nothing is known of the order {after}, {needed}, {before}")
        self.after, self.needed, self.before = after, needed, before
        self._by_key = (after in OWNED and before in OWNED) or after in MODES
        self.is_step_due = needed == _F.OPTIMIZER_STEP and after == _F.BACKWARD
        self.is_of_zero = needed == _F.ZERO_GRAD
        self.is_of_gradients = after == _F.OPTIMIZER_STEP and before == _F.BACKWARD
        # Assigned gradients, as in evolution strategies, are added to nothing.
        self._is_of_backward = needed == _F.ZERO_GRAD and before == _F.OPTIMIZER_STEP
        self.symptom = _SYMPTOMS.get(needed, Symptom.MISSING_CALL)
        if after == _F.SCHEDULER_STEP:  # stepped too often; that no step applies is another fault
            self.symptom = Symptom.SCHEDULE
        self.is_of_one_loss = needed == _F.MODULE and before == _F.BACKWARD
        # A scheduler's calls are kept apart by scheduler, whichever optimizer steps between them.
        self._by_owner_of_needed = (after == _F.SCHEDULER_STEP) == (needed == _F.SCHEDULER_STEP)
        self._is_of_schedule = after == _F.SCHEDULER_STEP
        self._has_begun = False  # an optimizer has stepped: no schedule is moved forward any more
        self._waits: dict[str | None, Pending] = {}
        self._trained: set[str | None] = set()  # models that were in training mode

    def observe(
        self, event: CallEvent, landmark: str, partners: Mapping[str, str] | None = None
    ) -> list[tuple[Pending, CallEvent]]:
        """The calls that waited for ``event``, if it is C. C comes before A if they are the same.

        partners: optimizer -> the first of all optimizers that hold the same parameters.
        """
        key = key_of(event, landmark) if self._by_key else None
        if partners and key is not None:
            key = partners.get(key, key)
        if self._is_of_schedule and landmark == _F.SCHEDULER_STEP:
            key = f"{key} {event.api}"  # by class: an optimizer may have several
        ended = self._end(event, key) if landmark == self.before else []
        if landmark == self.needed or _ALSO.get(landmark) == self.needed:
            self._satisfy(key if self._by_owner_of_needed else None)
            self._has_begun = True
        if self.after == _F.EVAL:
            self._mode(event, landmark, key)
        elif landmark == self.after and (self._has_begun or not self._is_of_schedule):
            self._waits[key] = Pending(event, is_due=not self._is_of_backward)
        if self._is_of_backward and landmark == _F.BACKWARD:
            for pending in self._waits.values():
                pending.is_due = True
        return ended

    def forget(self) -> None:
        """Steps were not recorded, in which B may have come."""
        self._waits.clear()

    def _end(self, event: CallEvent, key: str | None) -> list[tuple[Pending, CallEvent]]:
        # Module.zero_grad has no owner and backward no key: they concern all that wait.
        keys = [k for k in self._waits if key is None or k is None or k == key]
        keys = [k for k in keys if self._waits[k].is_due]
        # A call does not come after a call that it made: backward may step optimizers.
        if self.before in (self.after, _F.BACKWARD):
            keys = [k for k in keys if self._waits[k].event.start_ns < event.start_ns]
        return [(self._waits.pop(k), event) for k in keys]

    def _satisfy(self, key: str | None) -> None:
        for other, pending in self._waits.items():
            if key is None or other is None or key == other:
                pending.is_satisfied = True

    def _mode(self, event: CallEvent, landmark: str, key: str | None) -> None:
        """A model waits for ``train`` after ``eval``, if it was trained before.

        It is due once the model runs: another model may train meanwhile.
        """
        if landmark == _F.EVAL and key in self._trained:
            self._waits[key] = Pending(event, is_due=False)
        elif landmark == _F.MODULE:
            if event.training:
                self._trained.add(key)
                self._satisfy(key)
            if key in self._waits:
                self._waits[key].is_due = True
        elif landmark == _F.TRAIN:
            self._trained.add(key)
