"""TC322: labels of a language model that are shifted twice."""

from __future__ import annotations

from typing import Any

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import F, tensor
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

TOKENS = tensor((8, 32), "int64", min=0, max=26)
NEXT = tensor((8, 32), "int64", min=0, max=26, shifted=1)
TWICE = tensor((248,), "int64", min=0, max=26, shifted=2)
PADDED = tensor((256,), "int64", min=-100, max=26, ignored=0.03125, shifted=2)
CUT = tensor((248,), "int64", min=0, max=26)
WHOLE = tensor((256,), "int64", min=0, max=26)


def steps(
    *targets: dict[str, Any],
    labels: dict[str, Any] | None = NEXT,
    count: int = 2,
    loss: str = "cross_entropy",
    grad: bool = True,
) -> TraceBuilder:
    """Steps whose losses get ``targets``; the loader gives ``labels``, or the model gets NEXT."""
    trace = net()
    for _ in range(count):
        trace.begin_step()
        if labels is not None:
            trace.batch(leaves={"batch.input_ids": TOKENS, "batch.labels": labels})
        trace.zero_grad().forward()
        if labels is None:
            trace.call(
                "__main__.Decoder.forward",
                family=Families.MODULE,
                module="Decoder",
                root=True,
                args={"0": TOKENS, "labels": NEXT},
            )
        for target in targets:
            args = {"input": tensor((*target["shape"], 27)), "target": target}
            trace.call(F + loss, args={**args, "reduction": "mean"}, grad_enabled=grad)
        trace.backward().optimizer_step()
    return trace


BROKEN = steps(TWICE).build()


def test_fires_in_the_first_step_and_names_the_labels(golden: Golden) -> None:
    finding = fires("TC322", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, 256, "loader0", "batch.labels", 8, 32, 248)


def test_fires_on_what_a_model_is_given_without_a_loader(golden: Golden) -> None:
    golden(fires("TC322", steps(TWICE, labels=None).build()))


def test_fires_where_the_end_is_padded_and_on_other_losses(golden: Golden) -> None:
    assert mentions(golden(fires("TC322", steps(PADDED).build())), 256)
    assert mentions(fires("TC322", steps(PADDED).build()), -100)
    fires("TC322", steps(TWICE, loss="nll_loss").build())


def test_quiet_on_models_that_shift_inputs() -> None:
    assert quiet("TC322", steps(CUT, labels=TOKENS).build()) is not Verdict.VIOLATED


def test_quiet_on_next_tokens_used_whole_or_cut_in_other_ways() -> None:
    for target in (WHOLE, CUT, tensor((97,), "int64", min=0, max=26)):
        assert quiet("TC322", steps(target).build()) is Verdict.HELD


def test_quiet_on_heads_for_further_tokens() -> None:
    for targets in ((WHOLE, TWICE), (TWICE, WHOLE)):
        assert quiet("TC322", steps(*targets).build()) is Verdict.HELD


def test_quiet_on_evaluation() -> None:
    assert quiet("TC322", steps(TWICE, grad=False).build()) is Verdict.HELD


def test_labels_of_one_step_say_nothing_of_the_next() -> None:
    trace = steps(WHOLE, count=1)
    trace.begin_step().batch(leaves={"batch.labels": TOKENS}).zero_grad().forward()
    args = {"input": tensor((248, 27)), "target": TWICE, "reduction": "mean"}
    trace.call(F + "cross_entropy", args=args).backward().optimizer_step()
    assert quiet("TC322", trace.build()) is Verdict.HELD
