"""TC908: decay of embeddings."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.models import model
from traincheck.schema.findings import Verdict

LAYERS = {"fc1": {"family": "embedding"}, "fc2": {"family": "linear"}}
DECAY = {"cls": "torch.optim.adamw.AdamW", "weight_decay": 0.01}
WEIGHTS = {"fc1.weight": LINEAR, "fc2.weight": LINEAR}
BARE = TraceBuilder().process().model("Net", WEIGHTS).optimizer(**DECAY)
BROKEN = model(LAYERS, trace=BARE).steps(2).build()


def test_fires_once_for_an_optimizer(golden: Golden) -> None:
    finding = fires("TC908", BROKEN)
    golden(finding)
    assert mentions(finding, "Net.fc1.weight", "opt0")
    assert finding.violations == 1


def test_quiet_without_decay() -> None:
    assert quiet("TC908", model(LAYERS).steps(2).build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_weights_alone() -> None:
    trace = net(names=["Net.fc2.weight", "Net.fc2.bias"], **DECAY)
    assert quiet("TC908", model(LAYERS, trace=trace).steps(2).build()) is Verdict.HELD


@pytest.mark.parametrize("path", ["wpe", "embed_positions", "position_embedding", "pos_emb"])
def test_quiet_on_embeddings_of_positions(path: str) -> None:
    weights = {f"{path}.weight": LINEAR, "fc2.weight": LINEAR}
    trace = TraceBuilder().process().model("Net", weights).optimizer(**DECAY)
    layers = {path: {"family": "embedding"}, "fc2": {"family": "linear"}}
    assert quiet("TC908", model(layers, trace=trace).steps(2).build()) is Verdict.HELD
