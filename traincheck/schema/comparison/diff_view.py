"""The view "diff": everything that a comparison of two runs reads."""

from __future__ import annotations

from traincheck.schema.claims import BATCH_CONTENT, Needs
from traincheck.schema.observations.processes import ProcessFacts
from traincheck.schema.torch_api import DDP_INIT, Families, losses

DIFF = "diff"

# What decides each phase of a step, and the calls that may explain a difference.
DIFF_NEEDS = Needs(
    calls=losses()
    | {
        Families.MODULE,
        Families.BACKWARD,
        Families.OPTIMIZER_STEP,
        Families.ZERO_GRAD,
        Families.SCHEDULER_STEP,
        Families.SCHEDULER_CREATED,
        Families.SCALER_STEP,
        Families.SCALER_UPDATE,
        Families.UNSCALE,
        Families.CLIP_NORM,
        Families.CLIP_VALUE,
        Families.FSDP_CLIP,
        Families.TRAIN,
        Families.EVAL,
        Families.SET_RNG_STATE,
        DDP_INIT,  # whether ranks have the same running statistics
    },
    states=frozenset(
        {
            "parameter@step",
            "parameter@between",
            "gradient@backward",
            "gradient@zero_grad",
            "optimizer_state@step",
            "buffer@forward",
            BATCH_CONTENT,
            ProcessFacts.need,
        }
    ),
    kinds=frozenset({"step", "rng", "batch", "optimizer", "checkpoint", "collective", "mark"}),
    exact=True,
)
