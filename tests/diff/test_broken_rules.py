"""A rule that breaks in B and not in A is the cause, if it is about what differs, and not later."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.diff.cause_pairs import (
    LAYER,
    OTHER_CODE,
    WEIGHT,
    Pair,
    edit,
    groups,
    more,
    pair,
    then,
    value,
)
from tests.diff.run_pairs import Compare, of, output, state, training, whole
from traincheck.schema.events import CheckpointEvent, Event, MarkEvent
from traincheck.schema.observations.loads import STATE_DICT, IneffectiveWrite

Change = Callable[[list[Event]], list[Event]]
RATE = then(edit(of("step", 2), lr={"opt0": [0.5]}), value(WEIGHT))


def writes(step: int, name: str = "lr", owner: str = "opt0") -> Change:
    """A setting is written where the optimizer does not read it: TC066."""
    write = IneffectiveWrite(owner, STATE_DICT, name, "0.1", "0.01", "0.1", "train.py:20")
    return more(MarkEvent, of("step", step), text=write.text, data=write.data())


def test_the_rule_is_the_cause_with_its_fix(compare: Compare) -> None:
    made = pair(then(writes(2), RATE))
    found = compare(made.a, made.b, **made.options)
    assert found.first is not None
    assert (found.first.step, found.first.name) == (2, "Adam.lr")
    assert found.cause is not None
    assert found.cause.code == "TC066"
    assert found.cause.text.startswith("TC066 breaks in B and not in A: ")
    assert found.cause.fix.startswith("Write to the groups in use")
    assert found.candidates == ()


@pytest.mark.parametrize(
    "made",
    [
        pair(RATE),
        Pair(writes(2)(whole(training())), RATE(writes(2)(whole(training())))),
        pair(then(writes(3), RATE)),
        pair(then(writes(2, name="weight_decay"), RATE)),
        pair(then(writes(2, owner="opt1"), RATE)),
    ],
    ids=["nothing breaks", "both break", "later", "another setting", "another optimizer"],
)
def test_what_is_not_proven_is_no_cause(compare: Compare, made: Pair) -> None:
    found = compare(made.a, made.b, **made.options)
    assert found.cause is not None
    assert found.cause.code == "setting"


def loads_itself(step: int, model: str = "Net") -> Pair:
    """A model loads its own state, TC604; the output of a layer in step 2 and the code differ."""
    load = more(CheckpointEvent, of("step", step), op="load_state_dict", target=model, entries=4,
                matched=4, shared=4, changed=0, where="train.py:70")  # fmt: skip
    return pair(then(load, edit(LAYER, result=output("x"))), code_b=OTHER_CODE)


def test_the_rule_is_about_the_model_that_differs_later(compare: Compare) -> None:
    made = loads_itself(1)
    found = compare(made.a, made.b, **made.options)
    assert found.cause is not None
    assert (found.cause.code, found.cause.where) == ("TC604", "train.py:70")
    assert found.changes


@pytest.mark.parametrize(
    "made", [loads_itself(2), loads_itself(1, "Other")], ids=["same step", "another model"]
)
def test_a_rule_about_a_model_may_be_something_else(compare: Compare, made: Pair) -> None:
    found = compare(made.a, made.b, **made.options)
    assert found.cause is not None
    assert found.cause.code == "code"


def test_advice_is_no_cause(compare: Compare) -> None:
    made = pair(then(groups(weight_decay=0.1), value(state("parameter", 0))))  # TC906, TC907
    found = compare(made.a, made.b, **made.options)
    assert found.cause is not None
    assert found.cause.code == "setting"
