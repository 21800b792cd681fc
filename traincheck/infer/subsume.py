"""Remove hypotheses that other accepted hypotheses imply."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincheck.infer.examples import ExampleCounts
from traincheck.infer.preconditions import WIDE_SCOPES, LearnedPrecondition
from traincheck.infer.propose import subject_of
from traincheck.schema.claims import PROGRAM, Hypothesis, Scalar
from traincheck.schema.protocols import Relation


@dataclass(frozen=True, slots=True)
class Accepted:
    """An accepted hypothesis with its evidence. key: gives hypotheses a stable order."""

    key: str
    claim: Hypothesis
    learned: LearnedPrecondition
    examples: ExampleCounts
    confidence: float


def implied_by(accepted: Sequence[Accepted], relations: Mapping[str, Relation]) -> dict[str, str]:
    """Key of each implied hypothesis -> key of one that implies it.

    A hypothesis is implied if a stronger one applies in every context in which it was seen.
    """
    found: dict[str, str] = {}
    covered: dict[str, set[int]] = defaultdict(set)
    alike: dict[tuple[str, ...], list[Accepted]] = defaultdict(list)
    # Claims with few parameters imply most others, so most searches end at the first.
    for one in sorted(accepted, key=lambda one: len(one.claim.params)):
        alike[subject_of(one.claim)].append(one)
    for one in accepted:
        inside = _applies(one)
        for other in alike[subject_of(one.claim)]:
            if other is one or not _implies(other, one, relations):
                continue
            if _implies(one, other, relations) and one.key < other.key:
                continue  # equal claims: the first stays
            holds = other.learned.precondition.holds
            covered[one.key] |= {i for i, context in enumerate(inside) if holds(context)}
            if len(covered[one.key]) == len(inside):
                found[one.key] = other.key
                break
    return found


def _applies(one: Accepted) -> list[dict[str, Scalar]]:
    """The contexts in which it was seen to apply.

    A feature is left out if its condition does not ask for it and only one value was seen: it would
    apply with another value, too.
    """
    seen: dict[str, set[Scalar]] = {}
    for features, (positive, _) in one.examples.counts.items():
        for name, value in features if positive else ():
            seen.setdefault(name, set()).add(value)
    limits = {name for name in WIDE_SCOPES if len(seen.get(name, ())) == 1} | {PROGRAM}
    found: dict[str, dict[str, Scalar]] = {}
    for features, (positive, _) in one.examples.counts.items():
        context = dict(features)
        for clause in one.learned.precondition.clauses or ((),):
            if positive and all(condition.holds(context) for condition in clause):
                asked = {condition.feature for condition in clause}
                kept = {k: v for k, v in context.items() if k in asked or k not in limits}
                found[repr(sorted(kept.items(), key=repr))] = kept
    return [found[key] for key in sorted(found)]


def _implies(one: Accepted, other: Accepted, relations: Mapping[str, Relation]) -> bool:
    return relations[one.claim.relation].implies(one.claim, other.claim)
