"""One training step of one rank, taken apart, and the values of its variables over the steps.

One step is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

import msgspec
from msgspec import Raw
from msgspec.structs import force_setattr

from traincheck.diff.items import NULL, Phase
from traincheck.schema.codec import decode as decode_whole
from traincheck.schema.codec import union_with
from traincheck.schema.events import (
    BatchEvent,
    CheckpointEvent,
    CollectiveEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    RngEvent,
    StepEvent,
)
from traincheck.schema.record import EventBase, Int64
from traincheck.schema.torch_api import FUNCTIONAL, Families
from traincheck.store.lines import Decoders

_NONE = Raw(b"null")
_INIT = "torch.nn.init."
_OPENING_RNG = ("start", "loader", "load")  # moments that come before the first batch

# Calls and states hold their values as raw JSON. A comparison asks of most values only whether two
# are equal: raw JSON answers that without being decoded, so a call costs a third of what its event
# costs. The other kinds of events are whole.


class CallRecord(EventBase, frozen=True, kw_only=True, tag="call"):
    """A call; the fields are those of `CallEvent`, arguments and result are JSON."""

    kind: ClassVar[Literal["call"]] = "call"
    api: str
    span: Int64 = msgspec.field(name="id")
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


@dataclass(slots=True)
class StepView:
    """The records of one step of one rank, by what they are about.

    Attributes:
        number: of the step, from 0.
        opening: changes of variables before the first batch or forward of the step.
        states: the other changes of variables.
        generators: random generators: first as the last step left them, then as found in this.
        after_batch: the states of generators found between the first batch and the first forward.
        closing: those found later in the step, with which the next one begins.
        inits: calls that initialized parameters.
        calls: the other calls, in the order in which they ended.
        end: the record that ends it; None for what follows the last step.
    """

    number: int
    opening: list[StateRecord] = field(default_factory=list)
    states: list[StateRecord] = field(default_factory=list)
    generators: list[RngEvent] = field(default_factory=list)
    after_batch: list[RngEvent] = field(default_factory=list)
    closing: list[RngEvent] = field(default_factory=list)
    batches: list[BatchEvent] = field(default_factory=list)
    inits: list[CallRecord] = field(default_factory=list)
    calls: list[CallRecord] = field(default_factory=list)
    optimizers: list[OptimizerEvent] = field(default_factory=list)
    collectives: list[CollectiveEvent] = field(default_factory=list)
    checkpoints: list[CheckpointEvent] = field(default_factory=list)
    marks: list[MarkEvent] = field(default_factory=list)
    end: StepEvent | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether all of the step is in the trace."""
        return self.end is None or (self.end.recorded and self.end.complete)


def step_views(events: Iterable[Any]) -> Iterator[StepView]:
    """The steps of one rank, then what follows the last one.

    A program that begins to count again (a restart in the same trace) ends the iteration: its steps
    are those of another run.
    """
    builder = _Builder(0)
    last = -1
    for event in events:
        kind = event.kind
        if kind == "step":
            if event.is_gap:
                builder.is_torn = True
                continue
            if event.step <= last:
                return
            last = event.step
            view = builder.finish(event)
            yield view
            builder = _Builder(event.step + 1, builder.left_over)
        else:
            builder.add(event)
    yield builder.view


class _Builder:
    """Sorts the records of one step."""

    def __init__(self, number: int, left_over: list[RngEvent] | None = None) -> None:
        self.left_over: list[RngEvent] = []
        self.view = StepView(number, generators=list(left_over or ()), closing=self.left_over)
        self.is_torn = False
        self._is_opening = True

    def add(self, event: Any) -> None:
        kind = event.kind
        if event.step is None and kind != "mark":
            return  # of a worker of a loader: its marks tell how it began
        if kind == "call":
            api = event.api
            if api.startswith(_INIT):
                self.view.inits.append(event)
                return
            if self._is_opening and (event.family == Families.MODULE or api.startswith(FUNCTIONAL)):
                self._is_opening = False
            self.view.calls.append(event)
        elif kind == "state":
            (self.view.opening if self._is_opening else self.view.states).append(event)
        elif kind == "rng":
            if event.moment == "forward":
                self.view.after_batch.append(event)
            elif self._is_opening and (event.change == "seed" or event.moment in _OPENING_RNG):
                self.view.generators.append(event)
            elif event.moment != "save":  # after the forward pass: the next step begins with it
                self.left_over.append(event)
        elif kind == "batch":
            self._is_opening = False
            self.view.batches.append(event)
        elif kind in _LISTS:
            getattr(self.view, _LISTS[kind]).append(event)

    def finish(self, end: StepEvent) -> StepView:
        self.view.number = end.step or 0
        self.view.end = end.replace(recorded=False) if self.is_torn else end
        return self.view


_LISTS = {
    "optimizer": "optimizers",
    "collective": "collectives",
    "checkpoint": "checkpoints",
    "mark": "marks",
}


Variable = tuple[str, str]  # role, name
# Settings that choose how an update is computed, not which.
_IMPLEMENTATION = frozenset(
    {"foreach", "fused", "capturable", "differentiable", "initial_lr", "lr"}
)
_GONE = ("cleared", "gone")
PHASE_OF = {
    "parameter": Phase.PARAMETER,
    "buffer": Phase.BUFFER,
    "optimizer_state": Phase.OPTIMIZER_STATE,
    "gradient": Phase.GRADIENT,
}


class SideState:
    """The variables and settings of one run after the records that it was given.

    values: of each variable, the JSON of its summary; None where the trace cannot show it.

    Args:
        named: the name by which a variable is known in the comparison; None for none.
    """

    def __init__(self, named: Callable[[str], str | None] = lambda name: name) -> None:
        self._named = named
        self.values: dict[Variable, bytes | None] = {}
        # By optimizer, then by group (" group 1", "" if there is one) and name.
        self.settings: dict[str, dict[tuple[str, str], Any]] = {}

    def begin_step(self, view: StepView) -> list[Variable]:
        """Take in what changed before the first batch of a step; the variables in order."""
        touched: dict[Variable, None] = {}
        records: list[StateRecord | CheckpointEvent] = [*view.opening]
        if view.checkpoints:
            records = sorted([*records, *view.checkpoints], key=lambda record: record.time_ns)
        for record in records:
            if isinstance(record, StateRecord):
                variable = self.put(record)
                if variable is not None:
                    touched[variable] = None
            elif record.op == "load_state_dict" and record.changed != 0:
                touched.update(dict.fromkeys(self._load(record)))
        for event in view.optimizers:
            found: dict[tuple[str, str], Any] = {("", "class"): event.cls.rpartition(".")[2]}
            for number, group in enumerate(event.groups):
                prefix = f" group {number}" if len(event.groups) > 1 else ""
                for name, value in group.hyper.items():
                    if name not in _IMPLEMENTATION:
                        found[prefix, name] = value
            self.settings[event.id] = found
        return list(touched)

    def put(self, record: StateRecord) -> Variable | None:
        """Take in one change; None if the variable is not compared."""
        name = self._named(record.name)
        if name is None:
            return None
        variable = (record.role, name)
        if record.change == "unknown":
            self.values[variable] = None
        elif record.change in _GONE:
            self.values[variable] = NULL
        else:
            self.values[variable] = bytes(record.summary)
        return variable

    def _load(self, load: CheckpointEvent) -> Iterator[Variable]:
        """A load: parameters are told, what else it wrote is not known until it changes."""
        for given, fingerprint in load.values.items():
            name = self._named(given) or ""
            old = self.values.get(("parameter", name))
            if isinstance(fingerprint, str) and old is not None and old != NULL:
                summary = msgspec.json.decode(old)
                kept = {key: summary[key] for key in ("dtype", "shape", "device") if key in summary}
                told = msgspec.json.encode({**kept, "fingerprint": fingerprint})
                self.values["parameter", name] = told
                yield ("parameter", name)
        for variable in self.values:
            role, name = variable
            is_buffer = role == "buffer" and load.target and name.startswith(f"{load.target}.")
            if is_buffer or (role == "optimizer_state" and load.owner):
                self.values[variable] = None
