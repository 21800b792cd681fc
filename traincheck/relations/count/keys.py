"""Counted calls: landmarks of a loop, functions, modules and collectives."""

from __future__ import annotations

from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary

# An API or family, and the owner or module of the call where these differ
Key = tuple[str, str | None]
BACKWARD: Key = (Families.BACKWARD, None)
DETACH = "torch.Tensor.detach"
LOOP_DETACH: Key = (DETACH, "the loop")  # detaches outside other calls, such as for a log
REDUNDANT_ZERO_GRAD: Key = (
    Families.ZERO_GRAD,
    "redundant",
)  # clears gradients that no step applied
ROOT: Key = (Families.MODULE, "from outside")  # forwards of a model
MARKERS = frozenset({LOOP_DETACH, REDUNDANT_ZERO_GRAD, ROOT})  # no claims are about these
_OWNED = frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP})
# Calls of a loop, whether gradients are recorded or not.
LANDMARKS = _OWNED | {
    Families.BACKWARD,
    Families.ZERO_GRAD,
    Families.SCALE,
    Families.SCALER_STEP,
    Families.SCALER_UPDATE,
    Families.UNSCALE,
    Families.CLIP_NORM,
    Families.CLIP_VALUE,
}
UPDATES = frozenset({Families.OPTIMIZER_STEP, Families.SCALER_STEP})
MODES = frozenset({Families.TRAIN, Families.EVAL})
INIT = "torch.nn.init."
COLLECTIVE = "torch.distributed."
CLEARED: Key = (Families.ZERO_GRAD, None)
OPENINGS = frozenset({CLEARED, ROOT})
# Calls that show where a window ends, when a model is evaluated, and whether an iteration was left
# before its end.
FRAME = frozenset({Families.BACKWARD, Families.MODULE, Families.ZERO_GRAD, *UPDATES, *MODES})
# Without these the model does not learn as intended.
ESSENTIAL = frozenset(
    {Families.BACKWARD, Families.OPTIMIZER_STEP, Families.SCALER_STEP, Families.ZERO_GRAD}
)


def key_of(event: CallEvent) -> Key:
    """The key of a call: a landmark by its family, anything else by its name."""
    family = event.family
    if family in LANDMARKS:
        return family, event.owner if family in _OWNED else None
    return event.api, None


def is_listed(module: str | None) -> bool:
    """Whether a module is an item of a list or a part of one, such as an expert."""
    return module is not None and any(part.isdecimal() for part in module.split("."))


def takes_part(event: CallEvent) -> bool:
    """Whether a gradient may flow through a call: not through a transform of a sample."""
    result = tensor_summary(event.result)
    if result is None or result.requires_grad:
        return True
    given = map(tensor_summary, event.args.values())
    return any(tensor is not None and tensor.requires_grad for tensor in given)
