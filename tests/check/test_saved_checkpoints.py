"""Checkpoints that were written since an error began are named; others are not."""

from __future__ import annotations

import io
from typing import Any

import orjson
import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import report_of
from traincheck.check import run_overview
from traincheck.check.run_overview import suspect_note
from traincheck.report.json_report import write_json
from traincheck.report.text_report import write_text
from traincheck.schema.events import CheckpointEvent
from traincheck.schema.findings import Report

AT_STEP = {
    0: ["early.pt", "last.pt"],
    3: ["last.pt"],
    4: ["out/checkpoint-4/model.pt", "out/checkpoint-4/optimizer.pt", None],
}


def save(run: TraceBuilder, path: str | None, **fields: Any) -> None:
    run.add(CheckpointEvent, op="save", path=path, where="train.py:9", **fields)


def report(*, broken: bool) -> Report:
    """Where it is broken, gradients of step 0 are used again at step 1."""
    run = TraceBuilder().process().model("Net", MLP).optimizer()
    save(run, "initial.pt")
    for step in range(6):
        run.step(omit={"zero_grad"} if broken else ())
        for path in AT_STEP.get(step, ()):
            save(run, path)
    return report_of(run.build())


def test_checkpoints_since_an_error_are_named_in_text_and_json() -> None:
    found = report(broken=True)
    assert [(f.severity, f.first_step) for f in found.findings] == [("error", 1)]
    names = "last.pt (step 3), out/checkpoint-4/ (step 4), a file written by train.py:9 (step 4)"
    assert suspect_note(found).endswith(f"not to be resumed from: {names}")
    text, document = io.StringIO(), io.StringIO()
    write_text(found, text)
    assert names in " ".join(text.getvalue().split())
    write_json(found, document)
    suspects = orjson.loads(document.getvalue())["suspect_checkpoints"]
    assert [(save["path"], save["step"]) for save in suspects] == [
        ("last.pt", 3),
        ("out/checkpoint-4/model.pt", 4),
        ("out/checkpoint-4/optimizer.pt", 4),
        (None, 4),
    ]
    assert suspects[0] == {"path": "last.pt", "step": 3, "rank": 0, "where": "train.py:9"}


def test_those_of_a_healthy_run_are_not() -> None:
    found = report(broken=False)
    assert not found.findings
    assert len(found.saves) == 5
    assert suspect_note(found) == ""
    document = io.StringIO()
    write_json(found, document)
    assert orjson.loads(document.getvalue())["suspect_checkpoints"] == []


def test_no_more_saves_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_overview, "_MAX_SAVES", 2)
    assert [save.step for save in report(broken=True).saves] == [4, 4]
