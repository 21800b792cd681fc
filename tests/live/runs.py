"""Runs to look at: what a view is made of, and folders on disk."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tests.builders import MLP, TraceBuilder
from traincheck.api import make_engine
from traincheck.check.engine import Engine
from traincheck.live.checked import CheckNotes
from traincheck.live.screen import Scene
from traincheck.live.status import RunStatus
from traincheck.live.timeline import NEWS, LiveTimeline
from traincheck.schema.events import Event, StateEvent, StepEvent
from traincheck.schema.layout import MANIFEST
from traincheck.schema.values import TensorSummary
from traincheck.store.manifest import Manifest, write_manifest
from traincheck.store.writer import TraceWriter

NOBODY = 1 << 22  # no process has this number: it is the limit of Linux
BROKEN = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, omit={"zero_grad"}).build()


def write(folder: Path, events: Sequence[Event], manifest: Manifest | None = None) -> Path:
    with TraceWriter(folder) as writer:
        for event in events:
            writer.emit(event)
    (folder / MANIFEST).unlink(missing_ok=True)  # the writer ends the run
    if manifest is not None:
        write_manifest(folder, manifest)
    return folder


def checked_by(events: Sequence[Event], folder: Path, **options: Any) -> tuple[Engine, CheckNotes]:
    """An engine that took in the events, and the notes that it left in the folder."""
    options.setdefault("clock", count().__next__)  # each step is written
    engine = make_engine()
    notes = CheckNotes(engine, folder, **options)
    for event in events:
        engine.observe(event)
        if isinstance(event, StepEvent):
            notes.step(event)
    return engine, notes


def norms_at(
    step: int, norms: dict[str, float], *, rank: int = 0, role: str = "gradient"
) -> list[Event]:
    """The gradients of a step, and its end."""
    header = (0, 1_000_000_000 + 100_000_000 * step, step, "train", rank, f"p{NOBODY + rank}-t0")
    found: list[Event] = [
        StateEvent(
            *header,
            name=f"{layer}.weight",
            role=role,
            summary=TensorSummary("float32", (2, 2), stats={"norm": norm}),
        )
        for layer, norm in norms.items()
    ]
    return [*found, StepEvent(*header, lr={"opt0": [0.1]})]


def scene(events: Sequence[Event], *, program: str = "train.py", **more: Any) -> Scene:
    timeline = LiveTimeline()
    for event in events:
        timeline.add(event)
        if event.kind in NEWS:
            timeline.note(event)
    timeline.settle()
    facts = {"status": RunStatus(run="traces/run", state="running", idle_s=0.4), "checked": None}
    return Scene(program=program, timeline=timeline, **{**facts, **more})
