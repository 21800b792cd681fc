"""When a report says that nothing was checked, and the exit status that follows from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import MLP, TraceBuilder, healthy_run
from traincheck.api import make_engine
from traincheck.check.engine import watch
from traincheck.report.sentences import lack
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import (
    FINDINGS,
    NOTHING_CHECKED,
    Finding,
    Presentation,
    Report,
    Verdict,
)


def report_on(events: list[Event], **chosen: tuple[str, ...]) -> Report:
    engine = make_engine(**chosen)
    watch(engine, events)
    return engine.finish()


def made_only() -> list[Event]:
    """A program that makes a model and an optimizer, and then finds no data."""
    return list(TraceBuilder().process().model("Net", MLP).optimizer().build())


def unrecorded(events: list[Event]) -> list[Event]:
    return [e.replace(recorded=False) if isinstance(e, StepEvent) else e for e in events]


def reason(report: Report) -> str:
    lacking = lack(report)
    return "" if lacking is None else lacking.reason


def test_a_run_that_was_checked_is_not_empty() -> None:
    report = report_on(list(healthy_run(4)))
    assert (report.checked_steps, report.exit_status, lack(report)) == (4, 0, None)


@pytest.mark.parametrize(
    ("events", "chosen", "why"),
    [
        ([], {}, "nothing was recorded"),
        (made_only(), {}, "no training step was recorded"),
        (unrecorded(list(healthy_run(4))), {}, "none of the 4 steps was recorded"),
        (list(healthy_run(4)), {"select": ("TC603",)}, "no check was triggered by this run"),
    ],
)
def test_a_run_in_which_nothing_was_checked(events, chosen, why) -> None:
    report = report_on(events, **chosen)
    assert report.exit_status == NOTHING_CHECKED
    assert reason(report) == f"nothing was checked: {why}"
    allowed = replace(report, presentation=Presentation(allow_empty=True))
    assert allowed.exit_status == 0
    assert reason(allowed) == reason(report), "it is told all the same"


def of(severity: str) -> Finding:
    """A finding of a run without a step."""
    (finding, *_) = report_on(
        list(
            TraceBuilder()
            .process()
            .model("Net", MLP)
            .optimizer()
            .steps(4, omit={"zero_grad"})
            .build()
        )
    ).findings
    return replace(finding, severity=severity)


@pytest.mark.parametrize(
    ("severity", "fail_on", "status"),
    [
        ("error", "warning", FINDINGS),
        ("warning", "error", 0),  # a rule judged, whatever it is worth to the user
        ("info", "warning", NOTHING_CHECKED),  # advice is given of a model that was made
        ("info", "info", FINDINGS),
    ],
)
def test_a_finding_before_any_step(severity: str, fail_on: str, status: int) -> None:
    report = report_on(made_only())
    finding = of(severity)
    verdicts = {**report.verdicts, finding.check: Verdict.VIOLATED}
    presentation = Presentation(fail_on=fail_on)
    report = replace(report, verdicts=verdicts, findings=[finding], presentation=presentation)
    assert report.exit_status == status


@pytest.mark.parametrize(("required", "status"), [(4, 0), (5, NOTHING_CHECKED)])
def test_steps_that_are_required(required: int, status: int) -> None:
    report = report_on(list(healthy_run(4)))
    report = replace(report, presentation=Presentation(require_steps=required))
    assert report.exit_status == status
    assert reason(report) == ("4 of the 5 required steps were recorded" if status else "")
