"""A short broken run of each rule, by its code: what contracts and golden texts run on.

It is ``BROKEN`` in the tests of the rule: events, or a function without arguments that makes them.
The rule finds a fault in it, and no other rule does.
"""

from __future__ import annotations

import importlib

from tests.builders import MLP_BN, TraceBuilder
from tests.checking import net
from traincheck.rules.registry import RULES
from traincheck.schema.events import Event


def _of_its_tests(code: str) -> list[Event]:
    """``BROKEN`` in the tests of a rule."""
    rule = next(rule for rule in RULES if rule.info.code == code)
    theme, name = type(rule).__module__.split(".")[-2:]
    module = importlib.import_module(f"tests.rules.{theme}.test_{name}")
    made = module.BROKEN
    return list(made() if callable(made) else made)


BROKEN: dict[str, list[Event]] = {
    "TC101": TraceBuilder()
    .process()
    .model("Net", MLP_BN)
    .optimizer(names=["Net.fc2.weight"])
    .steps(4)
    .build(),
    "TC102": net().steps(4, not_updated=["Net.fc1.weight"]).build(),
    "TC201": net().steps(4, omit={"zero_grad"}).build(),
    "TC202": net().steps(4, omit={"optimizer_step"}).build(),
    "TC203": net().steps(4, style="C").build(),
}
for _rule in RULES:
    if _rule.info.code not in BROKEN:
        BROKEN[_rule.info.code] = _of_its_tests(_rule.info.code)
