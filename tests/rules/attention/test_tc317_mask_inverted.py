"""TC317: a mask that is True where padding is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.rules.attending import IDS, attend, attending
from tests.rules.loss_runs import F, tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

PADDED = {"padding": 0.25, "left_padded": False}
SHAPE = (4, 1, 1, 16)

BROKEN = attending(PADDED, attn_mask=tensor(SHAPE, "bool", zeros=0.75))


def test_fires_when_it_leaves_the_tokens_out(golden: Golden) -> None:
    finding = fires("TC317", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    assert mentions(finding, "75.0%")
    golden(finding)
    assert mentions(finding, "25.0%")


@pytest.mark.parametrize(
    "mask",
    [
        tensor(SHAPE, "bool", zeros=0.25),
        tensor((4, 1, 16, 16), "bool", zeros=0.6),  # causal as well
    ],
)
def test_quiet_on_masks_of_tokens(mask: dict[str, Any]) -> None:
    assert quiet("TC317", attending(PADDED, attn_mask=mask)) is Verdict.HELD


def of_queries(*shares: tuple[float, float]) -> list[Event]:
    """Steps with masks of all pairs of positions. shares: of padding, and left out."""
    trace = net()
    for padding, zeros in shares:
        mask = tensor((4, 1, 16, 16), "bool", zeros=zeros)
        heads = dict.fromkeys(("query", "key", "value"), tensor((4, 2, 16, 8)))
        tokens = {"padding": padding, "left_padded": False}
        attend(trace, tokens, {**heads, "attn_mask": mask}, {"attention_mask": IDS})
    return trace.build()


def test_a_mask_of_pairs_is_inverted_where_several_batches_agree() -> None:
    finding = fires("TC317", of_queries((0.3, 0.7), (0.25, 0.75), (0.2, 0.8), (0.1, 0.9)))
    assert (finding.first_step, finding.last_step) == (2, 3)


def test_quiet_on_a_causal_mask_that_leaves_as_much_out_by_chance() -> None:
    by_chance = of_queries((0.3, 0.6), (0.25, 0.75), (0.2, 0.8), (0.15, 0.55), (0.1, 0.9))
    assert quiet("TC317", by_chance) is Verdict.HELD
    assert quiet("TC317", of_queries(*4 * [(0.25, 0.75)])) is Verdict.HELD


@pytest.mark.parametrize(
    ("tokens", "mask"),
    [
        ({"padding": 0.5}, tensor(SHAPE, "bool", zeros=0.5)),
        ({"padding": 0.0}, tensor(SHAPE, "bool", zeros=1.0)),
        (PADDED, tensor(SHAPE, "bool")),
        (PADDED, tensor((1, 1, 16, 16), "bool", zeros=0.75)),  # not of this batch
        (PADDED, None),
    ],
)
def test_says_nothing_when_it_cannot_tell(tokens: dict[str, Any], mask: Any) -> None:
    assert quiet("TC317", attending(tokens, attn_mask=mask)) is Verdict.NOT_TRIGGERED


HEADS, SDPA = f"{F}multi_head_attention_forward", f"{F}scaled_dot_product_attention"


def hiding(*inverted: int | None, api: str = HEADS, name: str = "key_padding_mask") -> TraceBuilder:
    """A step for each mask. inverted: what is known of it."""
    trace = net()
    for each in inverted:
        stats = {} if each is None else {"inverted": each}
        trace.begin_step().zero_grad()
        trace.call(api, args={name: tensor((4, 16), "float32", **stats)})
        trace.call("__main__.Net.forward", family=Families.MODULE, module="Net", root=True)
        trace.backward().optimizer_step()
    return trace


def test_fires_where_a_mask_hides_all_tokens_twice(golden: Golden) -> None:
    finding = fires("TC317", hiding(0, 1, 1, 1).build())
    assert (finding.first_step, finding.violations) == (1, 1)
    assert finding.subject.module == "Net"
    golden(finding)
    assert mentions(finding, "key_padding_mask")
    finding = fires("TC317", hiding(1, 1, api=SDPA, name="attn_mask").build())
    golden(finding)


def test_quiet_where_it_does_once_or_never() -> None:
    assert quiet("TC317", hiding(0, 1, 0).build()) is Verdict.HELD
    assert quiet("TC317", hiding(None, None).build()) is Verdict.NOT_TRIGGERED


class Reader(nn.Module):
    """The same network, with layers or a function, the text in rows or in columns."""

    def __init__(self, kind: str, *, inverted: bool) -> None:
        super().__init__()
        self.kind, self.inverted = kind, inverted
        self.embed, self.head = nn.Embedding(20, 16, padding_idx=0), nn.Linear(16, 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=kind == "rows")
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        found = self.embed(text)
        is_padding = text == 0
        if self.inverted:
            is_padding = ~is_padding
        if self.kind == "columns":
            found = self.layers(found, src_key_padding_mask=is_padding.t())
            return self.head(found.mean(0))
        if self.kind == "rows":
            found = self.layers(found, src_key_padding_mask=is_padding)
        else:
            mask = ~is_padding[:, None, None, :]
            q = found.unsqueeze(1)
            found = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).squeeze(1)
        return self.head(found.mean(1))


@pytest.mark.parametrize("kind", ["rows", "columns", "function"])
def test_a_recorded_model(tmp_path: Any, kind: str) -> None:
    for inverted in (False, True):
        model = Reader(kind, inverted=inverted)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recording(tmp_path / str(inverted)) as run:
            for _ in range(4):
                lengths = torch.tensor([[4], [7], [9], [10], [5], [6]])
                text = torch.randint(1, 20, (6, 10)).masked_fill(torch.arange(10) >= lengths, 0)
                given = text.t().contiguous() if kind == "columns" else text
                optimizer.zero_grad()
                functional.cross_entropy(model(given), text[:, 1] % 4).backward()
                optimizer.step()
        if inverted:
            assert fires("TC317", run.events).first_step == 0
        else:
            assert quiet("TC317", run.events) is Verdict.HELD
