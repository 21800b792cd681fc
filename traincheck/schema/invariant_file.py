"""The invariant file: reading and writing. No content is evaluated.

Its format is that of `FileForm`, which msgspec decodes strictly. ``invariant.schema.json`` is made
of the forms, their docstrings and descriptions.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from traincheck.errors import InvariantFormatError
from traincheck.schema.claims import (
    LEVELS,
    OPERATORS,
    Condition,
    Excerpt,
    Hypothesis,
    Invariant,
    Line,
    Needs,
    Precondition,
    Support,
    excerpt_id,
    excerpts_json,
    key_of,
    needs_json,
)
from traincheck.schema.files import parse_json, read_regular, write_json
from traincheck.schema.layout import EVENT_GLOB, MANIFEST, SCHEMA_VERSION
from traincheck.schema.record import Complaint, Record, complaint_of

Name: TypeAlias = Annotated[str, Meta(min_length=1)]
Names: TypeAlias = frozenset[Name]
Count: TypeAlias = Annotated[int, Meta(ge=0)]


class _Form(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ConditionForm(_Form, frozen=True, kw_only=True):
    """``feature op value``."""

    feature: Name
    op: Literal["==", "!=", ">", "<="]
    value: bool | int | float | str | None


class PreconditionForm(_Form, frozen=True, kw_only=True):
    """Any of: all of clauses. An empty list means always."""

    any: tuple[tuple[ConditionForm, ...], ...]

    def build(self) -> Precondition:
        return Precondition(
            clauses=tuple(tuple(Condition(**asdict(c)) for c in clause) for clause in self.any)
        )


class SupportForm(_Form, frozen=True, kw_only=True):
    """How many examples support it; negative ones are those that the precondition excludes."""

    positive: Count
    negative: Count
    runs: Count
    steps: Count

    def build(self) -> Support:
        return Support(**asdict(self))


class NeedsForm(_Form, frozen=True, kw_only=True):
    """The contents that a trace needs to check an invariant."""

    calls: Names = frozenset()
    states: Names = frozenset()
    kinds: Names = frozenset()
    exact: bool = False
    stats: Names = frozenset()
    level: Annotated[
        Literal["", "default", "deep"], Meta(description="At which operators are to be recorded.")
    ] = ""
    packages: Names = frozenset()

    def build(self) -> Needs:
        return Needs(**asdict(self))


class InvariantForm(_Form, frozen=True, kw_only=True):
    """A claim that held in the reference runs."""

    relation: Name
    params: Annotated[
        dict[str, Any],
        Meta(description="The parameters of the relation. Their form depends on the relation."),
    ]
    precondition: PreconditionForm
    examples: SupportForm
    confidence: Annotated[float, Meta(ge=0, le=1)]
    text: Annotated[str, Meta(description="The claim as an English sentence.")]
    id: (
        Annotated[
            Name,
            Meta(description="Equal claims have equal ids. Made from the claim if not given."),
        ]
        | UnsetType
    ) = UNSET
    needs: NeedsForm = NeedsForm()
    excerpt: (
        Annotated[Name, Meta(description="Id of an excerpt of a run in which it held.")] | None
    ) = None


class LineForm(_Form, frozen=True, kw_only=True):
    """A call, or several equal ones in a row."""

    depth: Count
    api: Annotated[str, Meta(description="Empty for lines below that come again and again.")]
    family: str | None = None
    note: str = ""
    count: Annotated[int, Meta(ge=1)] = 1


class ExcerptForm(_Form, frozen=True, kw_only=True):
    """The calls of one window, down to a depth in their tree; -1 for landmarks alone."""

    depth: Annotated[int, Meta(ge=-1)]
    lines: tuple[LineForm, ...]

    def build(self) -> Excerpt:
        return Excerpt(depth=self.depth, lines=tuple(Line(**asdict(line)) for line in self.lines))


class FileForm(_Form, frozen=True, kw_only=True):
    """Invariants of reference runs. Data only: no content is ever evaluated."""

    schema_version: Literal[1]
    created_with: Annotated[
        dict[str, Any],
        Meta(description="The program that wrote the file and the settings it ran with."),
    ]
    runs: Annotated[tuple[str, ...], Meta(description="Names of the reference runs.")]
    invariants: tuple[InvariantForm, ...]
    excerpts: Annotated[
        dict[str, ExcerptForm],
        Meta(description="What a reference run did, by the id that invariants give."),
    ] = msgspec.field(default_factory=dict)


def json_schema() -> dict[str, Any]:
    """The JSON schema of an invariant file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "traincheck invariant file",
        **msgspec.json.schema(FileForm),
    }


__all__ = [
    "SCHEMA_FILE",
    "invariant_id",
    "invariant_json",
    "needs_from_json",
    "needs_json",
    "precondition_json",
    "read_created_with",
    "read_invariants",
    "write_invariants",
]

SCHEMA_FILE = Path(__file__).with_name("invariant.schema.json")

_FIX = "make one with traincheck-infer -t DIR -o invariant.json"
_SUPPORT_KEYS = ("positive", "negative", "runs", "steps")
# Types by their names in msgspec, and as a person would call them.
_TYPES = {
    "object": "an object",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "bool": "true or false",
    "float": "a number",
    "null": "null",
}
_TYPE_NAMES: dict[type, str] = {
    dict: "object",
    list: "array",
    str: "str",
    int: "int",
    bool: "bool",
    float: "float",
    type(None): "null",
}


def read_invariants(path: str | Path) -> list[Invariant]:
    """Read the invariants of a file, in the order they are written.

    Raises:
        InvariantFormatError: the file cannot be read, is not JSON, or is not of this schema; the
            message names the path, and the place in the file.
    """
    return _invariants(path, _form(path))


def read_created_with(path: str | Path) -> dict[str, Any]:
    """The program that wrote an invariant file, and its settings.

    Raises:
        InvariantFormatError: see `read_invariants`.
    """
    form = _form(path)
    _invariants(path, form)
    return form.created_with


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


def needs_from_json(value: Any) -> Needs:
    """Decode needs.

    Raises:
        ValueError: ``value`` is not the JSON form of needs.
    """
    try:
        return msgspec.convert(value, NeedsForm).build()
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def invariant_id(claim: Hypothesis, precondition: Precondition) -> str:
    """The id of an invariant: equal claims have equal ids."""
    text = f"{key_of(claim)} {precondition_json(precondition)}"
    return f"{claim.relation}-{hashlib.sha256(text.encode()).hexdigest()[:10]}"


def _form(path: str | Path) -> FileForm:
    content = _content(Path(path))
    try:
        document = parse_json(content)
    except ValueError as error:
        raise _bad(path, f"is not an invariant file: it is not JSON ({error})") from error
    if not isinstance(document, dict) or "schema_version" not in document:
        raise _bad(path, "is not an invariant file: no object with a schema_version")
    version = document["schema_version"]
    if type(version) is int and version > SCHEMA_VERSION:
        raise _bad(
            path,
            f"has schema version {version}; this traincheck reads up to {SCHEMA_VERSION}",
            fix="read it with the version of traincheck that wrote it, or a later one",
        )
    try:
        return msgspec.convert(document, FileForm)
    except msgspec.ValidationError as error:
        raise _bad(path, _told(complaint_of(document, error))) from error


def _bad(path: str | Path, reason: str, fix: str = _FIX) -> InvariantFormatError:
    return InvariantFormatError(f"{path}: {reason}", fix=fix)


def _told(found: Complaint) -> str:
    """The error in a file, and its position."""
    at = found.at or "the file"
    if found.missing:
        return f"{at} has no {found.missing!r}"
    if found.unknown:
        return f"{at} has an unknown field {found.unknown!r}"
    if "[...]" in at:
        return f"{at}: {found.reason[:1].lower()}{found.reason[1:]}"
    if "enum" in found.reason:
        known = LEVELS[1:] if at.endswith("level") else OPERATORS
        return f"{at} is {found.value!r}, not one of {', '.join(known)}"
    name = _TYPE_NAMES[type(found.value)]
    if name in found.expected:
        return f"{at} is {found.value!r}: {found.reason[:1].lower()}{found.reason[1:]}"
    expected = " or ".join(_TYPES[one] for one in found.expected)
    return f"{at} is {_TYPES[name]}, not {expected}"


def _invariants(path: str | Path, form: FileForm) -> list[Invariant]:
    excerpts = {key: excerpt.build() for key, excerpt in form.excerpts.items()}
    found: dict[str, Invariant] = {}
    for index, one in enumerate(form.invariants):
        if one.excerpt is not None and one.excerpt not in excerpts:
            at = f"invariants[{index}].excerpt"
            raise _bad(path, f"{at} is {one.excerpt!r}, which the file lacks")
        claim = Hypothesis(relation=one.relation, params=one.params)
        precondition = one.precondition.build()
        made = Invariant(
            id=one.id if isinstance(one.id, str) else invariant_id(claim, precondition),
            hypothesis=claim,
            precondition=precondition,
            support=one.examples.build(),
            confidence=one.confidence,
            text=one.text,
            needs=one.needs.build(),
            excerpt=None if one.excerpt is None else excerpts[one.excerpt],
        )
        if made.id in found:
            raise _bad(path, f"two invariants have the id {made.id!r}")
        found[made.id] = made
    return list(found.values())
