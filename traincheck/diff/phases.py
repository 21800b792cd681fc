"""The phases of a training step, in the order in which one causes the next."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """The part of a step that a difference is in. Members are in causal order."""

    SETTINGS = "settings"
    RNG = "rng"
    BATCH = "batch"
    FORWARD = "forward"
    LOSS = "loss"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer_state"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    EVALUATION = "evaluation"
    SAVED = "saved"

    @property
    def words(self) -> str:
        """The name as in a sentence: ``optimizer state``."""
        return "random generator" if self is Phase.RNG else self.value.replace("_", " ")


PHASES = tuple(Phase)
STATE_PHASES = (Phase.PARAMETER, Phase.OPTIMIZER_STATE, Phase.BUFFER)
