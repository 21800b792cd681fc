"""Invariants and needs to JSON and back, and the invariant file. No content is evaluated.

``invariant.schema.json`` next to this module describes the format; reading is as strict.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from traincheck.errors import InvariantFormatError
from traincheck.schema.claims import (
    LEVELS,
    OPERATORS,
    Condition,
    Hypothesis,
    Invariant,
    Needs,
    Precondition,
    Support,
    key_of,
)
from traincheck.schema.excerpt_json import excerpt_id, excerpts_from_json, excerpts_json
from traincheck.schema.excerpts import Excerpt
from traincheck.schema.files import write_json
from traincheck.schema.json_text import parse_json
from traincheck.schema.layout import EVENT_GLOB, MANIFEST, SCHEMA_VERSION
from traincheck.schema.reading import read_regular

SCHEMA_FILE = Path(__file__).with_name("invariant.schema.json")

_FIX = "make one with traincheck-infer -t DIR -o invariant.json"
_NUMBER = (int, float)
_FILE_KEYS = ("schema_version", "created_with", "runs", "invariants")
_INVARIANT_KEYS = ("relation", "params", "precondition", "examples", "confidence", "text")
_NEEDS_KEYS = ("calls", "states", "kinds", "exact", "stats", "level", "packages")
_SUPPORT_KEYS = ("positive", "negative", "runs", "steps")


def read_invariants(path: str | Path) -> list[Invariant]:
    """Read the invariants of a file, in the order they are written.

    Raises:
        InvariantFormatError: the file cannot be read, is not JSON, or is not of this schema; the
            message names the path, and the place in the file.
    """
    content = _content(Path(path))
    try:
        return _file(content)
    except _BadFormError as error:
        raise InvariantFormatError(f"{path}: {error}", fix=error.fix) from error


def read_created_with(path: str | Path) -> dict[str, Any]:
    """The program that wrote an invariant file, and its settings.

    Raises:
        InvariantFormatError: see `read_invariants`.
    """
    read_invariants(path)
    created_with: dict[str, Any] = parse_json(_content(Path(path)))["created_with"]
    return created_with


def _content(path: Path) -> bytes:
    try:
        if path.is_dir() and ((path / MANIFEST).is_file() or any(path.glob(EVENT_GLOB))):
            fix = f"learn from it: traincheck-infer -t {path}"
            raise InvariantFormatError(f"{path} is a run, not an invariant file", fix=fix)
        return read_regular(path).removeprefix(codecs.BOM_UTF8)  # which editors add
    except OSError as error:
        raise InvariantFormatError(
            f"{path}: cannot be read: {error.strerror or error}", fix="check the path"
        ) from error


def write_invariants(
    path: str | Path,
    invariants: Iterable[Invariant],
    created_with: Mapping[str, Any],
    runs: Sequence[str],
) -> None:
    """Write an invariant file atomically: a reader sees the old file or the complete new one.

    Raises:
        OutputError: the place is not writable or the disk is full; the message names the path.
    """
    invariants = list(invariants)
    excerpts = excerpts_json(invariant.excerpt for invariant in invariants)
    write_json(
        path,
        {
            "schema_version": SCHEMA_VERSION,
            "created_with": dict(created_with),
            "runs": list(runs),
            "invariants": [invariant_json(invariant) for invariant in invariants],
            **({"excerpts": excerpts} if excerpts else {}),
        },
    )


def invariant_json(invariant: Invariant) -> dict[str, Any]:
    """The JSON form of one invariant."""
    support = invariant.support
    return {
        "id": invariant.id,
        "relation": invariant.hypothesis.relation,
        "params": dict(invariant.hypothesis.params),
        "precondition": precondition_json(invariant.precondition),
        "examples": {key: getattr(support, key) for key in _SUPPORT_KEYS},
        "confidence": invariant.confidence,
        "text": invariant.text,
        "needs": needs_json(invariant.needs),
        **({"excerpt": excerpt_id(invariant.excerpt)} if invariant.excerpt else {}),
    }


def precondition_json(precondition: Precondition) -> dict[str, Any]:
    """``{"any": [[condition, ...], ...]}``; an empty list means always."""
    clauses = [
        [{"feature": c.feature, "op": c.op, "value": c.value} for c in clause]
        for clause in precondition.clauses
    ]
    return {"any": clauses}


def needs_json(needs: Needs) -> dict[str, Any]:
    """The JSON form of needs, each set as a sorted list."""
    return {
        "calls": sorted(needs.calls),
        "states": sorted(needs.states),
        "kinds": sorted(needs.kinds),
        "exact": needs.exact,
        **({"stats": sorted(needs.stats)} if needs.stats else {}),
        **({"level": needs.level} if needs.level else {}),
        **({"packages": sorted(needs.packages)} if needs.packages else {}),
    }


def needs_from_json(value: Any) -> Needs:
    """Decode needs.

    Raises:
        ValueError: ``value`` is not the JSON form of needs.
    """
    found = _fields(value, "needs", (), _NEEDS_KEYS)
    return Needs(
        calls=_names(found, "calls"),
        states=_names(found, "states"),
        kinds=_names(found, "kinds"),
        exact=_typed(found.get("exact", False), bool, "needs.exact"),
        stats=_names(found, "stats"),
        level=_level(found.get("level", "")),
        packages=_names(found, "packages"),
    )


def _level(value: Any) -> str:
    if value not in LEVELS:
        raise _BadFormError(f"needs.level is {value!r}, not one of {', '.join(LEVELS[1:])}")
    return str(value)


def invariant_id(claim: Hypothesis, precondition: Precondition) -> str:
    """The id of an invariant: equal claims have equal ids."""
    text = f"{key_of(claim)} {precondition_json(precondition)}"
    return f"{claim.relation}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


class _BadFormError(ValueError):
    """The error, and its position in the file."""

    def __init__(self, message: str, fix: str = _FIX) -> None:
        super().__init__(message)
        self.fix = fix


def _file(content: bytes) -> list[Invariant]:
    try:
        value = parse_json(content)
    except ValueError as error:
        raise _BadFormError(f"is not an invariant file: it is not JSON ({error})") from error
    if not isinstance(value, dict) or "schema_version" not in value:
        raise _BadFormError("is not an invariant file: no object with a schema_version")
    version = _count(value["schema_version"], "schema_version")
    if version < 1:
        raise _BadFormError(f"schema_version is {version}, and the first was 1")
    if version > SCHEMA_VERSION:
        raise _BadFormError(
            f"was written by invariant schema {version}, this is {SCHEMA_VERSION}",
            fix="read it with the version of traincheck that wrote it, or a later one",
        )
    found = _fields(value, "the file", _FILE_KEYS, ("excerpts",))
    _typed(found["created_with"], dict, "created_with")
    for index, run in enumerate(_typed(found["runs"], list, "runs")):
        _typed(run, str, f"runs[{index}]")
    entries = _typed(found["invariants"], list, "invariants")
    try:
        excerpts = excerpts_from_json(found.get("excerpts", {}))
    except ValueError as error:
        raise _BadFormError(str(error)) from error
    invariants = [
        _invariant(entry, f"invariants[{i}]", excerpts) for i, entry in enumerate(entries)
    ]
    seen: set[str] = set()
    for invariant in invariants:
        if invariant.id in seen:
            raise _BadFormError(f"two invariants have the id {invariant.id!r}")
        seen.add(invariant.id)
    return invariants


def _invariant(value: Any, at: str, excerpts: Mapping[str, Excerpt]) -> Invariant:
    found = _fields(value, at, _INVARIANT_KEYS, ("id", "needs", "excerpt"))
    confidence = _typed(found["confidence"], _NUMBER, f"{at}.confidence")
    if not 0 <= confidence <= 1:
        raise _BadFormError(f"{at}.confidence is {confidence}, not between 0 and 1")
    support = _fields(found["examples"], f"{at}.examples", _SUPPORT_KEYS, ())
    try:
        needs = needs_from_json(found.get("needs", {}))
    except _BadFormError as error:
        raise _BadFormError(f"{at}: {error}") from error
    shown = found.get("excerpt")
    if shown is not None and _text(shown, f"{at}.excerpt") not in excerpts:
        raise _BadFormError(f"{at}.excerpt is {shown!r}, which the file does not hold")
    claim = Hypothesis(
        relation=_text(found["relation"], f"{at}.relation"),
        params=_typed(found["params"], dict, f"{at}.params"),
    )
    precondition = _precondition(found["precondition"], f"{at}.precondition")
    return Invariant(
        id=_text(found["id"], f"{at}.id") if "id" in found else invariant_id(claim, precondition),
        hypothesis=claim,
        precondition=precondition,
        support=Support(**{k: _count(support[k], f"{at}.examples.{k}") for k in _SUPPORT_KEYS}),
        confidence=float(confidence),
        text=_typed(found["text"], str, f"{at}.text"),
        needs=needs,
        excerpt=None if shown is None else excerpts[shown],
    )


def _precondition(value: Any, at: str) -> Precondition:
    clauses = _typed(_fields(value, at, ("any",), ())["any"], list, f"{at}.any")
    return Precondition(
        clauses=tuple(
            tuple(
                _condition(condition, f"{at}.any[{i}][{j}]")
                for j, condition in enumerate(_typed(clause, list, f"{at}.any[{i}]"))
            )
            for i, clause in enumerate(clauses)
        )
    )


def _condition(value: Any, at: str) -> Condition:
    found = _fields(value, at, ("feature", "op", "value"), ())
    op = _text(found["op"], f"{at}.op")
    if op not in OPERATORS:
        raise _BadFormError(f"{at}.op is {op!r}, not one of {', '.join(OPERATORS)}")
    if isinstance(found["value"], (list, dict)):
        raise _BadFormError(f"{at}.value is not a number, text, true, false or null")
    return Condition(feature=_text(found["feature"], f"{at}.feature"), op=op, value=found["value"])


def _fields(
    value: Any, at: str, required: Sequence[str], optional: Sequence[str]
) -> dict[str, Any]:
    found: dict[str, Any] = _typed(value, dict, at)
    for key in required:
        if key not in found:
            raise _BadFormError(f"{at} has no {key!r}")
    for key in found:
        if key not in required and key not in optional:
            raise _BadFormError(f"{at} has {key!r}, which this schema does not know")
    return found


def _names(found: dict[str, Any], key: str) -> frozenset[str]:
    names = _typed(found.get(key, []), list, f"needs.{key}")
    return frozenset(_text(name, f"needs.{key}[{i}]") for i, name in enumerate(names))


def _text(value: Any, at: str) -> str:
    text: str = _typed(value, str, at)
    if not text:
        raise _BadFormError(f"{at} is empty")
    return text


def _count(value: Any, at: str) -> int:
    count: int = _typed(value, int, at)
    if count < 0:
        raise _BadFormError(f"{at} is {count}, not a count")
    return count


_TYPE_NAMES: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    int: "a whole number",
    bool: "true or false",
    _NUMBER: "a number",
}


def _typed(value: Any, expected: Any, at: str) -> Any:
    # isinstance accepts JSON true as an int; a count of true is still an error
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        shown = _TYPE_NAMES.get(type(value), "null" if value is None else "a number")
        raise _BadFormError(f"{at} is {shown}, not {_TYPE_NAMES[expected]}")
    return value
