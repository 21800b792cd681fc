"""TC907: decay of biases and norms."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.models import model
from traincheck.schema.findings import Verdict

LAYERS = {"fc1": {"family": "linear"}, "fc2": {"family": "norm"}}
DECAY = {"cls": "torch.optim.adamw.AdamW", "weight_decay": 0.01}
BROKEN = model(LAYERS, trace=net(**DECAY)).steps(2).build()


def test_fires_once_for_an_optimizer(golden: Golden) -> None:
    finding = fires("TC907", BROKEN)
    golden(finding)
    assert mentions(finding, "Net.fc1.bias", "Net.fc2.bias", "Net.fc2.weight", "opt0")
    assert finding.violations == 1


def test_quiet_without_decay() -> None:
    assert quiet("TC907", model(LAYERS).steps(2).build()) is Verdict.NOT_TRIGGERED
    least = model(LAYERS, trace=net(**{**DECAY, "weight_decay": 1e-8}))
    assert quiet("TC907", least.steps(2).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_an_optimizer_of_the_programs_own() -> None:
    """Which may leave biases out by itself."""
    own = model(LAYERS, trace=net(**{**DECAY, "cls": "__main__.LARS"}))
    assert quiet("TC907", own.steps(2).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_weights_alone() -> None:
    trace = net(names=["Net.fc1.weight"], **DECAY)
    assert quiet("TC907", model(LAYERS, trace=trace).steps(2).build()) is Verdict.HELD


def test_quiet_on_what_is_frozen() -> None:
    names = ["Net.fc1.bias", "Net.fc2.bias", "Net.fc2.weight"]
    trace = TraceBuilder().process().model("Net", frozen=names).optimizer(**DECAY)
    assert quiet("TC907", model(LAYERS, trace=trace).steps(2).build()) is Verdict.HELD
