"""Events to JSON lines and back. The one place that knows the short keys.

On disk every event has ``k`` kind, ``n`` seq, ``t`` time_ns, ``s`` step, ``g`` stage; rank and
stream are in the file name. The other fields keep their names, except ``id`` (span) and ``start``
(start_ns) of a call. Fields equal to their default are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import orjson

from traincheck.schema.events import (
    EVENT_TYPES,
    CallEvent,
    Event,
    OptimizerEvent,
    ParamGroup,
    StateEvent,
    StepEvent,
)
from traincheck.schema.values import TensorSummary, tensor_json

SCHEMA_VERSION = 1

_HEADER = ("seq", "time_ns", "step", "stage", "rank", "stream", "kind")
_SHORT = {"span": "id", "start_ns": "start"}  # only calls have these fields
_REQUIRED = ("api", "span", "name", "id")  # a line without them says nothing
_NO_ARGS: dict[str, Any] = {}

_E = TypeVar("_E")
_Decoder = Callable[[dict[str, Any], int, str], Event]
# ``CallEvent(...)`` goes through a Python-level ``__new__``; this makes the same object in C.
_new: Callable[..., Any] = tuple.__new__


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
        default = defaults[name]
        if value != default or type(value) is not type(default) or name in _REQUIRED:
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
        KeyError: the kind is unknown or a field without a default is missing.
        TypeError, ValueError, AttributeError: a field has the wrong form.
    """
    return _DECODERS[record["k"]](record, rank, stream)


def _call(r: dict[str, Any], rank: int, stream: str) -> CallEvent:
    # Calls and states are written out, not looped: they are nine events in ten, and this is three
    # times as fast. The forms tested are those of the fields that readers compare, hash or index.
    get = r.get
    seq, time_ns, step, stage, api, span = r["n"], r["t"], r["s"], r["g"], r["api"], r["id"]
    parent, start = get("parent"), get("start", 0)
    family, module, owner = get("family"), get("module"), get("owner")
    args, where = get("args", _NO_ARGS), get("where")
    event: CallEvent = _new(
        CallEvent,
        (
            seq,
            time_ns,
            step,
            stage,
            rank,
            stream,
            "call",
            api,
            span,
            parent,
            start,
            family,
            args,
            get("result"),
            get("exception"),
            module,
            get("root", False),
            get("training"),
            owner,
            get("grad_enabled", True),
            get("autocast"),
            where,
            get("open", False),
        ),
    )
    if (
        seq.__class__ is int
        and time_ns.__class__ is int
        and span.__class__ is int
        and start.__class__ is int
        and api.__class__ is str
        and stage.__class__ is str
        and args.__class__ is dict
        and (step is None or step.__class__ is int)
        and (parent is None or parent.__class__ is int)
        and (family is None or family.__class__ is str)
        and (module is None or module.__class__ is str)
        and (owner is None or owner.__class__ is str)
        and (where is None or where.__class__ is str)
    ):
        return event
    return _checked(event)


def _state(r: dict[str, Any], rank: int, stream: str) -> StateEvent:
    get = r.get
    seq, time_ns, step, stage, name = r["n"], r["t"], r["s"], r["g"], r["name"]
    role, change, summary = get("role", "parameter"), get("change", "content"), get("summary")
    identity, storage, after = get("identity", 0), get("storage", 0), get("after")
    module_class, owner = get("module_class"), get("owner")
    event: StateEvent = _new(
        StateEvent,
        (
            seq,
            time_ns,
            step,
            stage,
            rank,
            stream,
            "state",
            name,
            role,
            change,
            None if summary is None else _summary(summary),
            get("requires_grad", False),
            identity,
            storage,
            after,
            module_class,
            owner,
        ),
    )
    if (
        seq.__class__ is int
        and time_ns.__class__ is int
        and identity.__class__ is int
        and storage.__class__ is int
        and name.__class__ is str
        and stage.__class__ is str
        and role.__class__ is str
        and change.__class__ is str
        and (step is None or step.__class__ is int)
        and (after is None or after.__class__ is int)
        and (module_class is None or module_class.__class__ is str)
        and (owner is None or owner.__class__ is str)
    ):
        return event
    return _checked(event)


def _summary(value: dict[str, Any]) -> TensorSummary:
    get = value.get
    summary: TensorSummary = _new(
        TensorSummary,
        (
            value["dtype"],
            tuple(value["shape"]),
            get("device", "cpu"),
            get("requires_grad", False),
            get("fingerprint"),
            get("value"),
            get("zero"),
            get("stats"),
        ),
    )
    return summary


def _optimizer(r: dict[str, Any], rank: int, stream: str) -> OptimizerEvent:
    groups = tuple(
        _checked(ParamGroup(g["hyper"], g["params"], g["ids"])) for g in r.get("groups", ())
    )
    return _checked(
        OptimizerEvent(
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
    )


def _generic(event_type: Any) -> _Decoder:
    kind = event_type._field_defaults["kind"]
    names = event_type._fields[len(_HEADER) :]
    defaults = [event_type._field_defaults[name] for name in names]

    def build(r: dict[str, Any], rank: int, stream: str) -> Event:
        rest = [r.get(name, default) for name, default in zip(names, defaults)]
        event: Event = event_type(r["n"], r["t"], r["s"], r["g"], rank, stream, kind, *rest)
        return _checked(event)

    return build


_step_fields = _generic(StepEvent)


def _step(r: dict[str, Any], rank: int, stream: str) -> Event:
    event = _step_fields(r, rank, stream)
    counters = event.counters.values()  # type: ignore[union-attr]
    if not all(count.__class__ is int for count in counters):
        raise TypeError("a counter is not a number")
    return event


def _forms(hint: Any) -> tuple[type, ...]:
    """The Python types that JSON may give for a field annotated ``hint``; none for any."""
    if hint is Any:
        return ()
    if hint is float:
        return (float, int)
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return tuple(form for member in get_args(hint) for form in _forms(member))
    known: dict[Any, tuple[type, ...]] = {Mapping: (dict,), Sequence: (list, tuple)}
    return known.get(origin, (hint,))


_FORMS = {
    t: [(name, _forms(hint)) for name, hint in get_type_hints(t).items()]
    for t in (*EVENT_TYPES, ParamGroup)
}


def _checked(event: _E) -> _E:
    """The same event, when each of its fields has a form that its type allows."""
    for (name, forms), value in zip(_FORMS[type(event)], event):  # type: ignore[index,call-overload]
        if forms and value.__class__ not in forms:
            form = "null" if value.__class__ is NoneType else value.__class__.__name__
            raise TypeError(f"field {_SHORT.get(name, name)!r} is of type {form}")
    return event


_DECODERS: dict[str, _Decoder] = {
    **{t._field_defaults["kind"]: _generic(t) for t in EVENT_TYPES},
    "call": _call,
    "state": _state,
    "optimizer": _optimizer,
    "step": _step,
}
