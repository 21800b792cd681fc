"""What other accepted hypotheses say already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.infer.examples import ExampleCounts
from traincheck.infer.preconditions import LearnedPrecondition
from traincheck.infer.select import Accepted, implied_by
from traincheck.relations.contains.relation import Contains
from traincheck.schema.claims import Condition, Hypothesis, Precondition, key_of


class Counting(Contains):
    """Counts comparisons."""

    calls = 0

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        self.calls += 1
        return super().implies(claim, other)


def accepted(*clause: Condition, **params: Any) -> Accepted:
    params = {"outer": "step", "change": "content", "role": "parameter", **params}
    claim = Hypothesis(relation="contains", params=params)
    precondition = Precondition(clauses=(clause,) if clause else ())
    rows = ExampleCounts({(("stage", "train"),): (4, 0)}, steps=4, runs=1)
    return Accepted(
        key_of(claim), claim, LearnedPrecondition(precondition, positive=4, excluded=0), rows, 0.9
    )


def implied(*claims: Accepted) -> tuple[Mapping[str, str], int]:
    relation = Counting()
    return implied_by(claims, {"contains": relation}), relation.calls


def test_the_wider_claim_says_what_the_narrow_ones_do() -> None:
    every, weight = accepted(), accepted(leaf="weight")
    assert implied(every, weight)[0] == implied(weight, every)[0] == {weight.key: every.key}


def test_a_wider_claim_that_does_not_apply_there_says_nothing() -> None:
    elsewhere = Condition(feature="stage", op="==", value="eval")
    assert implied(accepted(elsewhere), accepted(leaf="weight"))[0] == {}


def test_many_narrow_claims_are_not_compared_with_each_other() -> None:
    """A model may have thousands of parameters, each with a different name."""
    narrow = [accepted(leaf=f"p{number}") for number in range(300)]
    every = accepted()
    found, calls = implied(*narrow, every)
    assert found == {one.key: every.key for one in narrow}
    assert calls < 10 * len(narrow)
