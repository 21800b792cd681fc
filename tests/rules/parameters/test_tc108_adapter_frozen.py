"""TC108: adapters that nobody trains."""

from __future__ import annotations

from collections.abc import Sequence

from tests.builders import LINEAR, TraceBuilder
from tests.checking import fires, net, quiet
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

ADAPTED = {
    "q.base.weight": LINEAR,
    "q.lora_A.default.weight": LINEAR,
    "q.lora_B.default.weight": LINEAR,
    "head.weight": LINEAR,
}
ADAPTERS = ["Net.q.lora_A.default.weight", "Net.q.lora_B.default.weight"]


def loop(frozen: Sequence[str]) -> list[Event]:
    return (
        TraceBuilder().process().model("Net", ADAPTED, frozen=frozen).optimizer().steps(4).build()
    )


BROKEN = loop(["Net.q.base.weight", *ADAPTERS])


def test_fires_when_all_are_frozen() -> None:
    finding = fires("TC108", BROKEN)
    assert (finding.first_step, finding.variables) == (0, tuple(ADAPTERS))


def test_quiet_when_adapters_are_trained() -> None:
    assert quiet("TC108", loop(["Net.q.base.weight"])) is Verdict.HELD
    assert quiet("TC108", loop(["Net.q.base.weight", ADAPTERS[0]])) is Verdict.HELD


def test_quiet_without_adapters() -> None:
    assert quiet("TC108", net().steps(4).build()) is Verdict.NOT_TRIGGERED
