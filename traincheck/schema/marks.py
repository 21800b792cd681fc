"""The texts of marks that traincheck writes."""

from __future__ import annotations


class Marks:
    """Texts of the marks that traincheck writes. A user's mark with one of them gets a prefix."""

    ATTENTION = "attention"
    BROADCASTS = "loss broadcasts"
    PROCESS = "process"  # the first of a file
    DROPPED = "dropped"  # where events are missing
    FOLDED = "evaluation folded"  # where calls within models are left out of an evaluation
    BACKWARD_ENTERED = "backward entered"  # where several ranks train
    COLLECTIVE_ENTERED = "collective entered"  # of a call that may never come back
    ENDED = "process ended"  # of a rank that was not killed
    RUN_ENDED = "run ended"  # in no trace: made of the manifest
    STALLED = "stalled"  # in no trace: made by the reader that follows a run
    EVALUATED = "evaluated"
    EVALUATION_WROTE = "evaluation wrote"
    FAULT = "fault"
    GIVEN = "given"
    INSTRUMENT_DISABLED = "instrument disabled"
    KEPT = "gradients kept"
    LOADED_CHANGED = "loaded model changed"
    MODEL = "model"
    BETWEEN_STEPS = "parameters between steps"
    NORMS = "initial norm statistics"
    PROCESS_GROUP = "process group"
    REPLACED = "gradients replaced"
    SERVES = "serves"
    UNTRAINED = "untrained"
    WORKER = "worker"
    WRITTEN = "gradients written"


MARKS = frozenset(text for name, text in vars(Marks).items() if name.isupper())
