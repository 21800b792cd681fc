"""Find a value of one run in the other: under which name, and in which step, it had it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from traincheck.schema.reading import open_regular
from traincheck.store.reader import TraceReader

_CHUNK_BYTES = 1 << 23
_MOST_LINE_BYTES = 1 << 20
_MOST_HITS = 64


class Place(NamedTuple):
    """Where a value was recorded.

    Attributes:
        step: number of the step; None outside the steps of a process.
        kind: of the record.
        name: of the variable or loader.
        role: of the variable; "" for others.
        record: the whole record.
    """

    step: int | None
    kind: str
    name: str
    role: str
    record: dict[str, Any]


class Lookup:
    """Searches the event files of a run for a text, without decoding the other lines.

    Args:
        reader: of the run.
        rank: whose files are searched.
    """

    def __init__(self, reader: TraceReader, rank: int) -> None:
        self._paths: list[Path] = [
            path
            for process in reader.processes
            if process.rank == rank and not process.is_worker
            for path in process.files
        ]
        self._known: dict[bytes, list[Place]] = {}

    def of_value(self, fingerprint: str | None) -> list[Place]:
        """The states, loads and batches that have this fingerprint, in order."""
        return self._found(fingerprint.encode()) if fingerprint else []

    def of_batch(self, samples: Sequence[str], indices: Sequence[int]) -> list[Place]:
        """The batches with these rows, or else drawn by these indices."""
        if samples:
            text = '"samples":[' + ",".join(f'"{sample}"' for sample in samples[:8])
        elif indices:
            text = '"indices":[' + ",".join(map(str, indices[:16]))
        else:
            return []
        return [place for place in self._found(text.encode()) if place.kind == "batch"]

    def _found(self, needle: bytes) -> list[Place]:
        if needle not in self._known:
            self._known[needle] = [
                place for path in self._paths for line in _lines_with(path, needle)
                if (place := _place(line)) is not None
            ]  # fmt: skip
        return self._known[needle]


def _lines_with(path: Path, needle: bytes) -> Iterator[bytes]:
    """The lines of a file that hold a text, the first of them."""
    hits = 0
    rest = b""
    with open_regular(path) as file:
        while piece := file.read(_CHUNK_BYTES):
            text = rest + piece
            end = text.rfind(b"\n") + 1
            at = text.find(needle, 0, end)
            while at >= 0:
                start, stop = text.rfind(b"\n", 0, at) + 1, text.find(b"\n", at)
                yield text[start:stop]
                hits += 1
                if hits == _MOST_HITS:
                    return
                at = text.find(needle, stop, end)
            rest = text[end:] if len(text) - end <= _MOST_LINE_BYTES else b""


def _place(line: bytes) -> Place | None:
    try:
        record = msgspec.json.decode(line)
        kind = record["k"]
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError):
        return None
    name = record.get("name") or record.get("loader") or record.get("target") or ""
    default = "parameter" if kind == "state" else ""  # a field with its default is left out
    return Place(record.get("s"), kind, str(name), str(record.get("role", default)), record)
