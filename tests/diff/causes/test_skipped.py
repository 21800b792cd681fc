"""The row "skipped": an optimizer steps in one run only."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, new_value, of, state, training, without
from traincheck.schema.torch_api import Families


def test_fires_on_a_step_that_was_skipped(compare: Compare) -> None:
    updated = of("call", 2, family=Families.OPTIMIZER_STEP)
    b = without(training(), lambda e: updated(e) or (
        e.kind == "state" and e.step == 2 and e.role in ("parameter", "optimizer_state")
    ))  # fmt: skip
    found = compare(training(), b)
    assert found.cause is not None
    assert found.cause.code == "step-skipped"
    assert "in B" in found.cause.text


def test_quiet_where_both_step(compare: Compare) -> None:
    found = compare(training(), new_value(training(), state("parameter", 2)))
    assert found.cause is not None
    assert found.cause.code != "step-skipped"
