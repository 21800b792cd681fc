"""Pairs of hand-made runs that differ in one thing, and their comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import ADAM, BN_BUFFERS, MLP_BN, TraceBuilder
from traincheck.diff.difference import Difference
from traincheck.diff.library import diff
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    Event,
    RngEvent,
    StateEvent,
    StepEvent,
)
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
            told.append(event.replace(indices=(first, first + 1, first + 2), drawn=3, samples=rows))
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
        facts = [options.pop(name, {}) for name in ("manifest_a", "manifest_b")]
        first = write(folder / "a", a, **facts[0])
        return diff(first, write(folder / "b", b, **facts[1]), **options)

    return run
