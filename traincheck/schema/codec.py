"""Events to JSON lines and back.

On disk every event has ``k`` kind, ``n`` seq, ``t`` time_ns, ``s`` step, ``g`` stage; rank and
stream are in the file name. The other fields keep their names, except ``id`` (span) and ``start``
(start_ns) of a call. Fields equal to their default are left out. The short keys are declared with
the fields, in schema/events.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
from msgspec import NODEFAULT
from msgspec.structs import fields, force_setattr

from traincheck.schema.events import EVENT_TYPES, KINDS, Event
from traincheck.schema.files import MOST_VALUES, dump_json
from traincheck.schema.layout import SCHEMA_VERSION
from traincheck.schema.record import EventBase
from traincheck.schema.values import tensor_json

__all__ = [
    "SCHEMA_VERSION",
    "decode",
    "decode_lines",
    "encode",
    "foreign_number",
    "is_too_much",
    "placed",
    "union_with",
]

_BAD = (msgspec.MsgspecError, ValueError, RecursionError)


# Name, key and default of the fields in a line. Rank and stream are in the file name.
_FIELDS: dict[type[Event], list[tuple[str, str, Any]]] = {
    event_type: [
        (f.name, f.encode_name, f.default if f.default_factory is NODEFAULT else {})
        for f in fields(event_type)
        if f.name not in ("rank", "stream")
    ]
    for event_type in EVENT_TYPES
}
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """One JSON line without its newline. Rank and stream are in the file name instead."""
    out: dict[str, Any] = {"k": event.kind}
    for name, key, default in _FIELDS[type(event)]:
        value = getattr(event, name)
        if type(value) is not type(default) or value != default:
            out[key] = _plain(name, value)
    return dump_json(out, option=orjson.OPT_NON_STR_KEYS)


def placed(event: Event) -> dict[str, Any]:
    """The event with the rank and the stream of its file name."""
    return {"rank": event.rank, "stream": event.stream, **orjson.loads(encode(event))}


def _plain(name: str, value: Any) -> Any:
    if name == "summary" and value is not None:
        return tensor_json(value)
    if name == "groups":
        return [{"hyper": g.hyper, "params": list(g.params), "ids": list(g.ids)} for g in value]
    return value


def union_with(*records: type[EventBase]) -> Any:
    """The union of all kinds of events, for a decoder that reads some of them as other records.

    Args:
        records: one for each kind that is read in another way.
    """
    kinds = {record.kind for record in records}
    union: Any = records[0]
    for one in (*records[1:], *(each for each in EVENT_TYPES if each.kind not in kinds)):
        union |= one
    return union


def decode(line: bytes, rank: int, stream: str) -> Event:
    """Build the event of one line.

    Raises:
        ValueError: the line is not an event; the message gives the reason.
    """
    if is_too_much(line):
        raise ValueError(f"more than {MOST_VALUES:,} values")
    try:
        event = _decoder.decode(line)
    except _BAD as error:
        raise ValueError(_reason(line, error)) from error
    force_setattr(event, "rank", rank)  # not returned yet, so it may be changed
    force_setattr(event, "stream", stream)
    return event


def decode_lines(piece: bytes, rank: int, stream: str) -> list[Event] | None:
    """Build the events of several lines in one call; None if one line is not an event."""
    if is_too_much(piece):
        return None
    try:
        events = _decoder.decode_lines(piece)
    except _BAD:
        return None
    if len(events) != piece.count(b"\n") + 1:  # blank lines, or events that are not one line each
        return None
    for event in events:
        force_setattr(event, "rank", rank)
        force_setattr(event, "stream", stream)
    return events


def is_too_much(piece: bytes) -> bool:
    """Whether decoding a chunk of a file would fill memory."""
    if len(piece) < MOST_VALUES:
        return False
    return sum(map(piece.count, (b",", b"[", b"{"))) > MOST_VALUES


def foreign_number(line: bytes) -> int | None:
    """The number of an event whose kind is from a newer version; None for any other line."""
    try:
        record = orjson.loads(line)
        kind, number = record["k"], record["n"]
    except (ValueError, TypeError, LookupError):
        return None
    is_foreign = isinstance(kind, str) and kind not in KINDS
    return number if is_foreign and isinstance(number, int) else None


def _reason(line: bytes, error: Exception) -> str:
    """The error of a line as text."""
    if not line.strip():
        return "blank"
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError as malformed:
        return f"not JSON: {malformed.msg}"
    if not isinstance(record, dict):
        return f"a JSON {type(record).__name__}, not an object"
    if record.get("k") not in KINDS:
        return f"unknown kind {record['k']!r}" if "k" in record else "field 'k' is missing"
    return str(error)
