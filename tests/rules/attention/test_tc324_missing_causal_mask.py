"""TC324: a language model that sees the tokens that it is to predict."""

from __future__ import annotations

import itertools
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
SDPA, HEADS = f"{F}scaled_dot_product_attention", f"{F}multi_head_attention_forward"
TOKENS = tensor((8, LENGTH), "int64")
LABELS = tensor((8, LENGTH), "int64", shifted=1)
QUERY = tensor((8, 4, LENGTH, 8))
OPEN = (SDPA, {"query": QUERY, "key": QUERY})
CAUSAL = (SDPA, {"query": QUERY, "key": QUERY, "is_causal": True})
MASKED = (SDPA, {"query": QUERY, "key": QUERY, "attn_mask": tensor((16, 16), "bool")})
CROSS = (SDPA, {"query": QUERY, "key": tensor((8, 4, 9, 8))})
TIME_FIRST = tensor((LENGTH, 8, 32))
DECODER = "torch.nn.modules.transformer.TransformerDecoderLayer.forward"
OPEN_DECODER = (DECODER, {"0": TIME_FIRST, "1": tensor((9, 8, 32)), "tgt_mask": None})
OPEN_HEADS = (HEADS, {"query": TIME_FIRST, "key": TIME_FIRST, "key_padding_mask": TOKENS})


def steps(
    *attention: tuple[str, dict[str, Any]],
    given: dict[str, Any] | None = None,
    shifted: int | None = 1,
    count: int = 3,
    grad: bool = True,
    **more: int,
) -> TraceBuilder:
    trace, spans = net(), itertools.count(10_000)
    stats = {"min": 0, "max": 26, **more} | ({} if shifted is None else {"shifted": shifted})
    args = {"input": tensor((128, 27)), "target": tensor((128,), "int64", **stats)}
    for _ in range(count):
        trace.begin_step().zero_grad().forward()
        for api, tensors in attention:
            span = next(spans)
            if api == HEADS:  # the mask of padding reaches what it calls
                trace.call(SDPA, args=MASKED[1], grad_enabled=grad, parent=span)
            family = Families.MODULE if api == DECODER else None
            trace.call(api, args=tensors, grad_enabled=grad, span=span, family=family)
        root = {"family": Families.MODULE, "module": "LM", "root": True, "grad_enabled": grad}
        trace.call("__main__.LM.forward", args=given or {"0": TOKENS}, **root)
        trace.call(f"{F}cross_entropy", args=args, grad_enabled=grad)
        trace.backward().optimizer_step()
    return trace


BROKEN = steps(OPEN, OPEN).build()


def test_fires_once_at_the_first_step(golden: Golden) -> None:
    finding = fires("TC324", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.module == "LM"
    golden(finding)
    assert mentions(finding, 2, "scaled_dot_product_attention")


@pytest.mark.parametrize(
    "given",
    [
        {"0": TOKENS, "1": LABELS},
        {"input_ids": TOKENS, "attention_mask": TOKENS, "labels": TOKENS},
    ],
)
def test_fires_where_labels_and_masks_are_given_too(given: dict[str, Any]) -> None:
    fires("TC324", steps(OPEN, given=given).build())


@pytest.mark.parametrize(
    "attention",
    [(CAUSAL,), (MASKED,), (OPEN, CAUSAL), (OPEN, CROSS), (CROSS,)],
)
def test_quiet_where_any_attention_is_hidden_or_over_other_positions(attention: Any) -> None:
    assert quiet("TC324", steps(*attention).build()) is Verdict.HELD


def test_fires_where_only_padding_is_left_out_by_heads() -> None:
    fires("TC324", steps(OPEN_HEADS).build())
    masked = (HEADS, {**OPEN_HEADS[1], "attn_mask": tensor((16, 16))})
    assert quiet("TC324", steps(masked).build()) is Verdict.HELD


def test_quiet_on_other_targets() -> None:
    for shifted in (None, 0, 2):
        verdict = quiet("TC324", steps(OPEN, shifted=shifted).build())
        assert verdict is Verdict.NOT_TRIGGERED


COLUMNS = {"0": tensor((LENGTH, 8), "int64")}
SOURCE, SOURCES = tensor((8, 9), "int64"), tensor((9, 8), "int64")
ENCODER = (SDPA, {"query": tensor((8, 4, 9, 8)), "key": tensor((8, 4, 9, 8))})
HIDDEN_DECODER = (DECODER, {**OPEN_DECODER[1], "tgt_mask": tensor((LENGTH, LENGTH))})
FLAGGED_DECODER = (DECODER, {**OPEN_DECODER[1], "tgt_is_causal": True})
BY_POSITION = (DECODER, {"0": TIME_FIRST, "1": TIME_FIRST, "2": tensor((LENGTH, LENGTH))})


def test_fires_on_texts_that_lie_in_columns() -> None:
    fires("TC324", steps(OPEN_HEADS, given=COLUMNS, columns=1).build())
    batch_first = (HEADS, {"query": tensor((8, LENGTH, 32)), "key": tensor((8, LENGTH, 32))})
    assert quiet("TC324", steps(batch_first, given=COLUMNS, columns=1).build()) is Verdict.HELD


def test_fires_on_the_decoder_of_two_texts_where_its_length_tells_it() -> None:
    given = {"0": SOURCE, "1": TOKENS}
    fires("TC324", steps(ENCODER, OPEN, CROSS, given=given).build())
    for attention in [(ENCODER, MASKED, CROSS), (ENCODER, CAUSAL), (ENCODER, CROSS)]:
        assert quiet("TC324", steps(*attention, given=given).build()) is Verdict.HELD
    other = {"0": SOURCE, "1": tensor((9, LENGTH), "int64")}  # not what the loss is given
    assert quiet("TC324", steps(ENCODER, OPEN, given=other).build()) is Verdict.HELD


@pytest.mark.parametrize(
    ("given", "more"),
    [
        ({"0": TOKENS, "1": TOKENS}, {}),
        ({"0": SOURCES, **{"1": COLUMNS["0"]}}, {"columns": 1}),
        (COLUMNS, {"columns": 1}),  # the other is an image
    ],
)
def test_fires_on_layers_of_a_decoder_without_a_mask(
    given: dict[str, Any], more: dict[str, int], golden: Golden
) -> None:
    finding = fires("TC324", steps(OPEN_HEADS, OPEN_DECODER, given=given, **more).build())
    golden(finding)
    assert mentions(finding, "tgt_mask")
    for decoder in (HIDDEN_DECODER, FLAGGED_DECODER, BY_POSITION):
        run = steps(OPEN_HEADS, decoder, given=given, **more).build()
        assert quiet("TC324", run) is Verdict.HELD


def test_quiet_on_decoders_over_something_else() -> None:
    queries = (DECODER, {"0": tensor((8, 100, 32)), "1": tensor((8, LENGTH, 32))})
    run = steps(MASKED, queries, given={"0": TOKENS}).build()
    assert quiet("TC324", run) is Verdict.HELD


def test_quiet_on_two_texts_and_on_none() -> None:
    for given in ({"0": TOKENS, "1": TOKENS}, {"0": tensor((8, LENGTH, 32))}):
        assert quiet("TC324", steps(OPEN, given=given).build()) is Verdict.HELD


def test_quiet_on_evaluation_and_on_one_step() -> None:
    assert quiet("TC324", steps(OPEN, grad=False).build()) is Verdict.NOT_TRIGGERED
    assert quiet("TC324", steps(OPEN, count=1).build()) is Verdict.HELD


class Reader(nn.Module):
    """The same network, with and without a mask, by layers or by hand."""

    def __init__(self, kind: str, *, causal: bool) -> None:
        super().__init__()
        self.kind, self.causal = kind, causal
        self.embed = nn.Embedding(VOCABULARY, 32)
        if kind == "layer":
            self.layer: nn.Module = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True)
        elif kind == "heads":
            self.layer = nn.MultiheadAttention(32, 4, batch_first=True)
        else:
            self.layer = nn.Linear(32, 96)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found = self.embed(ids)
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        if self.kind == "layer":
            found = self.layer(found, src_mask=mask)
        elif self.kind == "heads":
            found = self.layer(found, found, found, attn_mask=mask)[0]
        else:
            q, k, v = (x.unsqueeze(1) for x in self.layer(found).chunk(3, -1))
            found = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            found = found.squeeze(1)
        return self.head(found)


@pytest.mark.parametrize("kind", ["layer", "heads", "function"])
def test_a_recorded_model(tmp_path: Any, kind: str) -> None:
    for causal in (True, False):
        model = Reader(kind, causal=causal)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recording(tmp_path / str(causal)) as run:
            for _ in range(4):
                text = torch.randint(0, VOCABULARY, (4, LENGTH + 1))
                loss = functional.cross_entropy(
                    model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if causal:
            assert quiet("TC324", run.events) is Verdict.HELD
        else:
            assert fires("TC324", run.events).first_step == 0


class Translator(nn.Module):
    """torch's own, sequence first."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.source, self.target = (nn.Embedding(VOCABULARY, 32) for _ in range(2))
        self.layers = nn.Transformer(32, 4, 1, 1, 64, 0.0)
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        mask = None
        if self.causal:
            mask = nn.Transformer.generate_square_subsequent_mask(len(target))
        source, target = self.source(source), self.target(target)
        return self.head(self.layers(source, target, tgt_mask=mask))


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("source_length", [LENGTH, 9])
def test_a_recorded_translator(tmp_path: Any, source_length: int) -> None:
    for causal in (True, False):
        model = Translator(causal=causal)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with recording(tmp_path / str(causal)) as run:
            for _ in range(4):
                source = torch.randint(0, VOCABULARY, (source_length, 4))
                text = torch.randint(0, VOCABULARY, (LENGTH + 1, 4))
                loss = functional.cross_entropy(
                    model(source, text[:-1]).flatten(0, 1), text[1:].flatten()
                )
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if causal:
            assert quiet("TC324", run.events) is Verdict.HELD
        else:
            assert mentions(fires("TC324", run.events), "tgt_mask")


def by_hand(hidden: float | None, length: int = LENGTH) -> tuple[str, dict[str, Any]]:
    """Softmax over scores of attention. hidden: the share of later positions without weight."""
    stats = {} if hidden is None else {"hidden": hidden}
    return ("torch.Tensor.softmax", {"result": tensor((8, 4, length, length), **stats)})


def written_by_hand(*shares: tuple[str, dict[str, Any]]) -> TraceBuilder:
    trace = net()
    loss = {"input": tensor((128, 27))}
    loss["target"] = tensor((128,), "int64", min=0, max=26, shifted=1)
    for _ in range(3):
        trace.begin_step().zero_grad().forward()
        for api, fields in shares:
            trace.call(api, args={"dim": -1}, **fields)
        root = {"family": Families.MODULE, "module": "LM", "root": True}
        trace.call("__main__.LM.forward", args={"0": TOKENS}, **root)
        trace.call(f"{F}cross_entropy", args=loss).backward().optimizer_step()
    return trace


def test_fires_on_attention_that_is_written_by_hand(golden: Golden) -> None:
    finding = fires("TC324", written_by_hand(by_hand(0.0), by_hand(0.0), by_hand(0.0, 8)).build())
    golden(finding)
    assert mentions(finding, 2)


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([by_hand(1.0)], Verdict.HELD),
        ([by_hand(0.0), by_hand(1.0)], Verdict.HELD),  # an encoder, and its decoder
        ([by_hand(0.3)], Verdict.HELD),  # a prefix, or a window
        ([by_hand(0.0, 8)], Verdict.NOT_TRIGGERED),  # experts
        ([by_hand(None)], Verdict.NOT_TRIGGERED),
    ],
)
def test_quiet_on_softmax_that_hides_or_is_over_something_else(
    shares: list[tuple[str, dict[str, Any]]], verdict: Verdict
) -> None:
    assert quiet("TC324", written_by_hand(*shares).build()) is verdict
