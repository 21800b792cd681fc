"""The invariants among the claims of the runs: which are selected, implied, or in another set.

The confidence of a claim comes from its examples and the chance model of its relation.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.infer.dropped import Dropped
from traincheck.infer.examples import ExampleCounts
from traincheck.infer.preconditions import (
    WIDE_SCOPES,
    LearnedPrecondition,
    preconditions_by_scope,
    sentence,
)
from traincheck.infer.propose import subject_of
from traincheck.infer.replay_views import CALLS_SAMPLED, SAMPLED, SELECTIVE
from traincheck.infer.statistics import MergedClaim
from traincheck.schema.claims import (
    PROGRAM,
    Hypothesis,
    Invariant,
    Precondition,
    Scalar,
    Support,
    key_of,
)
from traincheck.schema.invariant_file import invariant_id
from traincheck.schema.protocols import Relation
from traincheck.schema.words import joined

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


# Why a hypothesis was dropped: all reasons.
NEVER_HELD = "it never held"
SILENT = "another run could have shown it and does not"
TOO_FEW = "too few examples"
MIXED = "no short precondition excludes the counterexamples"
UNSURE = "confidence too low"
IMPLIED = "another invariant says it"
BROKEN = "it did not stand the replay"
REASONS = (NEVER_HELD, SILENT, TOO_FEW, MIXED, UNSURE, IMPLIED, BROKEN)
_SHOWN = 3  # names of runs in a detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The thresholds for an invariant.

    Attributes:
        confidence: in [0, 1].
        examples: number of positive examples; None for as many as the confidence needs.
    """

    confidence: float = DEFAULT_CONFIDENCE
    examples: int | None = None

    @property
    def min_examples(self) -> int:
        return min_examples(self.confidence) if self.examples is None else self.examples


@dataclass(slots=True)
class InvariantSelector:
    """Selects among all claims at once, as one may imply another.

    Attributes:
        relations: by name.
        limits: what an invariant must reach.
        kept: the invariants, sorted.
        dropped: the other claims, sorted.
        hypotheses: number of all.
    """

    relations: Mapping[str, Relation]
    limits: Limits
    kept: list[Invariant] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    hypotheses: int = 0

    def select(self, claims: Iterable[MergedClaim]) -> InvariantSelector:
        """Fill ``kept`` and ``dropped`` from ``claims``; returns itself."""
        accepted: list[Accepted] = []
        for one in claims:
            self.hypotheses += 1
            accepted += self._accept(one)
        implied = implied_by(accepted, self.relations)
        by_key = {one.key: one for one in accepted}
        kept = [one for one in accepted if one.key not in implied]
        covered = {id(one.examples) for one in kept}  # a claim may be kept in one of its forms
        for key, by in implied.items():
            stronger, weaker = by_key[by], by_key[key]
            if id(weaker.examples) not in covered:
                covered.add(id(weaker.examples))
                self._drop(weaker.claim, weaker.examples, IMPLIED, self._text(stronger))
        self.kept = sorted(
            map(self._invariant, kept), key=lambda i: (i.hypothesis.relation, i.text, i.id)
        )
        self.dropped.sort(
            key=lambda d: (d.hypothesis.relation, d.text, d.reason, key_of(d.hypothesis))
        )
        return self

    def _accept(self, one: MergedClaim) -> list[Accepted]:
        """The accepted forms of a claim: for every program, and for the programs seen."""
        min_programs = None
        if "program" not in one.claim.params:
            min_programs = self.relations[one.claim.relation].min_programs(one.claim)

        def is_enough(learned: LearnedPrecondition) -> bool:
            return not self._rejection(one, learned)[0]

        silent = one.contradicting_runs
        found = preconditions_by_scope(one.examples.counts, min_programs, is_enough, silent.keys())
        if not found:
            runs = sorted(name for names in silent.values() for name in names)
            reason = SILENT if runs else MIXED if one.examples.positive else NEVER_HELD
            self._drop(one.claim, one.examples, reason, joined(runs, _SHOWN))
        accepted = []
        short = [self._rejection(one, learned) for learned in found]
        for learned, (reason, _) in zip(found, short):
            if not reason:
                key = f"{one.key} {PROGRAM}" if learned.is_restricted else one.key
                confident = self._confidence(one.claim, learned)
                accepted.append(Accepted(key, one.claim, learned, one.examples, confident))
        if found and not accepted:
            self._drop(one.claim, one.examples, *short[0])
        return accepted

    def _rejection(self, one: MergedClaim, learned: LearnedPrecondition) -> tuple[str, str]:
        """Why a claim is dropped, with a detail; empty if it is not."""
        wanted = self.limits.min_examples
        confident = self._confidence(one.claim, learned)
        broken = _broken(one, learned.precondition)
        if learned.positive < wanted:
            return TOO_FEW, f"{learned.positive} of {wanted}"
        if confident < self.limits.confidence:
            return UNSURE, f"{confident} below {self.limits.confidence}"
        return (BROKEN, broken) if broken else ("", "")

    def _confidence(self, claim: Hypothesis, learned: LearnedPrecondition) -> float:
        return confidence(
            self.relations[claim.relation],
            claim,
            learned.positive,
            candidates=learned.candidates,
            conditions=learned.conditions if learned.excluded else 0,
        )

    def _invariant(self, one: Accepted) -> Invariant:
        return Invariant(
            id=invariant_id(one.claim, one.learned.precondition),
            hypothesis=one.claim,
            precondition=one.learned.precondition,
            support=Support(
                positive=one.learned.positive,
                negative=one.learned.excluded,
                runs=one.examples.runs,
                steps=one.examples.steps,
            ),
            confidence=one.confidence,
            text=self._text(one),
            needs=self.relations[one.claim.relation].needs(one.claim),
        )

    def _text(self, one: Accepted) -> str:
        text = self.relations[one.claim.relation].text(one.claim)
        return sentence(text, one.learned.precondition)

    def _drop(
        self, claim: Hypothesis, examples: ExampleCounts, reason: str, detail: str = ""
    ) -> None:
        self.dropped.append(
            Dropped(
                hypothesis=claim,
                text=self.relations[claim.relation].text(claim),
                reason=reason,
                detail=detail,
                positive=examples.positive,
                negative=examples.negative,
            )
        )


def _broken(one: MergedClaim, precondition: Precondition) -> str:
    """The view in which a replay of the runs breaks the claim, or why it cannot decide it."""
    if one.unobservable:
        return f"not observable in a run: {one.unobservable}"
    for view in (SELECTIVE, SAMPLED, CALLS_SAMPLED):
        contexts = one.counterexamples.get(view, ())
        if any(precondition.holds(dict(features)) for features in contexts):
            return f"broken in {view}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The invariants of one set that another lacks. changed: those with other preconditions."""

    added: Sequence[Invariant]
    removed: Sequence[Invariant]
    changed: Sequence[tuple[Sequence[Invariant], Sequence[Invariant]]]

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def compare(before: Iterable[Invariant], after: Iterable[Invariant]) -> Changes:
    """Compare two sets. The number of examples is ignored."""
    old, new = _by_claim(before), _by_claim(after)
    both = [(old[key], new[key]) for key in sorted(old.keys() & new.keys())]
    return Changes(
        added=[one for key in sorted(new.keys() - old.keys()) for one in new[key]],
        removed=[one for key in sorted(old.keys() - new.keys()) for one in old[key]],
        changed=[(a, b) for a, b in both if {i.id for i in a} != {i.id for i in b}],
    )


def _by_claim(invariants: Iterable[Invariant]) -> Mapping[str, list[Invariant]]:
    found: dict[str, list[Invariant]] = {}
    for invariant in invariants:
        found.setdefault(key_of(invariant.hypothesis), []).append(invariant)
    return found
