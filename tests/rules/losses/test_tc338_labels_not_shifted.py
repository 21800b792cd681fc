"""TC338: a causal language model that is to predict the tokens that it is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.loss_runs import F, tensor
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LENGTH, VOCABULARY = 16, 27
SDPA = f"{F}scaled_dot_product_attention"
TOKENS = tensor((8, LENGTH), "int64")
QUERY = tensor((8, 4, LENGTH, 8))
OPEN = (SDPA, {"args": {"query": QUERY, "key": QUERY}})
CAUSAL = (SDPA, {"args": {"query": QUERY, "key": QUERY, "is_causal": True}})
BY_HAND = ("torch.softmax", {"args": {"dim": -1}, "result": tensor((8, 4, 16, 16), hidden=1.0)})


def steps(
    *attention: tuple[str, dict[str, Any]],
    losses: tuple[float, ...] = (3.0, 0.01, 0.01),
    fed: bool = True,
    reduction: str = "mean",
    grad: bool = True,
) -> TraceBuilder:
    trace = net()
    stats = {"shifted": 0, "fed": 1} if fed else {"shifted": 0}
    args = {"input": tensor((128, 27)), "target": tensor((128,), "int64", **stats)}
    root = {"family": Families.MODULE, "module": "LM", "root": True, "grad_enabled": grad}
    for value in losses:
        trace.begin_step().zero_grad()
        for api, fields in attention:
            trace.call(api, grad_enabled=grad, **fields)
        trace.call("__main__.LM.forward", args={"0": TOKENS}, **root)
        result = {**tensor(()), "value": value}
        args = {**args, "reduction": reduction}
        trace.call(f"{F}cross_entropy", args=args, result=result, grad_enabled=grad)
        trace.backward().optimizer_step()
    return trace


BROKEN = steps(CAUSAL).build()


@pytest.mark.parametrize("attention", [CAUSAL, BY_HAND])
def test_fires_once_at_the_first_step(attention: Any, golden: Golden) -> None:
    finding = fires("TC338", steps(attention, attention).build())
    assert (finding.first_step, finding.violations) == (0, 1)
    golden(finding)
    assert mentions(finding, 0.01)


@pytest.mark.parametrize(
    ("attention", "options", "verdict"),
    [
        ([CAUSAL], {"losses": (3.0, 2.0, 1.0)}, Verdict.HELD),
        ([CAUSAL], {"losses": (3.0, 2.0, 0.01)}, Verdict.HELD),  # one step
        ([CAUSAL], {"fed": False}, Verdict.HELD),  # labels of tokens, not the tokens
        ([CAUSAL], {"reduction": "sum"}, Verdict.HELD),
        ([CAUSAL, OPEN], {}, Verdict.NOT_TRIGGERED),
        ([OPEN], {}, Verdict.NOT_TRIGGERED),  # what is hidden there is in the input
        ([], {}, Verdict.NOT_TRIGGERED),
        ([CAUSAL], {"grad": False}, Verdict.NOT_TRIGGERED),
    ],
)
def test_quiet_on_other_losses_and_attention(
    attention: list[Any], options: dict[str, Any], verdict: Verdict
) -> None:
    assert quiet("TC338", steps(*attention, **options).build()) is verdict


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.layer = nn.Linear(32, 96)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.embed(ids)
        q, k, v = (x.unsqueeze(1) for x in self.layer(found).chunk(3, -1))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(found + seen.squeeze(1))


def _train(path: Path, labels: str) -> Any:
    """labels: "inputs", "next", or "other", as of a tagger that may say the same each time."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    with recording(path) as run:
        for _ in range(81):
            text = torch.randint(0, VOCABULARY - 1, (4, LENGTH + 1))
            given, target = text[:, :-1], text[:, 1:]
            if labels != "next":
                target = given + (labels == "other")
            loss = functional.cross_entropy(model(given).flatten(0, 1), target.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return run.events


def test_a_recorded_model(tmp_path: Path) -> None:
    assert fires("TC338", _train(tmp_path / "inputs", "inputs")).first_step == 0
    for labels in ("next", "other"):
        assert quiet("TC338", _train(tmp_path / labels, labels)) is Verdict.HELD
