"""How sure a hypothesis is, given its examples. The chance model is the relation's."""

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
        relation: whose chance model counts.
        claim: a hypothesis of that relation.
        positive: examples that hold, all of those that the precondition lets through.
        candidates: conditions that were tried when the precondition was learned.
        conditions: those it has. Each one chosen among many makes a chance agreement likelier.
    """
    chance = relation.chance(claim, positive) * float(max(1, candidates)) ** conditions
    # Rounded, so that the file does not depend on how a machine rounds its last bits.
    return round(1.0 - min(1.0, chance), 6)


def min_examples(level: float) -> int:
    """How many tosses of a coin it takes to be this sure."""
    return max(1, math.ceil(math.log(max(1.0 - level, 1e-12), 0.5) - 1e-9))
