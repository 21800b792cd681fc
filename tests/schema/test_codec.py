"""Every event survives its JSON form; a record of another form is refused, never misread."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.schema.codec import decode, encode
from traincheck.schema.events import EVENT_TYPES, KINDS, STAGES, CallEvent, ParamGroup, StateEvent
from traincheck.schema.values import TensorSummary

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INTEGER = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
SCALAR = st.none() | st.booleans() | INTEGER | FLOAT | TEXT
VALUE = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3)
)
SUMMARY = st.builds(
    TensorSummary,
    TEXT,
    st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    TEXT,
    st.booleans(),
    st.none() | TEXT,
    st.none() | st.booleans() | INTEGER | FLOAT,
    st.none() | st.booleans(),
    st.none() | st.dictionaries(TEXT, FLOAT, max_size=3),
)
GROUP = st.builds(
    ParamGroup,
    st.dictionaries(TEXT, VALUE, max_size=3),
    st.lists(TEXT, max_size=3),
    st.lists(INTEGER, max_size=3),
)
PLAIN = {int: INTEGER, str: TEXT, bool: st.booleans(), float: FLOAT, NoneType: st.none()}


def strategy_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that a field annotated ``hint`` may have after reading."""
    if hint is Any:
        return VALUE
    if hint is TensorSummary:
        return SUMMARY
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of([strategy_of(member) for member in arguments])
    if origin is Mapping:
        return st.dictionaries(TEXT, strategy_of(arguments[1]), max_size=3)
    if origin is Sequence and arguments == (ParamGroup,):
        return st.lists(GROUP, max_size=3).map(tuple)
    if origin is Sequence:
        return st.lists(strategy_of(arguments[0]), max_size=4)
    return PLAIN[hint]


def events_of(event_type: Any) -> st.SearchStrategy[Any]:
    fields = {name: strategy_of(hint) for name, hint in get_type_hints(event_type).items()}
    fields |= {"stage": st.sampled_from(STAGES), "rank": st.integers(0, 9999)}
    fields["kind"] = st.just(event_type._field_defaults["kind"])
    return st.builds(event_type, **fields)


@pytest.mark.parametrize("event_type", EVENT_TYPES, ids=KINDS)
def test_every_event_survives_its_json_form(event_type: Any) -> None:
    @given(events_of(event_type))
    def survives(event: Any) -> None:
        line = encode(event)
        assert b"\n" not in line
        found = decode(orjson.loads(line), event.rank, event.stream)
        assert type(found) is event_type
        assert found == event
        # equal is not enough: 1 == True == 1.0
        assert json.dumps(tuple(found)) == json.dumps(tuple(event))

    survives()


def test_a_field_at_its_default_is_left_out_of_the_line() -> None:
    line = orjson.loads(encode(CallEvent(1, 2, 3, "train", 0, "p1-t0", api="a", span=4)))
    assert line == {"k": "call", "n": 1, "t": 2, "s": 3, "g": "train", "api": "a", "id": 4}


CALL = {"k": "call", "n": 0, "t": 1, "s": 2, "g": "train", "api": "a.b", "id": 3}
STATE = {"k": "state", "n": 0, "t": 1, "s": 2, "g": "train", "name": "Net.w"}
STEP = {"k": "step", "n": 0, "t": 1, "s": 2, "g": "train"}
BAD = [
    ({**CALL, "k": "call2"}, KeyError, "call2"),
    ({**CALL, "n": "0"}, TypeError, "'seq' is of type str"),
    ({**CALL, "t": 1.5}, TypeError, "'time_ns' is of type float"),
    ({**CALL, "s": "2"}, TypeError, "'step' is of type str"),
    ({**CALL, "g": None}, TypeError, "'stage' is of type null"),
    ({**CALL, "api": ["a"]}, TypeError, "'api' is of type list"),
    ({**CALL, "id": "3"}, TypeError, "'id' is of type str"),
    ({**CALL, "parent": {}}, TypeError, "'parent' is of type dict"),
    ({**CALL, "args": []}, TypeError, "'args' is of type list"),
    ({**CALL, "family": {"a": 1}}, TypeError, "'family' is of type dict"),
    ({**CALL, "start": None}, TypeError, "'start' is of type null"),
    ({k: v for k, v in CALL.items() if k != "api"}, KeyError, "api"),
    ({**STATE, "name": 3}, TypeError, "'name' is of type int"),
    ({**STATE, "role": ["parameter"]}, TypeError, "'role' is of type list"),
    ({**STATE, "summary": {"dtype": "float32"}}, KeyError, "shape"),
    ({**STATE, "summary": "none"}, (TypeError, AttributeError), "str"),
    ({**STATE, "identity": "12"}, TypeError, "'identity' is of type str"),
    ({**STEP, "counters": {"backward": "many"}}, TypeError, "a counter is not a number"),
    ({**STEP, "counters": [1]}, TypeError, "'counters' is of type list"),
    ({**STEP, "complete": "yes"}, TypeError, "'complete' is of type str"),
    ({**STEP, "k": "optimizer", "id": "opt0", "groups": [{}]}, KeyError, "hyper"),
    ({**STEP, "k": "rng", "seed": "7"}, TypeError, "'seed' is of type str"),
]


@pytest.mark.parametrize(("record", "error", "text"), BAD)
def test_a_record_of_another_form_is_refused(record: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text.replace("'", ".")):
        decode(record, 0, "p1-t0")


@pytest.mark.parametrize("record", [CALL, STATE, STEP])
def test_their_healthy_twins_are_read(record: Any) -> None:
    event = decode(record, 5, "p1-t0")
    assert (event.kind, event.rank, event.stream, event.step) == (record["k"], 5, "p1-t0", 2)


def test_an_unknown_field_is_ignored() -> None:
    plain = decode(STATE, 0, "p1-t0")
    assert decode({**STATE, "of_a_later_minor_version": 1}, 0, "p1-t0") == plain
    assert isinstance(plain, StateEvent)
