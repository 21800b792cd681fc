"""Training steps of a model with attention over a batch of tokens."""

from __future__ import annotations

from typing import Any

from tests.builders import TraceBuilder
from tests.checking import net
from tests.rules.loss_runs import tensor
from traincheck.rules.attention.calls import SDPA
from traincheck.schema.events import Event
from traincheck.schema.torch_api import Families

IDS = tensor((4, 16), "int64")


def attending(
    tokens: dict[str, Any],
    args: dict[str, Any] | None = None,
    *,
    attn_mask: Any = None,
    is_causal: bool = False,
    keys: int = 16,
) -> list[Event]:
    """Two steps. args: of the model. attn_mask, is_causal, keys: of both its attention calls."""
    trace = net()
    given = {"0": IDS, "attention_mask": IDS} if args is None else args
    for _ in range(2):
        key = tensor((4, 2, keys, 8))
        attention = {"query": key, "key": key, "value": key, "attn_mask": attn_mask}
        attend(trace, tokens, {**attention, "is_causal": is_causal}, given)
    return trace.build()


def attend(
    trace: TraceBuilder, tokens: dict[str, Any], attention: dict[str, Any], given: dict[str, Any]
) -> None:
    """A step. attention, given: arguments of both attention calls, and of the model."""
    leaves = {"batch.input_ids": IDS, "batch.attention_mask": IDS, "batch.labels": IDS}
    trace.begin_step().batch(leaves=leaves, tokens=tokens).zero_grad()
    for _ in range(2):
        trace.call(SDPA, args=attention)
    trace.call("__main__.Net.forward", family=Families.MODULE, module="Net", root=True, args=given)
    trace.backward().optimizer_step()
