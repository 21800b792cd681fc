"""Which of the claims that runs make are invariants, and why the others are not. Reads no run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.infer.confidence import DEFAULT_CONFIDENCE, confidence, min_examples
from traincheck.infer.examples import Rows
from traincheck.infer.preconditions import Learned, learn
from traincheck.infer.propose import key_of
from traincheck.infer.statistics import Merged
from traincheck.infer.subsume import Accepted, implied_by
from traincheck.infer.view import SAMPLED, SELECTIVE
from traincheck.infer.words import sentence
from traincheck.schema.claims import Hypothesis, Invariant, Precondition, Support
from traincheck.schema.invariant_file import precondition_json
from traincheck.schema.protocols import Relation

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
class Dropped:
    """A hypothesis that did not become an invariant. reason: one of REASONS."""

    hypothesis: Hypothesis
    text: str
    reason: str
    detail: str
    positive: int
    negative: int


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
        accepted = []
        for one in claims:
            self.hypotheses += 1
            found = self._accept(one)
            if found is not None:
                accepted.append(found)
        accepted = self._subsume(accepted)
        self.kept = sorted(
            map(self._invariant, accepted), key=lambda i: (i.hypothesis.relation, i.text, i.id)
        )
        self.dropped.sort(
            key=lambda d: (d.hypothesis.relation, d.text, d.reason, key_of(d.hypothesis))
        )
        return self

    def _accept(self, one: Merged) -> Accepted | None:
        learned = learn(one.rows.counts) if one.rows.positive else None
        if learned is None:
            self._drop(one.claim, one.rows, MIXED if one.rows.positive else NEVER_HELD)
            return None
        sure = self._confidence(one.claim, learned)
        wanted = self.limits.min_examples
        broken = _broken(one, learned.precondition)
        if one.silent:
            self._drop(one.claim, one.rows, SILENT, _listed(one.silent))
        elif learned.positive < wanted:
            self._drop(one.claim, one.rows, TOO_FEW, f"{learned.positive} of {wanted}")
        elif sure < self.limits.confidence:
            self._drop(one.claim, one.rows, UNSURE, f"{sure} below {self.limits.confidence}")
        elif broken:
            self._drop(one.claim, one.rows, BROKEN, broken)
        else:
            return Accepted(one.key, one.claim, learned, one.rows, sure)
        return None

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
        for key, by in implied.items():
            one = by_key[key]
            self._drop(one.claim, one.rows, IMPLIED, self._text(by_key[by]))
        return [one for one in accepted if one.key not in implied]

    def _invariant(self, one: Accepted) -> Invariant:
        return Invariant(
            id=_id(one),
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
    for view in (SELECTIVE, SAMPLED):
        contexts = one.objections.get(view, ())
        if any(precondition.holds(dict(features)) for features in contexts):
            return f"broken in {view}"
    return ""


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _id(one: Accepted) -> str:
    text = f"{key_of(one.claim)} {precondition_json(one.learned.precondition)}"
    return f"{one.claim.relation}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def dropped_json(dropped: Sequence[Dropped]) -> list[dict[str, Any]]:
    """What the side file of dropped hypotheses holds."""
    return [
        {
            "relation": one.hypothesis.relation,
            "params": dict(one.hypothesis.params),
            "text": one.text,
            "reason": one.reason,
            "detail": one.detail,
            "examples": {"positive": one.positive, "negative": one.negative},
        }
        for one in dropped
    ]
