"""What is counted: landmarks of a loop, functions, modules and collectives."""

from __future__ import annotations

from traincheck.schema.apis import Families
from traincheck.schema.events import CallEvent
from traincheck.schema.values import tensor_summary

# An API or family, and whose call it is where owners are told apart, or by which module
Key = tuple[str, str | None]
BACKWARD: Key = (Families.BACKWARD, None)
DETACH = "torch.Tensor.detach"
LOOP_DETACH: Key = (DETACH, "the loop")  # of these, what no other call makes: it may be for a log
REDUNDANT_ZERO_GRAD: Key = (
    Families.ZERO_GRAD,
    "in vain",
)  # of these, what clears gradients that none applied
ROOT: Key = (Families.MODULE, "from outside")  # what a model computes of a batch
MARKERS = frozenset({LOOP_DETACH, REDUNDANT_ZERO_GRAD, ROOT})  # count nothing by themselves
_OWNED = frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP})
# What a loop does, whether gradients are recorded or not.
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
# Whoever counts must hear of these, to know where a window ends, when a model is evaluated, and
# whether an iteration was left before its end.
FRAME = frozenset({Families.BACKWARD, Families.MODULE, Families.ZERO_GRAD, *UPDATES, *MODES})
# Without these nothing is learned, or nothing that was meant.
ESSENTIAL = frozenset(
    {Families.BACKWARD, Families.OPTIMIZER_STEP, Families.SCALER_STEP, Families.ZERO_GRAD}
)


def key_of(event: CallEvent) -> Key:
    """What a call counts as: a landmark by its family, anything else by its own name."""
    family = event.family
    if family in LANDMARKS:
        return family, event.owner if family in _OWNED else None
    return event.api, None


def is_listed(module: str | None) -> bool:
    """Whether a module is one of a list, or a part of one, as experts are."""
    return module is not None and any(part.isdecimal() for part in module.split("."))


def takes_part(event: CallEvent) -> bool:
    """Whether a gradient may flow through a call: not through a transform of a sample."""
    result = tensor_summary(event.result)
    if result is None or result.requires_grad:
        return True
    given = map(tensor_summary, event.args.values())
    return any(tensor is not None and tensor.requires_grad for tensor in given)
