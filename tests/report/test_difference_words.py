"""The verbs of what a comparison cannot decide agree with their nouns, by a table."""

from __future__ import annotations

import pytest

from traincheck.diff.causes.quantities import PLURAL, QUANTITIES
from traincheck.diff.difference import Candidate, Difference, Explanation, FirstDifference
from traincheck.diff.items import Phase
from traincheck.diff.messages import Told
from traincheck.report.difference.lines import rows

CAUSE = Explanation(code="x", text=Told("a cause"))
FIRST = FirstDifference(
    step=0, step_b=0, phase=Phase.LOSS, rank=0, name="loss", message=Told("the loss differs")
)


def of_cause(candidate: Candidate) -> list[str]:
    return dict(rows(Difference(a="a", b="b", first=FIRST, candidates=(candidate,))))["cause"]


@pytest.mark.parametrize(
    ("name", "verb"),
    [
        ("the loss", "is"),
        ("the number of workers", "is"),
        ("autocast", "is"),
        ("the inputs", "are"),
        ("the generators at loading", "are"),
    ],
)
def test_the_verb_agrees(name: str, verb: str) -> None:
    lines = of_cause(Candidate(CAUSE, unknown=(name,)))
    assert lines[-1] == f"  not known: whether {name} {verb} the same in both runs"


def test_several_are_plural() -> None:
    lines = of_cause(Candidate(CAUSE, rivals=("the loss", "autocast")))
    assert lines[-1] == "  not excluded: the loss and autocast, which differ too"
    assert of_cause(Candidate(CAUSE, rivals=("the loss",)))[-1].endswith(
        "the loss, which differs too"
    )


def test_the_table_names_quantities() -> None:
    assert PLURAL - set(QUANTITIES) == {"the random numbers it draws"}
