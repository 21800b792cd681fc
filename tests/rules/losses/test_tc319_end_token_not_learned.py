"""TC319: an end token that is never a label."""

from __future__ import annotations

from typing import Any

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.schema.findings import Verdict

LEAVES = {"batch.input_ids": leaf(), "batch.labels": leaf()}


def batches(*tokens: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    return [{"leaves": LEAVES, "tokens": found, **more} for found in tokens]


LOST = {"padding": 0.2, "lost_end": 2}
BROKEN = run_on(batches(LOST, LOST, LOST))


def test_fires_from_the_first_batch_on(golden: Golden) -> None:
    finding = fires("TC319", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, 2)


def test_quiet_when_it_is_a_label_now_and_then() -> None:
    kept = {"padding": 0.2}
    assert quiet("TC319", run_on(batches(LOST, kept, LOST, kept))) is Verdict.HELD
    assert quiet("TC319", run_on(batches(LOST, {"lost_end": 7}))) is Verdict.HELD


def test_quiet_on_evaluation() -> None:
    trace = net()
    for batch in batches(LOST, LOST, LOST, loader="loader1"):
        trace.begin_step().batch().zero_grad().forward().backward().optimizer_step()
        trace.train(False).batch(**batch).forward(grad=False).train(True)
    assert quiet("TC319", trace.build()) is Verdict.HELD
