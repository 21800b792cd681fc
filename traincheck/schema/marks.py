"""Terms of traces: texts of marks, stages, roles of variables, placeholders of masked texts."""

from __future__ import annotations

import re


class Marks:
    """Texts of the marks that traincheck writes, beside those of observations."""

    PROCESS = "process"  # the first of a file
    DROPPED = "dropped"  # where events are missing
    FOLDED = "evaluation folded"  # where calls within models are left out of an evaluation
    BACKWARD_ENTERED = "backward entered"  # where several ranks train
    BACKWARD_COMPUTED = "backward computed"  # there: what is left is the exchange of gradients
    COLLECTIVE_ENTERED = "collective entered"  # of a call that may never come back
    ENDED = "process ended"  # of a rank that was not killed
    RUN_ENDED = "run ended"  # in no trace: made of the manifest
    STALLED = "stalled"  # in no trace: made by the reader that follows a run
    FAULT = "fault"
    INSTRUMENT_DISABLED = "instrument disabled"
    PROCESS_GROUP = "process group"


MARKS = frozenset(text for name, text in vars(Marks).items() if name.isupper())


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


MASK = "<masked>"  # replaces a value under the name of a secret
_HIDDEN = re.compile(r"<text (\d{1,18}) [0-9a-f]+>\Z")


def hidden_text(length: int, digest: str) -> str:
    """The placeholder of a masked text: its length and fingerprint."""
    return f"<text {length} {digest}>"


def text_length(value: str) -> int:
    """The number of characters of a text, also of a masked one."""
    hidden = _HIDDEN.match(value)
    return int(hidden[1]) if hidden else len(value)
