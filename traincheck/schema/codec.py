"""Events to JSON lines and back. The one place that knows the short keys.

On disk every event has ``k`` kind, ``n`` seq, ``t`` time_ns, ``s`` step, ``g`` stage; rank and
stream are in the file name. The other fields keep their names, except ``id`` (span) and ``start``
(start_ns) of a call. Fields equal to their default are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from traincheck.schema.events import (
    EVENT_TYPES,
    CallEvent,
    Event,
    OptimizerEvent,
    ParamGroup,
    StateEvent,
)
from traincheck.schema.values import tensor_json, tensor_summary

SCHEMA_VERSION = 1

_HEADER = ("seq", "time_ns", "step", "stage", "rank", "stream", "kind")
_SHORT = {"span": "id", "start_ns": "start"}  # only calls have these fields
_NO_ARGS: dict[str, Any] = {}


def encode(event: Event) -> bytes:
    """One JSON line without its newline. Rank and stream are not in it: they name the file."""
    out: dict[str, Any] = {
        "k": event.kind,
        "n": event.seq,
        "t": event.time_ns,
        "s": event.step,
        "g": event.stage,
    }
    defaults = event._field_defaults
    for name in event._fields[len(_HEADER) :]:
        value = getattr(event, name)
        if value != defaults[name] or type(value) is not type(defaults[name]):
            out[_SHORT.get(name, name)] = _plain(name, value)
    return orjson.dumps(out, option=orjson.OPT_NON_STR_KEYS)


def _plain(name: str, value: Any) -> Any:
    if name == "summary" and value is not None:
        return tensor_json(value)
    if name == "groups":
        return [{"hyper": g.hyper, "params": list(g.params), "ids": list(g.ids)} for g in value]
    return value


def decode(record: dict[str, Any], rank: int, stream: str) -> Event:
    """Build the event of one parsed line.

    Raises:
        KeyError: the kind is unknown or a common field is missing.
        TypeError, ValueError, AttributeError: a field has the wrong form.
    """
    return _DECODERS[record["k"]](record, rank, stream)


def _call(r: dict[str, Any], rank: int, stream: str) -> CallEvent:
    # Written out, not looped: nine events in ten are calls, and this is three times as fast.
    get = r.get
    return CallEvent(
        r["n"],
        r["t"],
        r["s"],
        r["g"],
        rank,
        stream,
        "call",
        r["api"],
        r["id"],
        get("parent"),
        get("start", 0),
        get("family"),
        get("args", _NO_ARGS),
        get("result"),
        get("exception"),
        get("module"),
        get("root", False),
        get("training"),
        get("owner"),
        get("grad_enabled", True),
        get("autocast"),
        get("where"),
        get("open", False),
    )


def _state(r: dict[str, Any], rank: int, stream: str) -> StateEvent:
    get = r.get
    return StateEvent(
        r["n"],
        r["t"],
        r["s"],
        r["g"],
        rank,
        stream,
        "state",
        r["name"],
        get("role", "parameter"),
        get("change", "content"),
        tensor_summary(get("summary")),
        get("requires_grad", False),
        get("identity", 0),
        get("storage", 0),
        get("after"),
        get("module_class"),
        get("owner"),
    )


def _optimizer(r: dict[str, Any], rank: int, stream: str) -> OptimizerEvent:
    groups = tuple(ParamGroup(g["hyper"], g["params"], g["ids"]) for g in r.get("groups", ()))
    return OptimizerEvent(
        r["n"],
        r["t"],
        r["s"],
        r["g"],
        rank,
        stream,
        "optimizer",
        r.get("change", "created"),
        r["id"],
        r.get("cls", ""),
        groups,
        r.get("where"),
    )


def _generic(event_type: Any) -> Callable[[dict[str, Any], int, str], Event]:
    kind = event_type._field_defaults["kind"]
    names = event_type._fields[len(_HEADER) :]
    defaults = [event_type._field_defaults[name] for name in names]

    def build(r: dict[str, Any], rank: int, stream: str) -> Event:
        rest = [r.get(name, default) for name, default in zip(names, defaults)]
        event: Event = event_type(r["n"], r["t"], r["s"], r["g"], rank, stream, kind, *rest)
        return event

    return build


_DECODERS: dict[str, Callable[[dict[str, Any], int, str], Event]] = {
    **{t._field_defaults["kind"]: _generic(t) for t in EVENT_TYPES},
    "call": _call,
    "state": _state,
    "optimizer": _optimizer,
}
