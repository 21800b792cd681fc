"""Terms of traces: stages, roles of variables, kinds of their changes."""

from __future__ import annotations

EVAL_STAGE = "eval"
STAGES = ("init", "train", EVAL_STAGE, "checkpoint")
ROLES = ("parameter", "gradient", "buffer", "optimizer_state")
# Changes that tell which variables exist; all others tell how their values change.
LIFECYCLE_CHANGES = frozenset({"new", "replaced", "flags", "gone"})
# What a step computes, in causal order.
PHASES = (
    "rng",
    "batch",
    "forward",
    "loss",
    "gradient",
    "optimizer_state",
    "parameter",
    "buffer",
)
# Where generator states are taken in the view "diff": when the recording begins, when the iteration
# of a loader begins, before the first root forward of a step, at the end of a step, and when state
# is loaded or saved.
MOMENTS = ("start", "loader", "forward", "step", "load", "save")
