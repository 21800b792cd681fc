"""Learn invariants from reference runs: propose, collect, decide, subsume, validate.

Writes and prints nothing. The result does not depend on the order of runs or the number of jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from traincheck.errors import UsageError
from traincheck.infer.confidence import DEFAULT_CONFIDENCE, confidence, min_examples
from traincheck.infer.examples import Rows, collect
from traincheck.infer.preconditions import learn
from traincheck.infer.propose import key_of, propose
from traincheck.infer.subsume import Accepted, implied_by
from traincheck.infer.tasks import Progress, Run, Workers
from traincheck.infer.validate import broken_by
from traincheck.infer.words import sentence
from traincheck.relations._table import RELATIONS
from traincheck.schema.claims import Hypothesis, Invariant, Needs, Support
from traincheck.schema.invariant_file import precondition_json
from traincheck.schema.protocols import Relation

# Why a hypothesis was dropped: a closed list.
NEVER_HELD = "it never held"
TOO_FEW = "too few examples"
MIXED = "no short precondition excludes the counterexamples"
UNSURE = "confidence too low"
IMPLIED = "another invariant says it"
BROKEN = "it did not stand the replay"
REASONS = (NEVER_HELD, TOO_FEW, MIXED, UNSURE, IMPLIED, BROKEN)
_MAX_ROUNDS = 8


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
class InferResult:
    """What was learned.

    runs: names, sorted. hypotheses: how many were tested. events, steps: in all runs, steps
    complete and of one rank of each. skipped: lines that could not be read.
    """

    invariants: Sequence[Invariant]
    dropped: Sequence[Dropped]
    runs: Sequence[str]
    hypotheses: int
    events: int
    steps: int
    skipped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an invariant must reach. examples: None for as many as the confidence takes."""

    confidence: float = DEFAULT_CONFIDENCE
    examples: int | None = None

    @property
    def min_examples(self) -> int:
        return min_examples(self.confidence) if self.examples is None else self.examples


def infer(
    runs: Sequence[Run],
    *,
    relations: Mapping[str, Relation] | None = None,
    limits: Limits | None = None,
    jobs: int = 1,
    on_progress: Progress | None = None,
) -> InferResult:
    """Learn what always holds in ``runs``.

    Args:
        runs: reference runs; an invariant must hold in all of them.
        relations: to learn, by name; the default is all.
        limits: what an invariant must reach.
        jobs: processes that share the runs.
        on_progress: told how many of how many tasks are done.

    Raises:
        UsageError: there is no run.
    """
    if not runs:
        raise UsageError("no run to learn from", fix="give a directory that holds a trace")
    table = dict(RELATIONS if relations is None else relations)
    runs = sorted(runs, key=lambda run: run.name)
    with Workers(runs, table, jobs, on_progress) as workers:
        return _Inference(workers, table, limits or Limits(), [run.name for run in runs]).run()


@dataclass(slots=True)
class _Inference:
    workers: Workers
    relations: Mapping[str, Relation]
    limits: Limits
    names: Sequence[str]
    dropped: list[Dropped] = field(default_factory=list)

    def run(self) -> InferResult:
        claims: dict[str, Hypothesis] = {}
        events = steps = skipped = 0
        for found in self.workers.map(propose):
            claims.update(found.claims)
            events += found.events
            steps += found.steps
            skipped += found.skipped
        rows: dict[str, Rows] = {key: Rows() for key in sorted(claims)}
        for found_rows in self.workers.map(collect, claims):
            for key, some in found_rows.items():
                rows[key].add(some)
        accepted = self._decide(claims, rows)
        accepted = self._subsume(accepted)
        kept = self._validate({_id(a): a for a in accepted})
        return InferResult(
            invariants=kept,
            dropped=sorted(self.dropped, key=lambda d: (d.hypothesis.relation, d.text, d.reason)),
            runs=self.names,
            hypotheses=len(claims),
            events=events,
            steps=steps,
            skipped=skipped,
        )

    def _decide(self, claims: Mapping[str, Hypothesis], rows: Mapping[str, Rows]) -> list[Accepted]:
        accepted = []
        for key, found in rows.items():
            claim = claims[key]
            relation = self.relations[claim.relation]
            if not found.positive:
                self._drop(claim, found, NEVER_HELD)
                continue
            learned = learn(found.counts)
            if learned is None:
                self._drop(claim, found, MIXED)
            elif learned.positive < self.limits.min_examples:
                self._drop(
                    claim, found, TOO_FEW, f"{learned.positive} of {self.limits.min_examples}"
                )
            else:
                sure = confidence(
                    relation,
                    claim,
                    learned.positive,
                    candidates=learned.candidates,
                    conditions=learned.conditions if learned.excluded else 0,
                )
                if sure < self.limits.confidence:
                    self._drop(claim, found, UNSURE, f"{sure} below {self.limits.confidence}")
                else:
                    accepted.append(Accepted(key, claim, learned, found, sure))
        return accepted

    def _subsume(self, accepted: Sequence[Accepted]) -> list[Accepted]:
        implied = implied_by(accepted, self.relations)
        by_key = {one.key: one for one in accepted}
        for key, by in implied.items():
            one = by_key[key]
            self._drop(one.claim, one.rows, IMPLIED, self._text(by_key[by]))
        return [one for one in accepted if one.key not in implied]

    def _validate(self, accepted: Mapping[str, Accepted]) -> list[Invariant]:
        """What stands the replay of every run. Fewer invariants need less: repeat until all do."""
        kept = {id_: self._invariant(id_, one) for id_, one in sorted(accepted.items())}
        for _ in range(_MAX_ROUNDS):
            needs = reduce(or_, (i.needs for i in kept.values()), Needs())
            broken: dict[str, str] = {}
            for found in self.workers.map(broken_by, list(kept.values()), needs):
                broken.update(found)
            if not broken:
                break
            for id_, how in sorted(broken.items()):
                one = accepted[id_]
                self._drop(one.claim, one.rows, BROKEN, how)
                del kept[id_]
        return sorted(kept.values(), key=lambda i: (i.hypothesis.relation, i.text, i.id))

    def _invariant(self, id_: str, one: Accepted) -> Invariant:
        return Invariant(
            id=id_,
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
