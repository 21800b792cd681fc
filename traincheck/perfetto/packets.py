"""Writes packets of Perfetto: tracks, slices, counters. One packet is in memory at a time."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import IO, Any

from traincheck.errors import MissingDependencyError

_SEQUENCE = 1
_REUSED = 256  # how often a packet is: clearing it does not give its memory back
_CLEARED, _NEEDED = 1, 2  # flags of a sequence whose names are numbered


def _packets() -> tuple[Any, Any]:
    try:
        builder = importlib.import_module("perfetto.trace_builder.proto_builder")
        protos = importlib.import_module("perfetto.protos.perfetto.trace.perfetto_trace_pb2")
    except ImportError as error:
        raise MissingDependencyError(
            f"Perfetto files need the package perfetto: {error}",
            fix="pip install 'traincheck[perfetto]'",
        ) from error
    return builder.StreamingTraceProtoBuilder, protos.TrackEvent


class PacketWriter:
    """Writes one trace.

    Args:
        file: binary, open for writing.

    Raises:
        MissingDependencyError: the package perfetto is not installed.
    """

    def __init__(self, file: IO[bytes]) -> None:
        builder, event = _packets()
        self._builder = builder(file)
        self._packet = self._builder.create_packet()
        self._begin, self._end = event.TYPE_SLICE_BEGIN, event.TYPE_SLICE_END
        self._instant, self._counter = event.TYPE_INSTANT, event.TYPE_COUNTER
        self._numbers: dict[str, dict[str, int]] = {"event": {}, "category": {}, "detail": {}}
        self._tracks = 0
        self._written = 0

    def process(self, pid: int, name: str, rank: int) -> int:
        """A track for a process; returns its number.

        Args:
            pid: unique among the processes.
            name: shown beside it.
            rank: processes are shown in this order.
        """
        packet, number = self._new_track()
        packet.track_descriptor.process.pid = pid
        packet.track_descriptor.process.process_name = name
        packet.track_descriptor.sibling_order_rank = rank
        self._write(packet)
        return number

    def thread(self, pid: int, tid: int, name: str) -> int:
        """A track for a thread; returns its number.

        Args:
            pid: of its process.
            tid: unique among all threads.
            name: shown beside it.
        """
        packet, number = self._new_track()
        thread = packet.track_descriptor.thread
        thread.pid, thread.tid, thread.thread_name = pid, tid, name
        self._write(packet)
        return number

    def track(self, parent: int, name: str) -> int:
        """A track for other slices below a process; returns its number."""
        packet, number = self._new_track()
        packet.track_descriptor.parent_uuid = parent
        packet.track_descriptor.name = name
        self._write(packet)
        return number

    def counter_track(self, parent: int, name: str, unit: str = "") -> int:
        """A track for numbers below a process; returns its number."""
        packet, number = self._new_track()
        packet.track_descriptor.parent_uuid = parent
        packet.track_descriptor.name = name
        packet.track_descriptor.counter.unit_name = unit
        self._write(packet)
        return number

    def begin(
        self,
        track: int,
        time_ns: int,
        name: str,
        *,
        category: str = "",
        details: Mapping[str, Any] | None = None,
        flows: Sequence[int] = (),
    ) -> None:
        """A slice begins.

        Args:
            track: its number.
            time_ns: when.
            name: of the slice.
            category: by which slices can be chosen.
            details: shown when the slice is clicked.
            flows: numbers of arrows that connect this slice with others.
        """
        event = self._event(track, time_ns, self._begin)
        self._describe(event, name, category, details or {})
        if flows:
            event.flow_ids.extend(flows)
        self._write(self._packet)

    def end(self, track: int, time_ns: int) -> None:
        """The last slice of a track that has begun ends."""
        self._event(track, time_ns, self._end)
        self._write(self._packet)

    def instant(
        self, track: int, time_ns: int, name: str, category: str, details: Mapping[str, Any]
    ) -> None:
        """Something without a duration."""
        self._describe(self._event(track, time_ns, self._instant), name, category, details)
        self._write(self._packet)

    def count(self, track: int, time_ns: int, value: float) -> None:
        """A number."""
        self._event(track, time_ns, self._counter).double_counter_value = value
        self._write(self._packet)

    def _new_track(self) -> tuple[Any, int]:
        self._tracks += 1
        self._packet.Clear()
        self._packet.track_descriptor.uuid = self._tracks
        return self._packet, self._tracks

    def _event(self, track: int, time_ns: int, kind: int) -> Any:
        packet = self._packet
        packet.Clear()
        packet.timestamp = time_ns
        event = packet.track_event
        event.type, event.track_uuid = kind, track
        return event

    def _describe(self, event: Any, name: str, category: str, details: Mapping[str, Any]) -> None:
        event.name_iid = self._number("event", name)
        if category:
            event.category_iids.append(self._number("category", category))
        for key, value in details.items():
            if value is None:
                continue
            note = event.debug_annotations.add()
            note.name_iid = self._number("detail", key)
            if isinstance(value, bool):
                note.bool_value = value
            elif isinstance(value, int) and abs(value) < 1 << 63:
                note.int_value = value
            elif isinstance(value, float):
                note.double_value = value
            else:
                note.string_value = str(value)

    def _number(self, kind: str, name: str) -> int:
        """The number of a name, which the present packet explains if it is a new one."""
        known = self._numbers[kind]
        number = known.get(name)
        if number is None:
            number = known[name] = len(known) + 1
            data = self._packet.interned_data
            names = {
                "event": data.event_names,
                "category": data.event_categories,
                "detail": data.debug_annotation_names,
            }
            entry = names[kind].add()
            entry.iid, entry.name = number, name
        return number

    def _write(self, packet: Any) -> None:
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = _NEEDED if self._written else _CLEARED | _NEEDED
        self._builder.write_packet(packet)
        self._written += 1
        if self._written % _REUSED == 0:
            self._packet = self._builder.create_packet()
