"""TC801: autocast that changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import tensor
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def under(autocast: str | None, *results: str, **root: Any) -> list[Event]:
    """Two steps of a model whose products have these dtypes."""
    trace = net()
    for _ in range(2):
        trace.begin_step().batch().zero_grad()
        for dtype in results:
            trace.call("torch.nn.functional.linear", parent=99, result=tensor((8, 8), dtype))
        fields = {"family": Families.MODULE, "module": "Net", "root": True, "autocast": autocast}
        trace.call("__main__.Net.forward", **{**fields, **root})
        trace.backward().optimizer_step()
    return trace.build()


BROKEN = under("bfloat16", "float32", "float32")


def test_fires_when_no_product_has_its_dtype(golden: Golden) -> None:
    finding = fires("TC801", BROKEN)
    assert (finding.first_step, finding.last_step) == (0, 1)
    golden(finding)
    assert mentions(finding, 2)
    assert finding.subject.module == "Net"


@pytest.mark.parametrize(
    "events",
    [
        under("bfloat16", "bfloat16", "bfloat16"),
        under("bfloat16", "bfloat16", "float32", "float32"),  # an island in float32
        under("bfloat16", "float32"),  # one product, that may be meant
        under("float16", "bfloat16", "bfloat16"),
        under("bfloat16", "float64", "float64"),
    ],
)
def test_quiet_where_some_products_have_it(events: list[Event]) -> None:
    assert quiet("TC801", events) is Verdict.HELD


def test_says_nothing_without_autocast_or_gradients() -> None:
    assert quiet("TC801", under(None, "float32", "float32")) is Verdict.NOT_TRIGGERED
    assert quiet("TC801", under("bfloat16")) is Verdict.NOT_TRIGGERED
    evaluated = under("bfloat16", "float32", "float32", grad_enabled=False)
    assert quiet("TC801", evaluated) is Verdict.NOT_TRIGGERED
