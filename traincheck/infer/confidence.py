"""The confidence of a hypothesis, from its examples and the chance model of its relation."""

from __future__ import annotations

import math

from traincheck.schema.claims import Hypothesis
from traincheck.schema.protocols import Relation

DEFAULT_CONFIDENCE = 0.99


def confidence(
    relation: Relation,
    claim: Hypothesis,
    positive: int,
    *,
    candidates: int = 1,
    conditions: int = 0,
) -> float:
    """1 - probability that chance alone gave these examples.

    Args:
        relation: gives the chance model.
        claim: a hypothesis of that relation.
        positive: number of examples, all of which hold, that the precondition lets through.
        candidates: number of conditions that were tried when the precondition was learned.
        conditions: number of conditions that were chosen. Each choice among many makes chance
            agreement more likely.
    """
    chance = relation.chance(claim, positive) * float(max(1, candidates)) ** conditions
    # Rounded, so that the file does not depend on how a machine rounds its last bits.
    return round(1.0 - min(1.0, chance), 6)


def min_examples(level: float) -> int:
    """Number of coin tosses that give this confidence."""
    return max(1, math.ceil(math.log(max(1.0 - level, 1e-12), 0.5) - 1e-9))
