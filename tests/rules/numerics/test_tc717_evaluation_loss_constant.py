"""TC717: an evaluation that has the same loss for each of its batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.batches import leaf
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LOSS = "torch.nn.functional.cross_entropy"
OUTPUTS = {"min": -1.7, "max": 2.3, "row_sum_min": -3.0, "row_sum_max": 1.0, "nonfinite": 0}
LABELS = tensor((64,), "int64", min=0, max=9)


def loss(trace: Any, value: float, *, grad: bool = False, api: str = LOSS, **more: Any) -> None:
    """A call of a loss, and its result."""
    outputs = tensor((64, 10), **{**OUTPUTS, **more.get("outputs", {})})
    result = {"dtype": more.get("dtype", "float32"), "shape": [], "device": "cpu", "value": value}
    args = {"input": outputs, "target": more.get("target", LABELS), "reduction": "mean"}
    trace.call(api, args=args, result=result, grad_enabled=grad)


def run(
    values: list[float],
    contents: str = "abcdefgh",
    *,
    trained: tuple[float, ...] = (2.3, 2.2),
    epochs: tuple[int, ...] = (0,) * 8,
    beside: list[float] | None = None,
    size: int = 10,
    **more: Any,
) -> list[Event]:
    """Two steps of training and an evaluation. contents: of its batches. beside: other losses."""
    trace = net()
    for number, value in enumerate(trained):
        trace.begin_step().batch().zero_grad()
        low_high = more.get("limits", {"min": -1.0 - number, "max": 1.5 + number})
        loss(trace, value, grad=True, outputs=low_high)
        trace.backward().optimizer_step()
    trace.train(False)
    for index, value in enumerate(values):
        pixels = {"min": 0.0, "max": 1.0, "nonfinite": 0}
        leaves = {"batch[0]": leaf(contents[index], (64, 8), stats=pixels)}
        trace.batch(loader="loader1", index=index, epoch=epochs[index], leaves=leaves)
        trace.set_stage("eval")
        trace.call(
            "__main__.Net.forward",
            family=Families.MODULE,
            root=True,
            module="Net",
            result=tensor((64, size)),
            grad_enabled=False,
        )
        loss(trace, value, **more)
        if beside is not None:
            loss(trace, beside[index])
    return trace.build()


BROKEN = run([2.005] * 5)


def test_fires_once_at_the_third_batch(golden: Golden) -> None:
    finding = fires("TC717", BROKEN)
    assert (finding.first_step, finding.violations, finding.severity) == (1, 1, "warning")
    assert finding.subject.api == LOSS
    golden(finding)
    assert mentions(finding, 2.005, 3, "loader1")


def test_fires_within_an_evaluation_and_on_several_losses() -> None:
    assert fires("TC717", run([1.0, 2.005, 2.005, 2.005]))
    assert fires("TC717", run([2.005] * 3, beside=[0.7] * 3))


@pytest.mark.parametrize(
    "events",
    [
        run([2.005, 2.0051, 2.005, 2.0051]),
        run([2.005] * 2),
        run([0.0] * 5),
        run([float("nan")] * 5),
        run([2.005] * 5, "aaaaa"),
        run([2.005] * 5, "ababa"),  # two batches in turn
        run([2.005] * 5, epochs=(0, 1, 2, 3, 4)),  # one batch, in another order each time
        run([2.005] * 3, beside=[0.7, 0.8, 0.7]),
        run([2.005] * 5, trained=(2.3, 2.3)),
        run([2.005] * 5, trained=()),
        run([2.005] * 5, dtype="bfloat16"),
        run([2.005] * 5, api="torch.nn.functional.mse_loss"),  # a metric: nothing trains on it
        run([2.005] * 5, size=3),  # of no output of the model
        run([2.005] * 5, target=tensor((64,), "int64", min=1, max=1)),
        run([2.005] * 5, target=tensor((64,), "int64")),
        run([2.302585] * 5, outputs={"min": 0.0, "max": 0.0, "row_sum_min": 0, "row_sum_max": 0}),
        run([2.005] * 5, outputs={"row_sum_min": 1.0, "row_sum_max": 1.00001}),  # equal rows
        run([2.005] * 5, outputs={"min": 0.0, "max": 1.0}),  # answers, not logits
        run([2.005] * 5, outputs={"max": 2.5}, limits={"min": -1.0, "max": 2.5}),  # a clamp
    ],
)
def test_quiet(events: list[Event]) -> None:
    assert quiet("TC717", events) in (Verdict.HELD, Verdict.NOT_TRIGGERED)


def test_quiet_while_batches_are_not_known_apart() -> None:
    pixels = {"min": 0.0, "max": 1.0, "nonfinite": 0}
    events = [
        event.replace(leaves={"batch[0]": leaf("", (64, 8), stats=pixels)})
        if event.kind == "batch"
        else event
        for event in BROKEN
    ]
    assert quiet("TC717", events) is Verdict.HELD


def test_fires_where_numbers_tell_batches_apart() -> None:
    events = [
        event.replace(leaves={"x": leaf("", (64, 8), stats={"min": 0.0, "max": 1.0 + number})})
        if event.kind == "batch"
        else event
        for number, event in enumerate(BROKEN)
    ]
    assert fires("TC717", events)


class Wrapped(nn.Module):
    """Computes its own loss, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.body(x)
        return {"loss": F.cross_entropy(outputs, y), "logits": outputs}


@pytest.mark.parametrize("is_wrapped", [True, False])
@pytest.mark.parametrize("is_wrong", [True, False])
def test_recorded_runs(tmp_path: Path, is_wrapped: bool, is_wrong: bool) -> None:
    data = TensorDataset(torch.randn(48, 8), torch.randint(4, (48,)))
    model = Wrapped()

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return model(x, y)["loss"] if is_wrapped else F.cross_entropy(model.body(x), y)

    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for inputs, labels in DataLoader(data, 16):
            optimizer.zero_grad()
            loss_of(inputs, labels).backward()
            optimizer.step()
        with torch.no_grad():
            for x, y in DataLoader(data, 12):
                loss_of(inputs, labels) if is_wrong else loss_of(x, y)
    if is_wrong:
        assert fires("TC717", run.events).first_step == 2
    else:
        assert quiet("TC717", run.events) is Verdict.HELD


def test_quiet_on_a_penalty_of_weights(tmp_path: Path) -> None:
    """The same for each batch of an evaluation, beside a loss of the program's own."""
    data = TensorDataset(torch.randn(48, 8), torch.randn(48, 8))
    model = nn.Linear(8, 8)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for is_training in (True, False, True, False):
            for x, y in DataLoader(data, 16):
                with torch.set_grad_enabled(is_training):
                    loss = (model(x) - y).abs().mean()
                    loss = loss + F.mse_loss(model.weight @ model.weight.T, torch.eye(8))
                if is_training:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    assert quiet("TC717", run.events) is Verdict.HELD


@pytest.mark.parametrize("head", ["zero", "dead"])
def test_quiet_on_outputs_that_do_not_depend_on_the_input(tmp_path: Path, head: str) -> None:
    data = TensorDataset(torch.randn(64, 8), torch.arange(64) % 4)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    with torch.no_grad():
        if head == "zero":
            model[2].weight.zero_()
            model[2].bias.zero_()
        else:
            model[0].bias.fill_(-100.0)
    with recording(tmp_path / "run") as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for is_training in (False, True, False):
            for x, y in DataLoader(data, 16):
                with torch.set_grad_enabled(is_training):
                    loss = F.cross_entropy(model(x), y)
                if is_training:
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
    assert quiet("TC717", run.events) is Verdict.HELD
