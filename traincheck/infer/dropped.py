"""Hypotheses that did not become invariants: their file, and a text search in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec

from traincheck.errors import InvariantFormatError
from traincheck.schema.claims import Hypothesis, Invariant
from traincheck.schema.files import parse_json, read_regular
from traincheck.schema.record import Record

VERSION = 1
_CLOSEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A hypothesis that did not become an invariant. reason: one of `select.REASONS`."""

    hypothesis: Hypothesis
    text: str
    reason: str
    detail: str
    positive: int
    negative: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Statements that contain a text. closest: similar statements, if none contains it."""

    kept: Sequence[Invariant]
    dropped: Sequence[Dropped]
    closest: Sequence[str]


def search(text: str, kept: Iterable[Invariant], dropped: Iterable[Dropped]) -> Found:
    """Search the statements for a text, ignoring case. The empty text is in all."""
    kept, dropped = list(kept), list(dropped)
    wanted = text.lower()
    found = Found(
        kept=[one for one in kept if wanted in f"{one.text} {one.id}".lower()],
        dropped=[one for one in dropped if wanted in one.text.lower()],
        closest=(),
    )
    if found.kept or found.dropped:
        return found
    known = {one.text.rstrip(".") for one in kept} | {one.text for one in dropped}
    closest = sorted(known, key=lambda other: (-_likeness(wanted, other.lower()), other))
    return Found(kept=(), dropped=(), closest=closest[:_CLOSEST])


def _likeness(text: str, other: str) -> float:
    """Number of common words; similarity of letters decides among equals."""
    words = set(re.findall(r"\w+", text))
    shared = sum(any(word in part for part in re.findall(r"\w+", other)) for word in words)
    return shared + SequenceMatcher(None, text, other).ratio()


def dropped_path(invariants: str | Path) -> Path:
    """Path of the dropped hypotheses of an invariant file."""
    path = Path(invariants)
    return path.with_name(f"{path.name}.dropped.json")


def dropped_json(dropped: Iterable[Dropped]) -> dict[str, Any]:
    """The content of the file."""
    entries = [
        {
            "relation": one.hypothesis.relation,
            "params": dict(one.hypothesis.params),
            "text": one.text,
            "reason": one.reason,
            "detail": one.detail,
            "examples": {"positive": one.positive, "negative": one.negative},
        }
        for one in dropped
    ]
    return {"schema_version": VERSION, "dropped": entries}


class _Examples(Record, frozen=True, kw_only=True):
    positive: int
    negative: int


class _Entry(Record, frozen=True, kw_only=True):
    relation: str
    params: dict[str, Any]
    text: str
    reason: str
    detail: str
    examples: _Examples

    def build(self) -> Dropped:
        return Dropped(
            hypothesis=Hypothesis(relation=self.relation, params=self.params),
            text=self.text,
            reason=self.reason,
            detail=self.detail,
            positive=self.examples.positive,
            negative=self.examples.negative,
        )


class _Form(Record, frozen=True, kw_only=True):
    dropped: tuple[_Entry, ...]


def read_dropped(path: str | Path) -> list[Dropped]:
    """Read the file.

    Raises:
        InvariantFormatError: it cannot be read or is not one.
    """
    fix = "learn again: traincheck-infer --force -t DIR"
    try:
        form = msgspec.convert(parse_json(read_regular(path)), _Form)
    except OSError as error:
        raise InvariantFormatError(
            f"{path}: cannot be read: {error.strerror or error}", fix=fix
        ) from error
    except ValueError as error:  # msgspec's is one
        raise InvariantFormatError(f"{path}: is no list of dropped statements", fix=fix) from error
    return [entry.build() for entry in form.dropped]
