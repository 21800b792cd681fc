"""Entropy, largest score and norms of attention by head equal those of the full matrix.

Where attention cannot be measured, a line names the modules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.monitor import attention
from traincheck.collect.monitor.attention import Attention, measured
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import combine
from traincheck.schema.claims import Needs
from traincheck.schema.metrics.requests import ATTENTION, MonitorView, parse_requests


def scores_of(q, k, mask=None, *, causal=False, scale=None):
    """All scores, in float64."""
    q, k = q.double(), k.double()
    if q.dim() > 2 and k.size(-3) != q.size(-3):
        k = k.repeat_interleave(q.size(-3) // k.size(-3), -3)
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.size(-1)) if scale is None else scale)
    if causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return scores


def entropy_of(scores):
    p = scores.softmax(-1)
    return -(torch.where(p > 0, p * p.log(), 0.0)).sum(-1)


def tensors(rows=9, positions=9, heads=4, kv=4, dtype=torch.float32):
    torch.manual_seed(0)
    q = torch.randn(2, heads, rows, 8) * 2
    k, v = torch.randn(2, kv, positions, 8) * 2, torch.randn(2, kv, positions, 8)
    return q.to(dtype), k.to(dtype), v.to(dtype)


ALLOWED = torch.ones(9, 9, dtype=torch.bool).tril(2)
BIAS = torch.linspace(-3, 3, 81).reshape(9, 9)
CASES = {
    "plain": (tensors(), {}),
    "causal": (tensors(), {"is_causal": True}),
    "float64": (tensors(dtype=torch.float64), {}),
    "bool mask": (tensors(), {"attn_mask": ALLOWED}),
    "additive mask": (tensors(), {"attn_mask": BIAS}),
    "mask of the smallest number": (
        tensors(),
        {"attn_mask": torch.where(ALLOWED, 0.0, torch.finfo(torch.float32).min)},
    ),
    "mask a head": (tensors(), {"attn_mask": BIAS.expand(2, 4, 9, 9)}),
    "scale": (tensors(), {"scale": 0.1}),
    "groups": (tensors(kv=2), {"enable_gqa": True}),
    "cross": (tensors(positions=13), {}),
    "long": (tensors(rows=300, positions=300), {"is_causal": True}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("by_rows", [False, True])
def test_entropy_and_largest_score(case: str, by_rows: bool, monkeypatch) -> None:
    (q, k, v), given = CASES[case]
    if by_rows:
        monkeypatch.setattr(attention, "_flash_on_cpu", None)
        monkeypatch.setattr(attention, "_MOST_SCORES", 1000)
    call = Attention.of(q, k, v, **given)
    expected = scores_of(
        q, k, given.get("attn_mask"), causal=given.get("is_causal", False), scale=given.get("scale")
    )
    torch.testing.assert_close(
        call.entropy().double(), entropy_of(expected), atol=1e-4, rtol=0, check_dtype=False
    )
    torch.testing.assert_close(
        call.max_logit().double(), expected.amax(-1), atol=1e-4, rtol=1e-5, check_dtype=False
    )


def test_half_precision_is_measured_in_single() -> None:
    q, k, v = tensors(dtype=torch.bfloat16)
    expected = entropy_of(scores_of(q, k))
    torch.testing.assert_close(
        Attention.of(q, k, v).entropy().double(), expected, atol=1e-4, rtol=0
    )


def test_a_row_that_attends_to_nothing_is_left_out() -> None:
    q, k, v = tensors()
    mask = ALLOWED.clone()
    mask[3] = False
    found = Attention.of(q, k, v, attn_mask=mask).entropy()
    assert torch.isnan(found[..., 3]).all()
    assert not torch.isnan(found[..., [0, 1, 2, 4]]).any()


def test_one_key_gives_0_and_equal_keys_the_logarithm() -> None:
    q = torch.ones(1, 1, 7, 8)
    one = torch.zeros(1, 1, 7, 8)
    one[0, 0, 2] = 100.0
    assert Attention.of(q, one, one).entropy().abs().max() < 1e-4
    assert torch.allclose(
        Attention.of(q, torch.ones_like(one), one).entropy(), torch.tensor(math.log(7)), atol=1e-5
    )


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mha = nn.MultiheadAttention(8, 2, batch_first=True)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 1)
        self.kept = []

    def forward(self, x):
        x = self.mha(x, x, x, need_weights=False)[0]
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        self.kept.append((q.detach(), k.detach(), v.detach()))
        x = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        return self.out(x.transpose(1, 2).flatten(2))


def trained(folder: Path | None) -> tuple[Heads, Metrics | None]:
    view = MonitorView(
        requests=parse_requests(["attn:entropy,max_logit,query_norm,key_norm,value_norm"])
    )

    def train() -> Heads:
        torch.manual_seed(0)
        model = Heads()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            for rows in (1, 3):  # micro-batches
                model(torch.randn(rows, 5, 8)).sum().backward()
            optimizer.step()
        return model

    if folder is None:
        return train(), None
    with recording(folder, needs=Needs(), monitor=view.to_json()) as run:
        model = train()
    return model, combine(run.events, view)


def test_an_unedited_program(tmp_path: Path) -> None:
    model, metrics = trained(tmp_path / "run")
    twin, _ = trained(None)
    for one, same in zip(model.parameters(), twin.parameters()):
        assert torch.equal(one, same)
    assert {f"attention_entropy/Heads.mha.head_{i}" for i in range(2)} < set(metrics)
    for step in range(3):
        parts = model.kept[2 * step : 2 * step + 2]
        scores = [scores_of(q, k, causal=True) for q, k, _ in parts]
        for head in range(2):
            rows = torch.cat([entropy_of(s)[:, head].flatten() for s in scores])
            key = f"Heads.head_{head}"
            assert metrics[f"attention_entropy/{key}"][step] == pytest.approx(
                rows.mean().item(), abs=1e-4
            )
            assert metrics[f"attention_max_logit/{key}"][step] == pytest.approx(
                max(s[:, head].max().item() for s in scores), abs=1e-4
            )
            for index, name in enumerate(("query", "key", "value")):
                norms = torch.cat([p[index][:, head].norm(dim=-1).flatten() for p in parts])
                assert metrics[f"attention_{name}_norm/{key}"][step] == pytest.approx(
                    norms.mean().item(), abs=1e-5
                )


@pytest.mark.parametrize("sizes", [(5, 8), (3, 5, 8), (3, 2, 5, 8), (4, 3, 2, 5, 8)])
def test_dimensions_before_heads_are_batches(sizes: tuple[int, ...]) -> None:
    """As for the function: three dimensions have one head, and five have two of batches."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, *sizes)
    heads = sizes[-3] if len(sizes) > 3 else 1
    F.scaled_dot_product_attention(q, k, v)
    for mask in (None, torch.ones(5, 5).tril().bool(), torch.randn(*sizes[:-1], 5)):
        expected = scores_of(q, k, mask)
        call = Attention.of(q, k, v, mask)
        found = {name: values for name, _, values in measured(call, ATTENTION)}
        count = expected[..., 0].numel() / heads
        assert found["entropy"].shape == (2, heads)
        assert found["entropy"][0].tolist() == [count] * heads
        rows = entropy_of(expected).reshape(-1, heads, 5)
        assert (found["entropy"][1] / count).tolist() == pytest.approx(
            rows.mean((0, 2)).tolist(), abs=1e-4
        )
        largest = expected.reshape(-1, heads, 25).amax((0, 2))
        assert found["max_logit"][1].tolist() == pytest.approx(largest.tolist(), rel=1e-5)
        norms = q.norm(dim=-1).reshape(-1, heads, 5).mean((0, 2))
        assert (found["query_norm"][1] / count).tolist() == pytest.approx(norms.tolist(), rel=1e-5)


def test_a_batch_that_is_broadcast() -> None:
    q, k, v = tensors()
    expected = entropy_of(scores_of(q, k[:1]))
    found = Attention.of(q, k[:1], v[:1]).entropy().double()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_scores_are_exact_under_autocast() -> None:
    q, k, v = tensors()
    with torch.autocast("cpu", torch.bfloat16):
        found = Attention.of(q, k, v, ALLOWED).entropy().double()
    expected = entropy_of(scores_of(q, k, ALLOWED))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
LATER = torch.ones(5, 5, dtype=torch.bool).triu(1)
WITH_WEIGHTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "defaults": ({}, {}),
    "sequence first": ({"batch_first": False}, {}),
    "no average": ({}, {"average_attn_weights": False}),
    "padding": ({}, {"key_padding_mask": PADDING}),
    "causal": ({}, {"attn_mask": LATER, "is_causal": True}),
    "both masks": (
        {},
        {"attn_mask": torch.randn(6, 5, 5), "key_padding_mask": PADDING.float() * -9},
    ),
    "bias of keys": ({"add_bias_kv": True}, {"key_padding_mask": PADDING}),
    "zero attention": ({"add_zero_attn": True}, {"attn_mask": LATER}),
    "other sizes": ({"kdim": 6, "vdim": 4}, {}),
    "no weights": ({}, {"need_weights": False}),
}


def attending(
    model: nn.Module, call: Callable[[], torch.Tensor], folder: Path | None
) -> Metrics | None:
    """Train with a call for its loss; with a folder, monitored."""

    def train() -> None:
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            optimizer.zero_grad()
            call().backward()
            optimizer.step()

    if folder is None:
        train()
        return None
    view = MonitorView(requests=parse_requests(["attn:entropy,max_logit"]))
    with recording(folder, needs=Needs(), monitor=view.to_json()) as run:
        train()
    assert not run.marks("fault")
    return combine(run.events, view)


@pytest.mark.parametrize("case", WITH_WEIGHTS)
def test_attention_whose_weights_are_wanted(case: str, tmp_path: Path) -> None:
    """Its numbers are those of the weights that it returns, without their dropout."""
    made, given = WITH_WEIGHTS[case]
    models = []
    for folder in (None, tmp_path / "run"):
        torch.manual_seed(0)
        model = nn.MultiheadAttention(8, 2, dropout=0.3, **{"batch_first": True, **made})
        q, k, v = (torch.randn(3, 5, size or 8) for size in (8, made.get("kdim"), made.get("vdim")))
        if not made.get("batch_first", True):
            q, k, v = (each.transpose(0, 1) for each in (q, k, v))
        if folder is not None:
            plain = nn.MultiheadAttention(8, 2, **{"batch_first": True, **made})
            plain.load_state_dict(model.state_dict())
            ask = {**given, "need_weights": True, "average_attn_weights": False}
            weights = plain(q, k, v, **ask)[1].double()
        found = attending(model, lambda: model(q, k, v, **given)[0].square().sum(), folder)  # noqa: B023
        models.append(model)
    assert found is not None
    assert not found.notes
    entropy = -torch.xlogy(weights, weights).sum(-1)
    for head in range(2):
        name = f"MultiheadAttention.head_{head}"
        mean = entropy[:, head].mean().item()
        assert found[f"attention_entropy/{name}"][0] == pytest.approx(mean, abs=1e-4)
        assert found[f"attention_max_logit/{name}"][1] > -math.inf
    for one, same in zip(*(m.parameters() for m in models)):
        assert torch.equal(one, same)


class HandmadeAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.q(x) @ self.k(x).transpose(-1, -2)).softmax(-1) @ x


class Layers(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.attention_layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.attention_layers:
            x = layer(x)
        return x


def test_a_line_names_modules_that_are_not_measured(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
    model = Layers(layer, HandmadeAttention())
    x = torch.randn(3, 5, 8)

    def call() -> torch.Tensor:
        model.eval()
        with torch.no_grad():
            model(x)  # a fused kernel for the whole layer
        return model.train()(x).sum()

    found = attending(model, call, tmp_path / "run")
    assert found is not None
    assert "attention_entropy/Layers.attention_layers.0.self_attn.head_1" in found
    start, words = "attention was not measured", "no known function of attention is called in"
    first, second = (f"Layers.attention_layers.{index}" for index in range(2))
    assert found.notes == [
        f"{start}: {words} {second}",
        f"{start} in forwards without gradients: {words} {first}, {second}",
    ]


@pytest.mark.parametrize("attends", [True, False])
def test_a_line_says_that_nothing_was_measured(tmp_path: Path, attends: bool) -> None:
    model = Layers(nn.TransformerEncoderLayer(8, 2, 8) if attends else nn.Linear(8, 8))
    found = attending(model, lambda: model(torch.randn(3, 5, 8)).sum(), tmp_path / "run")
    assert found is not None
    line = "no attention was measured: no call of a known function was seen"
    assert found.notes == ([] if attends else [line])
