"""TC215: mean losses that are added up."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json


def scalar(value: float) -> object:
    return tensor_json(TensorSummary(dtype="float32", shape=(), device="cpu", value=value))


def run(
    *,
    divided: bool = False,
    batches: int = 2,
    steps: int = 4,
    reduction: str = "mean",
    forwards: int | None = None,
) -> list[Event]:
    builder: TraceBuilder = net()
    for _ in range(steps):
        builder.begin_step().zero_grad("opt0")
        for batch in range(batches):
            if forwards is None:
                builder.batch()
            for _ in range(forwards or 0):
                builder.forward()
            loss = 2.0 + batch
            builder.call(
                "torch.nn.functional.cross_entropy",
                args={"reduction": reduction},
                result=scalar(loss),
            )
            builder.backward()
            backward = builder.events[-1]
            assert backward.api == Families.BACKWARD  # type: ignore[union-attr]
            given = scalar(loss / batches if divided else loss)
            builder.edit(backward, args={"tensors": given})
        builder.optimizer_step("opt0")
    return builder.build()


BROKEN = run()


def test_fires_when_means_are_added_up(golden: Golden) -> None:
    finding = fires("TC215", BROKEN)
    assert (finding.first_step, finding.severity, finding.violations) == (0, "info", 1)
    golden(finding)
    assert mentions(finding, 2)


def test_fires_without_a_loader() -> None:
    assert fires("TC215", run(forwards=1)).first_step == 0


def test_quiet_on_several_losses() -> None:
    assert quiet("TC215", run(forwards=2)) is Verdict.NOT_TRIGGERED


def test_quiet_when_they_are_divided() -> None:
    assert quiet("TC215", run(divided=True)) is Verdict.HELD


def test_quiet_on_sums_and_without_accumulation() -> None:
    assert quiet("TC215", run(reduction="sum")) is Verdict.HELD
    assert quiet("TC215", run(batches=1)) is Verdict.NOT_TRIGGERED


def test_quiet_on_closures() -> None:
    """The step of LBFGS begins before the passes that it calls for."""

    def earlier(event: Event) -> Event:
        is_step = event.kind == "call" and event.family == Families.OPTIMIZER_STEP  # type: ignore[union-attr]
        return event.replace(span=0) if is_step else event  # type: ignore[call-arg]

    assert quiet("TC215", [earlier(event) for event in run(forwards=1)]) is not Verdict.VIOLATED
