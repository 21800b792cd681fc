"""A short broken run of each rule, by its code: what contracts and golden texts run on.

It is ``BROKEN`` in the tests of the rule: events, or a function without arguments that makes them.
The rule finds a fault in it, and no other rule does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping

from tests.builders import MLP_BN, TraceBuilder
from tests.checking import net
from traincheck.rules.table import RULES
from traincheck.schema.events import Event

_HERE: dict[str, Callable[[], list[Event]]] = {
    "TC101": lambda: (
        TraceBuilder()
        .process()
        .model("Net", MLP_BN)
        .optimizer(names=["Net.fc2.weight"])
        .steps(4)
        .build()
    ),
    "TC102": lambda: net().steps(4, not_updated=["Net.fc1.weight"]).build(),
    "TC201": lambda: net().steps(4, omit={"zero_grad"}).build(),
    "TC202": lambda: net().steps(4, omit={"optimizer_step"}).build(),
    "TC203": lambda: net().steps(4, style="C").build(),
}
_MODULES = {rule.info.code: type(rule).__module__.split(".")[-2:] for rule in RULES}


class _Broken(Mapping[str, "list[Event]"]):
    """Each run is made when it is first asked for; some train a network."""

    def __init__(self) -> None:
        self._made: dict[str, list[Event]] = {}

    def __getitem__(self, code: str) -> list[Event]:
        if code not in self._made:
            self._made[code] = list(_HERE[code]() if code in _HERE else _of_its_tests(code))
        return self._made[code]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


def _of_its_tests(code: str) -> list[Event]:
    """``BROKEN`` in the tests of a rule."""
    theme, name = _MODULES[code]
    module = importlib.import_module(f"tests.rules.{theme}.test_{name}")
    made: list[Event] | Callable[[], list[Event]] = module.BROKEN
    return made() if callable(made) else made


BROKEN = _Broken()
