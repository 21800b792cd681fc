"""Select the invariants among the claims of the runs, and give a reason for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.infer.confidence import DEFAULT_CONFIDENCE, confidence, min_examples
from traincheck.infer.dropped import Dropped
from traincheck.infer.examples import ExampleCounts
from traincheck.infer.preconditions import LearnedPrecondition, preconditions_by_scope
from traincheck.infer.replay_views import CALLS_SAMPLED, SAMPLED, SELECTIVE
from traincheck.infer.sentences import sentence
from traincheck.infer.statistics import MergedClaim
from traincheck.infer.subsume import Accepted, implied_by
from traincheck.schema.claims import PROGRAM, Hypothesis, Invariant, Precondition, Support, key_of
from traincheck.schema.invariant_file import invariant_id
from traincheck.schema.protocols import Relation
from traincheck.schema.words import joined

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
        accepted = self._subsume(accepted)
        self.kept = sorted(
            map(self._invariant, accepted), key=lambda i: (i.hypothesis.relation, i.text, i.id)
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

    def _subsume(self, accepted: Sequence[Accepted]) -> list[Accepted]:
        implied = implied_by(accepted, self.relations)
        by_key = {one.key: one for one in accepted}
        kept = [one for one in accepted if one.key not in implied]
        covered = {id(one.examples) for one in kept}  # a claim may be kept in one of its forms
        for key, by in implied.items():
            one = by_key[key]
            if id(one.examples) not in covered:
                covered.add(id(one.examples))
                self._drop(one.claim, one.examples, IMPLIED, self._text(by_key[by]))
        return kept

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
