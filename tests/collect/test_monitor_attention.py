"""Entropy, largest score and norms of attention by head equal those of the full matrix."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.collect.recording import recording
from traincheck.collect.monitor import attention
from traincheck.collect.monitor.attention import Attention
from traincheck.metrics.series import Metrics
from traincheck.metrics.trace import combine
from traincheck.schema.claims import Needs
from traincheck.schema.metrics.requests import MonitorView, parse_requests


def scores_of(q, k, mask=None, *, causal=False, scale=None):
    """All scores, in float64."""
    q, k = q.double(), k.double()
    if k.size(-3) != q.size(-3):
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
