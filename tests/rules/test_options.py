"""Options of rules: what a configuration may set, and what it is told when it may not."""

from __future__ import annotations

import pytest

from tests.checking import BY_CODE, report_of
from tests.rules.broken import BROKEN
from traincheck.errors import UsageError
from traincheck.rules.options import configured, options_of
from traincheck.rules.table import RULES
from traincheck.schema.findings import CheckInfo


class Loud:
    info = CheckInfo(check_id="XX1", kind="rule", code="XX1", severity="info", title="too loud")
    needs = RULES[0].needs

    def __init__(
        self,
        ratio: float = 10.0,
        window: int = 20,
        only: tuple[str, ...] = (),
        limit: float | None = None,
        is_strict: bool = False,
    ) -> None:
        if ratio <= 0:
            raise ValueError("ratio must be above 0")
        self.given = (ratio, window, only, limit, is_strict)

    def monitor(self) -> object:
        return RULES[0].monitor()


def given(**values: object) -> tuple[object, ...]:
    *others, loud = configured([*RULES, Loud()], {"XX1": values})
    assert tuple(others) == RULES
    return loud.given


def test_nothing_set_is_the_rule_itself() -> None:
    assert configured(RULES, {}) == RULES
    assert options_of(BY_CODE["TC201"]) == {}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"ratio": 5.0}, (5.0, 20, (), None, False)),
        ({"ratio": 5}, (5, 20, (), None, False)),
        ({"window": 3, "is_strict": True}, (10.0, 3, (), None, True)),
        ({"only": ["a", "b"], "limit": 0.5}, (10.0, 20, ("a", "b"), 0.5, False)),
        ({}, (10.0, 20, (), None, False)),
    ],
)
def test_options_reach_the_class(values: dict[str, object], expected: tuple[object, ...]) -> None:
    assert given(**values) == expected


@pytest.mark.parametrize(
    ("values", "what", "fix"),
    [
        ({"ration": 5.0}, "no option 'ration'", "did you mean 'ratio'"),
        ({"ratio": "5"}, "ratio is '5'", "make it a number"),
        ({"ratio": True}, "ratio is True", "make it a number"),
        ({"window": 2.5}, "window is 2.5", "make it a whole number"),
        ({"window": True}, "window is True", "make it a whole number"),
        ({"only": "a"}, "only is 'a'", "make it a list of strings"),
        ({"limit": "x"}, "limit is 'x'", "make it a number"),
        ({"is_strict": 1}, "is_strict is 1", "make it true or false"),
        ({"ratio": -1.0}, "ratio must be above 0", "another value"),
    ],
)
def test_what_is_wrong_is_named(values: dict[str, object], what: str, fix: str) -> None:
    with pytest.raises(UsageError, match=what) as caught:
        given(**values)
    assert "[rules.XX1]" in caught.value.message
    assert fix in str(caught.value.fix)


def test_an_unknown_rule_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"\[rules\.TC299\]") as caught:
        configured(RULES, {"TC299": {"ratio": 1.0}})
    assert "did you mean TC2" in str(caught.value.fix)


def test_a_rule_without_options_says_so() -> None:
    with pytest.raises(UsageError, match="no option 'ratio'") as caught:
        configured(RULES, {"TC201": {"ratio": 1.0}})
    assert caught.value.fix == "it has no options"


def test_the_class_refuses_an_option_that_it_does_not_have() -> None:
    with pytest.raises(TypeError, match="MissingZeroGrad has no option 'ratio'"):
        type(BY_CODE["TC201"])(ratio=1.0)


PUBLISHED = {
    ("TC702", "floor"): 100.0,
    ("TC901", "multiple"): 8,
    ("TC903", "share"): 0.9,
    ("TC910", "rows"): 100,
    ("TC913", "share"): 0.5,
    ("TC914", "samples"): 8,
    ("TC916", "share"): 0.05,
    ("TC917", "rows"): 1000,
    ("TC918", "bright"): 50.0,
    ("TC919", "spread"): 1e-5,
    ("TC920", "smallest"): 32,
}


@pytest.mark.parametrize(("code", "option"), PUBLISHED)
def test_thresholds_of_another_tool_are_the_defaults(code: str, option: str) -> None:
    assert options_of(BY_CODE[code])[option].default == PUBLISHED[code, option]


@pytest.mark.parametrize(
    ("code", "values"),
    [
        ("TC901", {"multiple": 1}),
        ("TC903", {"share": 1.0}),
        ("TC910", {"rows": 501}),
        ("TC913", {"share": 0.8}),
        ("TC914", {"samples": 2}),
        ("TC916", {"share": 0.99}),
        ("TC917", {"rows": 2000}),
        ("TC918", {"bright": 300.0}),
        ("TC919", {"spread": 0.0}),
        ("TC920", {"smallest": 65}),
    ],
)
def test_another_threshold_decides_otherwise(code: str, values: dict[str, object]) -> None:
    rule = BY_CODE[code]
    assert [f.code for f in report_of(BROKEN[code], [rule]).findings] == [code]
    assert report_of(BROKEN[code], configured([rule], {code: values})).findings == []
