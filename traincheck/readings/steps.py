"""Training steps: properties from the end event, and the calls that make up a training loop."""

from __future__ import annotations

from traincheck.schema.events import CallEvent, StepEvent
from traincheck.schema.torch_api import Families


def is_judged(event: StepEvent) -> bool:
    """Whether absence is evidence in this step: it trained and was recorded completely."""
    counters = event.counters
    return (
        event.recorded
        and event.complete
        and (counters.get("backward", 0) > 0 or counters.get("optimizer_step", 0) > 0)
    )


def is_skipped(event: StepEvent) -> bool:
    """Whether a gradient scaler skipped an optimizer step: no update is due then."""
    return event.counters.get("scaler_step", 0) > event.counters.get("optimizer_step", 0)


_F = Families
_LANDMARKS = {
    _F.ZERO_GRAD: _F.ZERO_GRAD,
    _F.MODULE: _F.MODULE,  # a root module called with grad enabled
    _F.BACKWARD: _F.BACKWARD,
    _F.UNSCALE: _F.UNSCALE,
    _F.CLIP_NORM: _F.CLIP_NORM,
    _F.CLIP_VALUE: _F.CLIP_NORM,
    _F.OPTIMIZER_STEP: _F.OPTIMIZER_STEP,
    _F.SCALER_STEP: _F.SCALER_STEP,
    _F.SCALER_UPDATE: _F.SCALER_UPDATE,
    _F.SCHEDULER_STEP: _F.SCHEDULER_STEP,
    _F.TRAIN: _F.TRAIN,
    _F.EVAL: _F.EVAL,
}
# Families whose calls belong to one optimizer, scheduler or scaler; and to one model
OWNED = frozenset({_F.ZERO_GRAD, _F.OPTIMIZER_STEP, _F.SCALER_STEP, _F.SCHEDULER_STEP})
MODES = frozenset({_F.TRAIN, _F.EVAL, _F.MODULE})


def landmark_of(event: CallEvent) -> str | None:
    """The landmark of a call; a module call is one only as the root of a training forward."""
    landmark = _LANDMARKS.get(event.family or event.api)
    if landmark is None or event.exception is not None:
        return None
    if landmark == _F.MODULE and not (event.root and event.grad_enabled):
        return None
    return landmark


def key_of(event: CallEvent, landmark: str) -> str | None:
    """The owner of a call: an optimizer, a scheduler or a model; None if it has none."""
    if landmark in OWNED:
        return event.owner
    if landmark in MODES:
        return (event.module or event.api).partition(".")[0]
    return None


def scheduler_class(event: CallEvent) -> str:
    """The class of a scheduler that is created or stepped: ``CosineAnnealingLR``."""
    return event.api.split(".")[-2]
