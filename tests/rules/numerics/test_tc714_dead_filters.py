"""TC714: filters that are zero when they are found."""

from __future__ import annotations

from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.numbers import numbered
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

CONV = "torch.nn.modules.conv.Conv2d"


def run(dead: float, module_class: str = CONV) -> list[Event]:
    def first(name: str, step: int) -> dict[str, float]:
        share = dead if name == "Net.fc1.weight" else 0.0
        return {"norm": 1.0, "nonfinite": 0, "dead": share}

    shapes = {"Net.fc1.weight": (32, 3, 3, 3)}
    events = net().steps(1).build()
    return numbered(events, first=first, module_class=module_class, shapes=shapes)


BROKEN = run(0.25)


def test_fires_as_advice(golden: Golden) -> None:
    finding = fires("TC714", BROKEN)
    assert (finding.severity, finding.variables) == ("info", ("Net.fc1.weight",))
    golden(finding)
    assert mentions(finding, 8, 32, "Net.fc1.weight")


def test_quiet_on_living_filters() -> None:
    assert quiet("TC714", run(0.0)) is Verdict.HELD


def test_quiet_on_a_layer_that_begins_with_zeros() -> None:
    assert quiet("TC714", run(1.0)) is Verdict.HELD


def test_quiet_on_the_padding_row_of_an_embedding() -> None:
    events = run(0.03, "torch.nn.modules.sparse.Embedding")
    assert quiet("TC714", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_an_output_layer_that_shares_the_weight_of_an_embedding() -> None:
    embedded = run(0.03, "torch.nn.modules.sparse.Embedding")
    twin = next(e for e in embedded if e.kind == "state" and e.name == "Net.fc1.weight")  # type: ignore[union-attr]
    events = run(0.03)
    place = next(i for i, e in enumerate(events) if e.kind == "state") + 1
    assert quiet("TC714", [*events[:place], twin, *events[place:]]) is Verdict.HELD
