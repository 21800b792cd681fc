"""Remove what other accepted hypotheses already say."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincheck.infer.examples import Rows
from traincheck.infer.preconditions import WIDE_SCOPES, Learned
from traincheck.infer.propose import subject_of
from traincheck.schema.claims import PROGRAM, Hypothesis, Scalar
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
    alike: dict[tuple[str, ...], list[Accepted]] = defaultdict(list)
    # Those that ask for least imply most: of many claims nearly all are done with the first
    for one in sorted(accepted, key=lambda one: len(one.claim.params)):
        alike[subject_of(one.claim)].append(one)
    for one in accepted:
        inside = _applies(one)
        for other in alike[subject_of(one.claim)]:
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


def _applies(one: Accepted) -> list[dict[str, Scalar]]:
    """The contexts in which it was seen to apply.

    Without what it does not ask for and saw one value of only, where that is what others are kept
    to: it would apply too if that were otherwise.
    """
    seen: dict[str, set[Scalar]] = {}
    for features, (positive, _) in one.rows.counts.items():
        for name, value in features if positive else ():
            seen.setdefault(name, set()).add(value)
    limits = {name for name in WIDE_SCOPES if len(seen.get(name, ())) == 1} | {PROGRAM}
    found: dict[str, dict[str, Scalar]] = {}
    for features, (positive, _) in one.rows.counts.items():
        context = dict(features)
        for clause in one.learned.precondition.clauses or ((),):
            if positive and all(condition.holds(context) for condition in clause):
                asked = {condition.feature for condition in clause}
                kept = {k: v for k, v in context.items() if k in asked or k not in limits}
                found[repr(sorted(kept.items(), key=repr))] = kept
    return [found[key] for key in sorted(found)]


def _says(one: Accepted, other: Accepted, relations: Mapping[str, Relation]) -> bool:
    return relations[one.claim.relation].implies(one.claim, other.claim)
