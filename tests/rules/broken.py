"""A short broken run of each rule, by its code: what contracts and golden texts run on.

It is ``BROKEN`` in the tests of the rule: events, or a function without arguments that makes them.
The rule finds a fault in it, and no other rule does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.builders import MLP_BN, TraceBuilder
from tests.checking import net
from traincheck.rules.docs import docs_of
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
_FOLDER = Path(__file__).parent
# The tests of each rule are named by its code and its name, wherever the rule itself is.
TESTS = {
    rule.info.code: next(
        _FOLDER.glob(f"*/test_{rule.info.code.lower()}_{docs_of(rule).name.replace('-', '_')}.py")
    )
    for rule in RULES
}


class _Broken(Mapping[str, "list[Event]"]):
    """Each run is made when it is first asked for; some train a network."""

    def __init__(self) -> None:
        self._made: dict[str, list[Event]] = {}

    def __getitem__(self, code: str) -> list[Event]:
        if code not in self._made:
            self._made[code] = list(_HERE[code]() if code in _HERE else _of_its_tests(code))
        return self._made[code]

    def __iter__(self) -> Iterator[str]:
        return iter(TESTS)

    def __len__(self) -> int:
        return len(TESTS)


def _of_its_tests(code: str) -> list[Event]:
    """``BROKEN`` in the tests of a rule."""
    path = TESTS[code]
    module = importlib.import_module(f"tests.rules.{path.parent.name}.{path.stem}")
    made: list[Event] | Callable[[], list[Event]] = module.BROKEN
    return made() if callable(made) else made


BROKEN = _Broken()
