"""Terms of traces: stages, roles of variables, kinds of their changes."""

from __future__ import annotations

EVAL_STAGE = "eval"
STAGES = ("init", "train", EVAL_STAGE, "checkpoint")
ROLES = ("parameter", "gradient", "buffer", "optimizer_state")
# Changes that tell which variables exist; all others tell how their values change.
LIFECYCLE_CHANGES = frozenset({"new", "replaced", "flags", "gone"})
