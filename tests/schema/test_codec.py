"""Every event survives its JSON form; a record of another form is refused, never misread."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.schema.codec import decode, decode_lines, encode
from traincheck.schema.events import (
    EVENT_TYPES,
    KINDS,
    CallEvent,
    ParamGroup,
    RngEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.marks import STAGES
from traincheck.schema.values import TensorSummary, tensor_json, tensor_summary

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
    if origin is tuple and arguments == (ParamGroup, ...):
        return st.lists(GROUP, max_size=3).map(tuple)
    if origin is Sequence:
        return st.lists(strategy_of(arguments[0]), max_size=4)
    return PLAIN[hint]


def events_of(event_type: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(event_type)
    fields = {name: strategy_of(hints[name]) for name in event_type.__struct_fields__}
    fields |= {"stage": st.sampled_from(STAGES), "rank": st.integers(0, 9999)}
    return st.builds(event_type, **fields)


@pytest.mark.parametrize("event_type", EVENT_TYPES, ids=KINDS)
def test_every_event_survives_its_json_form(event_type: Any) -> None:
    @given(events_of(event_type))
    def survives(event: Any) -> None:
        line = encode(event)
        assert b"\n" not in line
        found = decode(line, event.rank, event.stream)
        assert type(found) is event_type
        assert found == event
        # equal is not enough: 1 == True == 1.0
        assert repr(found) == repr(event)

    survives()


def test_a_field_at_its_default_is_left_out_of_the_line() -> None:
    line = orjson.loads(encode(CallEvent(1, 2, 3, "train", 0, "p1-t0", api="a", span=4)))
    assert line == {"k": "call", "n": 1, "t": 2, "s": 3, "g": "train", "api": "a", "id": 4}


CALL = {"k": "call", "n": 0, "t": 1, "s": 2, "g": "train", "api": "a.b", "id": 3}
STATE = {"k": "state", "n": 0, "t": 1, "s": 2, "g": "train", "name": "Net.w"}
STEP = {"k": "step", "n": 0, "t": 1, "s": 2, "g": "train"}
BAD = [
    ({**CALL, "k": "call2"}, "unknown kind 'call2'"),
    ({**CALL, "k": 3}, "unknown kind 3"),
    ({**CALL, "k": ["call"]}, "unknown kind ['call']"),
    ({k: v for k, v in CALL.items() if k != "k"}, "field 'k' is missing"),
    ({**CALL, "n": "0"}, "Expected `int`, got `str` - at `$.n`"),
    ({**CALL, "t": 1.5}, "Expected `int`, got `float` - at `$.t`"),
    ({**CALL, "s": "2"}, "Expected `int | null`, got `str` - at `$.s`"),
    ({**CALL, "g": None}, "Expected `str`, got `null` - at `$.g`"),
    ({**CALL, "api": ["a"]}, "Expected `str`, got `array` - at `$.api`"),
    ({**CALL, "id": "3"}, "Expected `int`, got `str` - at `$.id`"),
    ({**CALL, "parent": {}}, "Expected `int | null`, got `object` - at `$.parent`"),
    ({**CALL, "args": []}, "Expected `object`, got `array` - at `$.args`"),
    ({**CALL, "family": {"a": 1}}, "Expected `str | null`, got `object` - at `$.family`"),
    ({**CALL, "start": None}, "Expected `int`, got `null` - at `$.start`"),
    ({**CALL, "root": 1}, "Expected `bool`, got `int` - at `$.root`"),
    ({k: v for k, v in CALL.items() if k != "api"}, "Object missing required field `api`"),
    ({**STATE, "name": 3}, "Expected `str`, got `int` - at `$.name`"),
    ({**STATE, "role": ["parameter"]}, "Expected `str`, got `array` - at `$.role`"),
    ({**STATE, "summary": {"dtype": "f"}}, "missing required field `shape` - at `$.summary`"),
    ({**STATE, "summary": "none"}, "Expected `object | null`, got `str` - at `$.summary`"),
    ({**STATE, "identity": True}, "Expected `int`, got `bool` - at `$.identity`"),
    ({**STEP, "counters": {"backward": "many"}}, "got `str` - at `$.counters[...]`"),
    ({**STEP, "counters": [1]}, "Expected `object`, got `array` - at `$.counters`"),
    ({**STEP, "complete": "yes"}, "Expected `bool`, got `str` - at `$.complete`"),
    ({**STEP, "k": "optimizer", "id": "opt0", "groups": [{}]}, "required field `hyper`"),
    ({**STEP, "k": "optimizer", "groups": []}, "missing required field `id`"),
    ({**STEP, "k": "rng", "seed": "7"}, "Expected `int | null`, got `str` - at `$.seed`"),
    ([CALL], "a JSON list, not an object"),
]
NOT_JSON = [(b"", "blank"), (b" ", "blank"), (b'{"k":"ca', "not JSON"), (b"\xff\xfe", "not JSON")]


@pytest.mark.parametrize(("line", "text"), [*((orjson.dumps(r), t) for r, t in BAD), *NOT_JSON])
def test_a_line_of_another_form_is_refused(line: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        decode(line, 0, "p1-t0")
    assert decode_lines(line, 0, "p1-t0") is None
    whole = orjson.dumps(STATE)
    assert decode_lines(b"\n".join((whole, line, whole)), 0, "p1-t0") is None


def test_a_line_that_is_nested_too_deep_is_refused() -> None:
    deep = orjson.dumps(CALL)[:-1] + b',"args":{"x":' + b"[" * 10**5 + b"]" * 10**5 + b"}}"
    with pytest.raises(ValueError, match=r"."):
        decode(deep, 0, "p1-t0")
    assert decode_lines(deep, 0, "p1-t0") is None


@pytest.mark.parametrize("record", [CALL, STATE, STEP])
def test_their_healthy_twins_are_read(record: Any) -> None:
    line = orjson.dumps(record)
    event = decode(line, 5, "p1-t0")
    assert (event.kind, event.rank, event.stream, event.step) == (record["k"], 5, "p1-t0", 2)
    assert decode_lines(line, 5, "p1-t0") == [event]
    assert decode_lines(b"\n".join([line] * 3), 5, "p1-t0") == [event] * 3


def test_an_event_that_spans_lines_is_not_taken_for_lines() -> None:
    line = orjson.dumps(STEP)
    assert decode_lines(line.replace(b",", b",\n") + b"\n" + line, 0, "p1-t0") is None
    assert decode_lines(line + line, 0, "p1-t0") is None


def test_an_unknown_field_is_ignored() -> None:
    plain = decode(orjson.dumps(STATE), 0, "p1-t0")
    later = orjson.dumps({**STATE, "of_a_later_minor_version": [{}]})
    assert decode(later, 0, "p1-t0") == plain
    assert isinstance(plain, StateEvent)


def test_whole_numbers_stay_whole() -> None:
    summary = {"dtype": "float32", "shape": [], "value": 1, "stats": {"nonfinite": 2}}
    state = decode(orjson.dumps({**STATE, "summary": summary}), 0, "p1-t0")
    step = decode(orjson.dumps({**STEP, "lr": {"opt0": [1]}}), 0, "p1-t0")
    assert b'"nonfinite":2}' in encode(state)
    assert b'"value":1,' in encode(state)
    assert encode(step).endswith(b'{"opt0":[1]}}')


def test_records_for_the_comparison_of_runs_survive_a_trip() -> None:
    head = (1, 2, 3, "train", 0, "p1-t0")
    summary = TensorSummary("float32", (2,), fingerprint="xxh3-128:ab", sketch="AAAA")
    for event in (
        RngEvent(*head, source="numpy", fingerprint="xxh3-128:ab", moment="forward", state="AQI="),
        StepEvent(*head, counters={"forward": 1}, digests={"gradient": "ab", "loss": "cd"}),
        StateEvent(*head, name="Net.w", summary=summary),
    ):
        assert decode(encode(event), 0, "p1-t0") == event
    assert tensor_summary(tensor_json(summary)) == summary


def test_records_of_older_versions_have_no_moment_digest_or_sketch() -> None:
    rng = decode(b'{"k":"rng","n":0,"t":0,"s":0,"g":"init","source":"torch"}', 0, "p1-t0")
    step = decode(b'{"k":"step","n":0,"t":0,"s":0,"g":"train","counters":{}}', 0, "p1-t0")
    assert isinstance(rng, RngEvent)
    assert isinstance(step, StepEvent)
    assert (rng.moment, rng.state, step.digests) == ("", "", {})
    old = tensor_summary({"dtype": "float32", "shape": [2]})
    assert old is not None
    assert old.sketch is None
