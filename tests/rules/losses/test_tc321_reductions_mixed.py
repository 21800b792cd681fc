"""TC321: sums and means of losses in one step."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

F = "torch.nn.functional."


def run(*reductions: str, steps: int = 4, between: bool = False) -> list[Event]:
    builder = net()
    for _ in range(steps):
        builder.begin_step().zero_grad("opt0")
        for name, reduction in zip(("binary_cross_entropy", "mse_loss"), reductions):
            builder.call(F + name, args={"reduction": reduction})
            if between:
                builder.backward()
        builder.backward().optimizer_step("opt0")
    return builder.build()


BROKEN = run("sum", "mean")


def test_fires_on_a_sum_and_a_mean() -> None:
    finding = fires("TC321", BROKEN)
    assert (finding.first_step, finding.severity) == (0, "info")
    assert mentions(finding, "binary_cross_entropy")


def test_fires_on_batchmean(golden: Golden) -> None:
    golden(fires("TC321", run("sum", "batchmean")))


def test_quiet_on_one_reduction() -> None:
    assert quiet("TC321", run("sum", "sum")) is Verdict.HELD
    assert quiet("TC321", run("mean", "none")) is Verdict.HELD


def given(value: float) -> list[Event]:
    """A sum of 30 and a mean of 1, and what backward is given."""
    builder = net()
    scalar = {"dtype": "float32", "shape": []}
    for _ in range(4):
        builder.begin_step().zero_grad("opt0")
        for name, reduction, loss in (("l1_loss", "sum", 30.0), ("cross_entropy", "mean", 1.0)):
            result = {**scalar, "value": loss}
            builder.call(F + name, args={"reduction": reduction}, result=result)
        builder.count(backward=1)
        builder.call(Families.BACKWARD, args={"tensors": {**scalar, "value": value}})
        builder.optimizer_step("opt0")
    return builder.build()


def test_quiet_on_sums_that_are_divided() -> None:
    assert quiet("TC321", given(1 + 30 / 12)) is Verdict.HELD
    fires("TC321", given(31.0))


def test_quiet_on_losses_with_a_backward_of_their_own() -> None:
    assert quiet("TC321", run("sum", "mean", between=True)) is Verdict.HELD
