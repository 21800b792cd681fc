"""The form of an invariant file, as types that msgspec decodes strictly. See `invariant_file`.

`invariant.schema.json` is made of these types, their docstrings and descriptions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from traincheck.schema.claims import Condition, Needs, Precondition, Support
from traincheck.schema.excerpts import Excerpt, Line
from traincheck.schema.record import Record

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
