"""Reads a Perfetto file as the viewer does: packets sorted by time, names by their numbers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent


@dataclass
class Shown:
    """One slice."""

    name: str
    begin: int
    end: int = -1
    category: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    flows: tuple[int, ...] = ()
    depth: int = 0


@dataclass
class Timeline:
    """What the viewer shows.

    Attributes:
        tracks: number -> names of the track and of those above it.
        slices, counters, instants: by the number of their track.
    """

    tracks: dict[int, tuple[str, ...]] = field(default_factory=dict)
    slices: dict[int, list[Shown]] = field(default_factory=lambda: defaultdict(list))
    counters: dict[int, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    instants: dict[int, list[Shown]] = field(default_factory=lambda: defaultdict(list))

    def track(self, *names: str) -> int:
        return next(number for number, found in self.tracks.items() if found == names)


def read_timeline(path: Path) -> Timeline:
    """The timeline of a file. Fails where an end has no begin, or a slice is not in its parent."""
    trace = Trace()
    trace.ParseFromString(path.read_bytes())
    made, names, open_ = Timeline(), _names(trace), defaultdict[int, list[Shown]](list)
    _read_tracks(trace, made)
    events = [p for p in trace.packet if p.HasField("track_event")]
    for packet in sorted(events, key=lambda packet: packet.timestamp):  # stable, as the viewer is
        event, time_ns = packet.track_event, packet.timestamp
        stack = open_[event.track_uuid]
        assert event.track_uuid in made.tracks
        if event.type == TrackEvent.TYPE_COUNTER:
            made.counters[event.track_uuid].append((time_ns, event.double_counter_value))
        elif event.type == TrackEvent.TYPE_SLICE_END:
            assert stack, "an end without a begin"
            stack.pop().end = time_ns
        else:
            shown = _shown(packet, names, len(stack))
            if event.type == TrackEvent.TYPE_INSTANT:
                made.instants[event.track_uuid].append(shown)
            else:
                made.slices[event.track_uuid].append(shown)
                stack.append(shown)
    assert not any(open_.values()), "a begin without an end"
    return made


def _names(trace: Trace) -> dict[str, dict[int, str]]:
    made: dict[str, dict[int, str]] = defaultdict(dict)
    for packet in trace.packet:
        for kind in ("event_names", "event_categories", "debug_annotation_names"):
            made[kind] |= {entry.iid: entry.name for entry in getattr(packet.interned_data, kind)}
    return made


def _read_tracks(trace: Trace, made: Timeline) -> None:
    by_pid: dict[int, tuple[str, ...]] = {}
    for packet in trace.packet:
        track = packet.track_descriptor
        if not track.uuid:
            continue
        if track.HasField("process"):
            assert track.process.pid not in by_pid
            by_pid[track.process.pid] = names = (track.process.process_name,)
        elif track.HasField("thread"):
            names = (*by_pid[track.thread.pid], track.thread.thread_name)
        else:
            names = (*made.tracks[track.parent_uuid], track.name)
        made.tracks[track.uuid] = names


def _shown(packet: Any, names: dict[str, dict[int, str]], depth: int) -> Shown:
    event = packet.track_event
    details = {
        names["debug_annotation_names"][note.name_iid]: getattr(note, note.WhichOneof("value"))
        for note in event.debug_annotations
    }
    categories = [names["event_categories"][iid] for iid in event.category_iids]
    return Shown(
        name=names["event_names"][event.name_iid],
        begin=packet.timestamp,
        category=",".join(categories),
        details=details,
        flows=tuple(event.flow_ids),
        depth=depth,
    )
