"""Remove what other accepted hypotheses already say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincheck.infer.examples import Rows
from traincheck.infer.preconditions import Learned
from traincheck.schema.claims import Hypothesis
from traincheck.schema.protocols import Relation


@dataclass(frozen=True, slots=True)
class Accepted:
    """A hypothesis that stands, with what it stands on. key: stable order among hypotheses."""

    key: str
    claim: Hypothesis
    learned: Learned
    rows: Rows
    confidence: float


def implied_by(accepted: Sequence[Accepted], relations: Mapping[str, Relation]) -> dict[str, str]:
    """Key of each hypothesis that says nothing new -> key of one that says it.

    A hypothesis is implied when, wherever it was seen to apply, one that implies it applies too.
    """
    found: dict[str, str] = {}
    covered: dict[str, set[int]] = defaultdict(set)
    for one in accepted:
        inside = [
            dict(features)
            for features, (positive, _) in sorted(one.rows.counts.items(), key=repr)
            if positive and one.learned.precondition.holds(dict(features))
        ]
        for other in accepted:
            if other is one or not _says(other, one, relations):
                continue
            if _says(one, other, relations) and one.key < other.key:
                continue  # equal claims: the first stays
            holds = other.learned.precondition.holds
            covered[one.key] |= {i for i, context in enumerate(inside) if holds(context)}
            if len(covered[one.key]) == len(inside):
                found[one.key] = other.key
                break
    return found


def _says(one: Accepted, other: Accepted, relations: Mapping[str, Relation]) -> bool:
    return relations[one.claim.relation].implies(one.claim, other.claim)
