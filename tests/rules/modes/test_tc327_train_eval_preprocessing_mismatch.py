"""TC327: inputs of evaluation that are scaled otherwise than those of training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import mentions
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.observations.models import ModelInputs

Numbers = tuple[float, float, float, float]  # min, max, mean, std
IMAGE, TABLE = (16, 3, 32, 32), (64, 10)
NORMALIZED, PLAIN, BYTES = (-2.1, 2.6, 0.0, 1.0), (0.0, 1.0, 0.45, 0.25), (0.0, 255.0, 115.0, 64.0)


def look(trace: TraceBuilder, numbers: Numbers, shape: tuple[int, ...], *, training: bool) -> None:
    stats = dict(zip(("min", "max", "mean", "std"), numbers, strict=True))
    tensor = {"dtype": "float32", "shape": list(shape), "device": "cpu", "stats": stats}
    trace.mark(ModelInputs.text, model="Net", training=training, inputs={"0": tensor})


def run(
    training: Numbers, *evaluation: Numbers, shape: tuple[int, ...] = IMAGE, rows: int = 4
) -> list[Event]:
    trace = net()
    for _ in range(4):
        trace.begin_step()
        look(trace, training, shape, training=True)
        trace.zero_grad().forward().backward().optimizer_step()
    for numbers in evaluation:
        look(trace, numbers, (rows, *shape[1:]), training=False)
    return trace.end_step().build()


BROKEN = run(NORMALIZED, *[PLAIN] * 3)


@pytest.mark.parametrize(
    ("training", "evaluation", "shape"),
    [
        (NORMALIZED, PLAIN, IMAGE),
        (PLAIN, NORMALIZED, IMAGE),
        (PLAIN, BYTES, IMAGE),
        (BYTES, NORMALIZED, IMAGE),
        ((-3.0, 4.0, 0.0, 1.0), (0.0, 900.0, 70.0, 120.0), TABLE),
    ],
)
def test_fires(training: Numbers, evaluation: Numbers, shape: tuple[int, ...]) -> None:
    finding = fires("TC327", run(training, *[evaluation] * 3, shape=shape))
    assert (finding.subject.module, finding.violations) == ("Net", 1)
    assert mentions(finding.expected, f"{training[0]:.3g}")


@pytest.mark.parametrize(
    ("training", "evaluation", "shape"),
    [
        (NORMALIZED, [NORMALIZED] * 4, IMAGE),
        (NORMALIZED, [PLAIN] * 2, IMAGE),  # a summary, an export
        (NORMALIZED, [NORMALIZED, *[PLAIN] * 6], IMAGE),
        ((-0.6, 1.7, 0.45, 0.4), [PLAIN] * 4, IMAGE),  # noise in training: the mean stays
        ((-0.35, 1.0, 0.3, 0.3), [PLAIN] * 4, IMAGE),
        (NORMALIZED, [(0.0, 0.0, 0.0, 0.0)] * 4, IMAGE),
        (NORMALIZED, [PLAIN] * 4, TABLE),
        ((-3.0, 4.0, 0.0, 1.0), [(-30.0, 44.0, 0.0, 9.0)] * 4, TABLE),
        (NORMALIZED, [], IMAGE),
        (NORMALIZED, [PLAIN] * 4, (16,)),
    ],
)
def test_quiet(training: Numbers, evaluation: list[Numbers], shape: tuple[int, ...]) -> None:
    verdict = quiet("TC327", run(training, *evaluation, shape=shape))
    assert verdict is (Verdict.HELD if len(shape) > 1 else Verdict.NOT_TRIGGERED)


Transform = Callable[[torch.Tensor], torch.Tensor]


def normalized(x: torch.Tensor) -> torch.Tensor:
    return (x / 16 - 0.3) / 0.35


def noisy(x: torch.Tensor) -> torch.Tensor:
    return normalized(x) + 0.5 * torch.randn_like(x)


def plain(x: torch.Tensor) -> torch.Tensor:
    return x / 16


NEEDS = Needs(states=frozenset({"input@given"}), kinds=frozenset({"mark"}))


@pytest.mark.parametrize(
    ("transform", "other", "is_wrong"),
    [
        (normalized, normalized, False),
        (noisy, normalized, False),
        (normalized, plain, True),
        (plain, lambda x: 16 * x, True),
    ],
)
@pytest.mark.parametrize("needs", [None, NEEDS])
def test_recorded_runs(
    tmp_path: Path, transform: Transform, other: Transform, is_wrong: bool, needs: Needs | None
) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 10))
    with recording(tmp_path / "run", needs=needs) as run:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            model.train()
            for start in range(0, 256, 64):
                optimizer.zero_grad()
                inputs = transform(x[start : start + 64])
                nn.functional.cross_entropy(model(inputs), y[start : start + 64]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for start in range(512, 768, 64):
                    model(other(x[start : start + 64]))
    if is_wrong:
        finding = fires("TC327", run.events)
        assert (finding.severity, finding.stage) == ("warning", "eval")
    else:
        assert quiet("TC327", run.events) is Verdict.HELD


def test_what_is_not_looked_at(tmp_path: Path) -> None:
    """Tokens, single rows, models in the other mode, what the fifth call of a step is given."""
    model, words = nn.Linear(3, 2), nn.EmbeddingBag(9, 2)
    with recording(tmp_path / "run", needs=NEEDS) as run:
        words(torch.zeros(4, 3, dtype=torch.int64))
        model(torch.randn(1, 3))
        with torch.no_grad():
            model(torch.randn(4, 3))
        model.eval()(torch.randn(4, 3))
        assert run.marks(ModelInputs.text) == []
        with torch.no_grad():
            for _ in range(6):
                model(torch.randn(4, 3))
    assert len(run.marks(ModelInputs.text)) == 4
