"""The texts of marks that traincheck writes."""

from __future__ import annotations


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
