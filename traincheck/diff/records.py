"""Calls and states as a comparison reads them: with their values as raw JSON.

A comparison asks of most values only whether two are equal. Raw JSON answers that without being
decoded, so a call costs a third of what its event costs. The other kinds of events are whole.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, cast

import msgspec
from msgspec import Raw, field
from msgspec.structs import force_setattr

from traincheck.schema.codec import decode as decode_whole
from traincheck.schema.codec import union_with
from traincheck.schema.events import Event
from traincheck.schema.record import EventBase, Int64
from traincheck.store.lines import Decoders

_NONE = Raw(b"null")


class CallRecord(EventBase, frozen=True, kw_only=True, tag="call"):
    """A call; the fields are those of `CallEvent`, arguments and result are JSON."""

    kind: ClassVar[Literal["call"]] = "call"
    api: str
    span: Int64 = field(name="id")
    parent: Int64 | None = None
    family: str | None = None
    args: Raw = _NONE
    result: Raw = _NONE
    module: str | None = None
    root: bool = False
    training: bool | None = None
    owner: str | None = None
    grad_enabled: bool = True
    autocast: str | None = None
    where: str | None = None


class StateRecord(EventBase, frozen=True, kw_only=True, tag="state"):
    """A change of a variable; the fields are those of `StateEvent`, the summary is JSON."""

    kind: ClassVar[Literal["state"]] = "state"
    name: str
    role: str = "parameter"
    change: str = "content"
    summary: Raw = _NONE
    after: Int64 | None = None
    module_class: str | None = None
    owner: str | None = None


_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(union_with(CallRecord, StateRecord))


def _decode(line: bytes, rank: int, stream: str) -> Event:
    decode_whole(line, rank, stream)  # refuses, with a reason, what is not an event
    record = _decoder.decode(line)
    force_setattr(record, "rank", rank)
    force_setattr(record, "stream", stream)
    return cast("Event", record)


def _decode_lines(piece: bytes, rank: int, stream: str) -> list[Event] | None:
    try:
        records = _decoder.decode_lines(piece)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    if len(records) != piece.count(b"\n") + 1:
        return None
    for record in records:
        force_setattr(record, "rank", rank)
        force_setattr(record, "stream", stream)
    return cast("list[Event]", records)


# They are events to the reader, which needs their headers and kinds.
RECORDS = Decoders(_decode, _decode_lines)
