"""Which of the claims that runs make are invariants, and why the others are not. Reads no run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.infer.confidence import DEFAULT_CONFIDENCE, confidence, min_examples
from traincheck.infer.dropped import Dropped
from traincheck.infer.examples import Rows
from traincheck.infer.preconditions import Learned, levels
from traincheck.infer.replay_views import SAMPLED, SELECTIVE, THINNED
from traincheck.infer.sentences import sentence
from traincheck.infer.statistics import Merged
from traincheck.infer.subsume import Accepted, implied_by
from traincheck.schema.claims import PROGRAM, Hypothesis, Invariant, Precondition, Support, key_of
from traincheck.schema.invariant_file import invariant_id
from traincheck.schema.protocols import Relation, reach_of
from traincheck.schema.words import joined

# Why a hypothesis was dropped: a closed list.
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
    """What an invariant must reach. examples: None for as many as the confidence takes."""

    confidence: float = DEFAULT_CONFIDENCE
    examples: int | None = None

    @property
    def min_examples(self) -> int:
        return min_examples(self.confidence) if self.examples is None else self.examples


@dataclass(slots=True)
class Decision:
    """Decides about claims, all at once: what one says another may say as well.

    kept: the invariants, sorted. dropped: the others, sorted. hypotheses: how many there were.
    """

    relations: Mapping[str, Relation]
    limits: Limits
    kept: list[Invariant] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    hypotheses: int = 0

    def about(self, claims: Iterable[Merged]) -> Decision:
        """Decide about ``claims``."""
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

    def _accept(self, one: Merged) -> list[Accepted]:
        """What can be said of every program, and what of those that were seen."""
        reach = reach_of(self.relations[one.claim.relation], one.claim)

        def is_enough(learned: Learned) -> bool:
            return not self._shortcoming(one, learned)[0]

        found = levels(one.rows.counts, reach, is_enough, one.silent.keys())
        if not found:
            silent = sorted(name for names in one.silent.values() for name in names)
            reason = SILENT if silent else MIXED if one.rows.positive else NEVER_HELD
            self._drop(one.claim, one.rows, reason, joined(silent, _SHOWN))
        accepted = []
        short = [self._shortcoming(one, learned) for learned in found]
        for learned, (reason, _) in zip(found, short):
            if not reason:
                key = f"{one.key} {PROGRAM}" if learned.is_own else one.key
                sure = self._confidence(one.claim, learned)
                accepted.append(Accepted(key, one.claim, learned, one.rows, sure))
        if found and not accepted:
            self._drop(one.claim, one.rows, *short[0])
        return accepted

    def _shortcoming(self, one: Merged, learned: Learned) -> tuple[str, str]:
        """Why it cannot stand, with a detail; nothing when it can."""
        wanted = self.limits.min_examples
        sure = self._confidence(one.claim, learned)
        broken = _broken(one, learned.precondition)
        if learned.positive < wanted:
            return TOO_FEW, f"{learned.positive} of {wanted}"
        if sure < self.limits.confidence:
            return UNSURE, f"{sure} below {self.limits.confidence}"
        return (BROKEN, broken) if broken else ("", "")

    def _confidence(self, claim: Hypothesis, learned: Learned) -> float:
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
        told = {id(one.rows) for one in kept}  # a claim may stand in one of two forms
        for key, by in implied.items():
            one = by_key[key]
            if id(one.rows) not in told:
                told.add(id(one.rows))
                self._drop(one.claim, one.rows, IMPLIED, self._text(by_key[by]))
        return kept

    def _invariant(self, one: Accepted) -> Invariant:
        return Invariant(
            id=invariant_id(one.claim, one.learned.precondition),
            hypothesis=one.claim,
            precondition=one.learned.precondition,
            support=Support(
                positive=one.learned.positive,
                negative=one.learned.excluded,
                runs=one.rows.runs,
                steps=one.rows.steps,
            ),
            confidence=one.confidence,
            text=self._text(one),
            needs=self.relations[one.claim.relation].needs(one.claim),
        )

    def _text(self, one: Accepted) -> str:
        text = self.relations[one.claim.relation].text(one.claim)
        return sentence(text, one.learned.precondition)

    def _drop(self, claim: Hypothesis, rows: Rows, reason: str, detail: str = "") -> None:
        self.dropped.append(
            Dropped(
                hypothesis=claim,
                text=self.relations[claim.relation].text(claim),
                reason=reason,
                detail=detail,
                positive=rows.positive,
                negative=rows.negative,
            )
        )


def _broken(one: Merged, precondition: Precondition) -> str:
    """Where a replay of the runs breaks the claim, or cannot decide it; empty when it stands."""
    if one.unobservable:
        return f"not observable in a run: {one.unobservable}"
    for view in (SELECTIVE, SAMPLED, THINNED):
        contexts = one.objections.get(view, ())
        if any(precondition.holds(dict(features)) for features in contexts):
            return f"broken in {view}"
    return ""
