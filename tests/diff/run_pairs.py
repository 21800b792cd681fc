"""Pairs of hand-made runs that differ in one thing, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from tests.builders import ADAM, BN_BUFFERS, MLP_BN, TraceBuilder
from traincheck.diff.difference import Difference
from traincheck.diff.library import diff
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    Event,
    MarkEvent,
    RngEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.layout import SOURCES
from traincheck.schema.observations.processes import ProcessFacts, Sources
from traincheck.schema.torch_api import Families
from traincheck.store.manifest import Manifest
from traincheck.store.writer import TraceWriter

Choose = Callable[[Any], bool]
Compare = Callable[..., Difference]
LAYERS = "torch.nn.modules"


def training(steps: int = 5, *, rank: int = 0, optimizer: str = ADAM, seed: int = 0) -> list[Event]:
    """A healthy run as the view "diff" shows it: all values have fingerprints, many have norms."""
    builder = TraceBuilder(rank=rank).process().seed(seed=seed)
    builder.model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer(optimizer).train()
    return telling(builder.steps(steps).build())


def telling(events: Iterable[Event]) -> list[Event]:
    """The events with results, norms, indices and states of the generator."""
    told: list[Event] = []
    for event in events:
        if isinstance(event, CallEvent) and event.family == Families.MODULE:
            told.append(event.replace(result=output(f"{event.module}@{event.step}")))
        elif isinstance(event, BatchEvent):
            first = 3 * (event.step or 0)
            rows = [f"{first + row:016x}" for row in range(3)]
            order = (first, first + 1, first + 2)
            told.append(event.replace(indices=order, drawn=3, samples=rows, dataset_size=100))
        elif isinstance(event, StateEvent) and event.role in ("parameter", "gradient"):
            assert event.summary is not None or event.change == "cleared"
            if event.summary is None:
                told.append(event)
                continue
            told.append(event.replace(summary=event.summary.replace(stats={"norm": 2.0})))
        elif isinstance(event, StepEvent):
            fingerprint = f"xxh3:{event.step:032x}"
            state = RngEvent(*event.header, source="torch", fingerprint=fingerprint)
            told += [state, event]
        else:
            told.append(event)
    return numbered(told)


def whole(events: Iterable[Event], **facts: Any) -> list[Event]:
    """The events as the view "diff" has them: states at all moments, and facts of the process.

    The loading of each batch draws from the generator of torch, and so does each forward pass.
    """
    made: list[Event] = []
    for event in events:
        if isinstance(event, RngEvent) and event.change == "state" and not event.moment:
            made.append(event.replace(moment="step"))
            continue
        if isinstance(event, BatchEvent):
            if event.step == 0:
                made.append(_state(event, "loader", "a"))
            made += [event, _state(event, "forward", f"b{event.step}")]
            continue
        made.append(event)
        if isinstance(event, MarkEvent) and event.text == "process":
            data = ProcessFacts(threads=1, versions={"torch": "2.13.0"}).data() | facts
            made.append(MarkEvent(*event.header, text=ProcessFacts.text, data=data))
    return numbered(made)


def _state(event: Event, moment: str, text: str) -> RngEvent:
    fingerprint = f"xxh3:{text:0>32}"
    return RngEvent(*event.header, source="torch", fingerprint=fingerprint, moment=moment)


def with_code(
    folder: Path, events: Iterable[Event], code: str, *, left_out: int = 0
) -> list[Event]:
    """The events of a program with this code, of which the run directory keeps a copy.

    left_out: how many further files have none.
    """
    content = code.encode()
    name = f"{xxhash.xxh3_64_hexdigest(content)}.py"
    (folder / SOURCES).mkdir(parents=True)
    (folder / SOURCES / name).write_bytes(content)
    script = "/home/me/train.py"
    told = Sources(script, {script: name}, left_out=left_out)
    first, *rest = events
    mark = MarkEvent(*first.header, text=Sources.text, data=told.data())
    return numbered([first, mark, *rest])


def numbered(events: Iterable[Event]) -> list[Event]:
    """The events, numbered as those of a file are."""
    return [event.replace(seq=seq) for seq, event in enumerate(events)]


def output(text: str) -> dict[str, Any]:
    """The recorded form of a tensor with some content."""
    fingerprint = f"xxh3:{text.encode().hex()[-32:]:0>32}"
    return {"dtype": "float32", "shape": [4], "device": "cpu", "fingerprint": fingerprint}


def edited(events: Iterable[Event], choose: Choose, **changes: Any) -> list[Event]:
    """The events; those that are chosen have other values in some fields."""
    found = [event for event in events if choose(event)]
    assert found, "no event is chosen"
    return [event.replace(**changes) if choose(event) else event for event in events]


def without(events: Iterable[Event], choose: Choose) -> list[Event]:
    """The events but those that are chosen."""
    return numbered(event for event in events if not choose(event))


def of(kind: str, step: int, **fields: Any) -> Choose:
    """Chooses the events of one kind and step that have these values."""

    def choose(event: Any) -> bool:
        if event.kind != kind or event.step != step:
            return False
        return all(getattr(event, name) == value for name, value in fields.items())

    return choose


def state(role: str, step: int, name: str = "Net.fc1.weight") -> Choose:
    """Chooses the last change of a variable in training steps."""
    chosen = of("state", step, role=role, name=name)
    return lambda event: chosen(event) and event.summary is not None and event.change != "new"


def with_event(events: list[Event], before: Choose, kind: type, **fields: Any) -> list[Event]:
    """The run, with one event more before the chosen one."""
    place = next(number for number, event in enumerate(events) if before(event))
    made = kind(*events[place].header, **fields)
    return numbered([*events[:place], made, *events[place:]])


def new_value(events: Iterable[Event], choose: Choose, norm: float = 2.0) -> list[Event]:
    """The events; the chosen variable has another content."""
    summary = next(event.summary for event in events if choose(event))  # type: ignore[union-attr]
    assert summary is not None
    other = summary.replace(fingerprint="xxh3:" + "e" * 32, stats={"norm": norm})
    return edited(list(events), choose, summary=other)


def write(folder: Path, events: Iterable[Event], **manifest: Any) -> Path:
    """Write a run."""
    with TraceWriter(folder, Manifest(run_id=folder.name, **manifest)) as writer:
        for event in events:
            writer.emit(event)
    return folder


@pytest.fixture
def compare(tmp_path: Path) -> Compare:
    """Compares two lists of events, written as runs a and b."""
    number = 0

    def run(a: Iterable[Event], b: Iterable[Event], **options: Any) -> Difference:
        nonlocal number
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        paths = []
        for side, events in (("a", a), ("b", b)):
            facts, code = options.pop(f"manifest_{side}", {}), options.pop(f"code_{side}", None)
            if code is not None:
                left_out = options.get("left_out", 0)
                events = with_code(folder / side, events, code, left_out=left_out)  # noqa: PLW2901
            paths.append(write(folder / side, events, **facts))
        options.pop("left_out", None)
        return diff(*paths, **options)

    return run
