"""The row "modes": train or eval."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, of, output, training
from traincheck.schema.torch_api import Families

LAYER = of("call", 2, module="Net.fc2", family=Families.MODULE)


def test_fires_on_another_mode(compare: Compare) -> None:
    found = compare(training(), edited(training(), LAYER, training=False, result=output("x")))
    assert found.cause is not None
    assert found.cause.code == "mode"
    assert "evaluation mode in B" in found.cause.text


def test_quiet_where_the_mode_agrees(compare: Compare) -> None:
    found = compare(training(), edited(training(), LAYER, result=output("x")))
    assert found.cause is not None
    assert found.cause.code != "mode"
