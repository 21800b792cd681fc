from __future__ import annotations

import copy
import os
from pathlib import Path

import jsonschema
import orjson
import pytest

from traincheck.errors import InvariantFormatError, OutputError
from traincheck.schema.claims import (
    LEVELS,
    OPERATORS,
    Condition,
    Hypothesis,
    Invariant,
    Needs,
    Precondition,
    Support,
    own_needs,
)
from traincheck.schema.invariant_file import (
    SCHEMA_FILE,
    invariant_id,
    json_schema,
    needs_from_json,
    needs_json,
    read_created_with,
    read_invariants,
    write_invariants,
)
from traincheck.schema.layout import SCHEMA_VERSION

NEEDS = Needs(
    calls=frozenset({"torch.optim.Optimizer.step"}),
    states=frozenset({"parameter@step"}),
    kinds=frozenset({"step"}),
    exact=True,
    level="deep",
    packages=frozenset({"mypkg"}),
)
INVARIANTS = [
    Invariant(
        id="contains-1",
        hypothesis=Hypothesis(relation="contains", params={"outer": "step", "args": {"p": 0.5}}),
        precondition=Precondition(
            clauses=(
                (Condition(feature="requires_grad", op="==", value=True),),
                (
                    Condition(feature="ndim", op=">", value=1),
                    Condition(feature="x", op="!=", value=None),
                ),
            )
        ),
        support=Support(positive=12, negative=3, runs=2, steps=6),
        confidence=0.999,
        text="During every step, every parameter changes.",
        needs=NEEDS,
    ),
    Invariant(id="order-1", hypothesis=Hypothesis(relation="from the future", params={})),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "invariant.json"
    write_invariants(target, INVARIANTS, {"traincheck": "0.1.0"}, ["run-a"])
    return target


def test_what_is_written_is_read_back(path):
    assert read_invariants(path) == INVARIANTS


def test_what_is_written_fits_the_shipped_json_schema(path):
    schema = orjson.loads(SCHEMA_FILE.read_bytes())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(orjson.loads(path.read_bytes()), schema)


def test_needs_survive_json():
    assert needs_from_json(orjson.loads(orjson.dumps(needs_json(NEEDS)))) == NEEDS
    assert needs_from_json({}) == Needs()
    assert own_needs(needs_json(NEEDS)) == NEEDS


@pytest.mark.parametrize("value", [None, [], {"calls": "x"}, {"calls": [""]}, {"more": []}])
def test_what_is_not_the_form_of_needs_is_refused(value):
    with pytest.raises(ValueError, match="`"):
        needs_from_json(value)


def test_the_shipped_json_schema_is_that_of_the_types():
    assert orjson.loads(SCHEMA_FILE.read_bytes()) == json_schema()
    assert json_schema()["$defs"]["FileForm"]["properties"]["schema_version"] == {
        "enum": [SCHEMA_VERSION]
    }


def test_operators_and_levels_are_those_of_claims():
    types = json_schema()["$defs"]
    assert set(types["ConditionForm"]["properties"]["op"]["enum"]) == set(OPERATORS)
    assert set(types["NeedsForm"]["properties"]["level"]["enum"]) == set(LEVELS)


def test_what_an_older_version_wrote_is_read(path):
    """Without what came later, and with null where nothing is."""
    document = orjson.loads(path.read_bytes())
    for entry in document["invariants"]:
        entry.pop("needs")
        entry["excerpt"] = None
    path.write_bytes(orjson.dumps(document))
    found = read_invariants(path)
    assert [one.id for one in found] == [one.id for one in INVARIANTS]
    assert {one.needs for one in found} == {Needs()}


BAD = {
    "newer version": (("schema_version",), 2, "schema version 2; this traincheck"),
    "version as text": (("schema_version",), "1", "schema_version is text, not a whole number"),
    "runs": (("runs",), "run-a", "runs is text, not a list"),
    "run": (("runs", 0), 3, r"runs\[0\] is a whole number, not text"),
    "created_with": (("created_with",), [], "created_with is a list, not an object"),
    "unknown key": (("code",), "print()", "unknown field 'code'"),
    "invariants": (("invariants",), {}, "invariants is an object, not a list"),
    "invariant": (("invariants", 0), None, r"invariants\[0\] is null, not an object"),
    "id": (("invariants", 0, "id"), "", r"invariants\[0\].id is '': expected `str` of length >= 1"),
    "same id": (("invariants", 1, "id"), "contains-1", "two invariants have the id 'contains-1'"),
    "confidence": (("invariants", 0, "confidence"), 1.5, "is 1.5: expected `float` <= 1.0"),
    "bool as number": (("invariants", 0, "confidence"), True, "true or false, not a number"),
    "count": (("invariants", 0, "examples", "runs"), -1, "examples.runs is -1"),
    "params": (("invariants", 0, "params"), [1], "params is a list, not an object"),
    "op": (
        ("invariants", 0, "precondition", "any", 0, 0, "op"),
        "__import__('os')",
        r"any\[0\]\[0\].op is .* not one of",
    ),
    "condition value": (
        ("invariants", 0, "precondition", "any", 0, 0, "value"),
        {"$eval": "1"},
        "value is an object, not true or false or a whole number or a number or text or null",
    ),
    "needs": (("invariants", 0, "needs", "calls"), [1], r"needs.calls\[0\] is a whole number"),
    "needs level": (("invariants", 0, "needs", "level"), "all", "needs.level is 'all', not one of"),
    "first schema": (("schema_version",), 0, "schema_version is 0"),
    "no id": (("invariants", 0, "id"), None, r"invariants\[0\].id is null, not text"),
    "excerpt": (
        ("excerpts",),
        {"x": {"depth": -2, "lines": []}},
        r"excerpts\[...\].depth: .* >= -1",
    ),
    "needs key": (("invariants", 0, "needs", "import"), ["os"], "unknown field 'import'"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_wrong_value_is_named_with_its_place(path, case):
    keys, value, expected = BAD[case]
    document = orjson.loads(path.read_bytes())
    place = document
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    path.write_bytes(orjson.dumps(document))
    with pytest.raises(InvariantFormatError, match=expected) as caught:
        read_invariants(path)
    assert str(path) in str(caught.value)
    assert caught.value.fix
    if case != "same id":  # JSON Schema cannot say this
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document, orjson.loads(SCHEMA_FILE.read_bytes()))


def test_a_missing_field_is_named(path):
    complete = orjson.loads(path.read_bytes())
    for key in ("relation", "params", "precondition", "examples", "confidence", "text"):
        document = copy.deepcopy(complete)
        del document["invariants"][0][key]
        path.write_bytes(orjson.dumps(document))
        with pytest.raises(InvariantFormatError, match=rf"invariants\[0\] has no '{key}'"):
            read_invariants(path)


def test_what_another_program_wrote_needs_no_id(path):
    document = orjson.loads(path.read_bytes())
    for entry in document["invariants"]:
        for key in entry.keys() & {"id", "excerpt"}:
            del entry[key]
    document.pop("excerpts", None)
    path.write_bytes(orjson.dumps(document))
    jsonschema.validate(document, orjson.loads(SCHEMA_FILE.read_bytes()))
    found = read_invariants(path)
    assert len({invariant.id for invariant in found}) == len(document["invariants"])
    assert [i.id for i in found] == [invariant_id(i.hypothesis, i.precondition) for i in found]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x89PNG\r\n",
        b"{",
        b"[]",
        b"1",
        b'{"k":"call"}',
        b"import os\n",
        b"[" * 5000,
        b'{"schema_version":NaN}',
    ],
)
def test_a_foreign_file_is_refused_by_name(tmp_path, content):
    target = tmp_path / "foreign.json"
    target.write_bytes(content)
    with pytest.raises(InvariantFormatError, match=r"foreign\.json: is not an invariant file"):
        read_invariants(target)


def test_a_missing_file_and_a_directory_are_refused_by_name(tmp_path):
    with pytest.raises(InvariantFormatError, match=r"nothing\.json: cannot be read"):
        read_invariants(tmp_path / "nothing.json")
    with pytest.raises(InvariantFormatError, match="cannot be read"):
        read_invariants(tmp_path)


def test_a_device_without_end_is_refused():
    with pytest.raises(InvariantFormatError, match="/dev/zero: cannot be read: it is a device"):
        read_invariants("/dev/zero")


def test_a_byte_order_mark_is_passed_over(path):
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_invariants(path)
    assert read_created_with(path)


@pytest.mark.parametrize("place", ["folder", "missing/invariant.json", "file/invariant.json"])
def test_an_unusable_output_path_is_named(tmp_path, place):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=place):
        write_invariants(tmp_path / place, [], {}, [])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]  # no temporary left


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_an_output_error():
    with pytest.raises(OutputError, match="/dev/full: cannot be written"):
        write_invariants("/dev/full", INVARIANTS, {}, [])


def test_a_failed_write_leaves_the_old_file(path, monkeypatch):
    before = path.read_bytes()

    def fail(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OutputError, match="No space left"):
        write_invariants(path, [], {}, [])
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == [path.name]
