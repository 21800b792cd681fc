"""Reports as they are written. ``--update-golden`` accepts what is written now."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

import traincheck
from tests import checking
from tests.builders import BATCH_NORM, LINEAR, MLP, MLP_BN, TraceBuilder
from tests.checking import FIRST_RULES
from traincheck.report.registry import FORMATS, load_format
from traincheck.schema.claims import Row
from traincheck.schema.events import Event
from traincheck.schema.findings import (
    Also,
    Finding,
    Presentation,
    Report,
    Subject,
    Suppressed,
    Topic,
    Verdict,
)

GOLDEN = Path(__file__).parent / "golden"
ALL = [f"Net.{name}" for name in MLP]
DEEP = {f"layer{n}.{kind}": LINEAR for n in range(9) for kind in ("weight", "bias")}


def report_of(events: list[Event]) -> Report:
    """By rules that were there first: a new one is not to change these files."""
    return checking.report_of(events, FIRST_RULES)


def net() -> TraceBuilder:
    return TraceBuilder().process().model("Net", MLP).optimizer()


def frozen() -> TraceBuilder:
    events = TraceBuilder().process().model("Net", MLP_BN, frozen=ALL)
    return events.optimizer(names=["Net.fc2.weight", "Net.fc2.bias"]).steps(5)


def several() -> Report:
    """One finding of a rule, and others that no rule makes."""
    report = report_of(net().steps(5, style="C").build())
    first = report.findings[0]
    learned = replace(
        first,
        id="0123456789ab",
        check="inv-7",
        kind="invariant",
        code="contains",
        title="No gradient reaches Net.fc1.weight",
        severity="warning",
        first_step=3,
        step=3,
        subject=Subject(variable="Net.fc1.weight"),
    )
    early = replace(learned, id="ffff", severity="info", healthy=None, step=None, first_step=None)
    verdicts = {
        **report.verdicts,
        "inv-7": Verdict.VIOLATED,
        "inv-8": Verdict.NOT_OBSERVABLE,
    }
    return replace(
        report,
        findings=[replace(first, explains=("inv-1", "inv-2")), learned, early],
        verdicts=verdicts,
        skipped_lines=1,
        notes=("1 check not observable: the trace was recorded without batch events",),
    )


def learned() -> Report:
    finding: Finding = several().findings[1]
    message = (
        "During backward, every parameter that requires grad gets a gradient. So it is in every "
        "reference run; here, from step 3 on: no gradient (Net.fc1.weight)."
    )
    finding = replace(finding, message=message, variables=("Net.fc1.weight",), violations=1)
    return replace(several(), findings=[replace(finding, last_step=3, expected="a gradient")])


def advised() -> Report:
    """A healthy run with three pieces of advice."""
    first = several().findings[0]
    advice = [
        replace(
            first,
            id=code,
            check=code,
            code=code,
            severity="info",
            healthy=None,
            title=f"Advice {code}",
        )
        for code in ("XX9", "XX1", "XX1")
    ]
    report = report_of(net().steps(5).build())
    verdicts = dict.fromkeys(("XX1", "XX9"), Verdict.VIOLATED)
    return replace(report, findings=advice, verdicts={**report.verdicts, **verdicts})


def suppressed() -> Report:
    """Three findings, two of which are accepted."""
    report = several()
    rule, invariant, early = report.findings
    return replace(
        report,
        findings=[early],
        suppressed=[
            replace(
                rule,
                suppressed=Suppressed(by="comment", reason="on purpose", where="train.py:88"),
            ),
            replace(
                invariant,
                suppressed=Suppressed(by="baseline", reason="in the baseline", where="known.json"),
            ),
        ],
    )


def long_path() -> Report:
    """A finding in a file far down."""
    report = report_of(frozen().build())
    (finding,) = report.findings
    place = f"/home/somebody/{'a-long-folder-name/' * 5}train.py:40"
    evidence = tuple(
        event.replace(where=place) if getattr(event, "where", None) else event
        for event in finding.evidence
    )
    return replace(report, findings=[replace(finding, evidence=evidence)])


def beside() -> Report:
    """A rule's finding, with what a reference did and what else broke."""
    events = net().steps(3).steps(5, omit={"zero_grad"}).build()
    (finding,) = report_of(events).findings
    rows = (
        Row(reference="Adam.zero_grad", observed=None, mark="-"),
        Row(reference="Net.forward", observed="Net.forward (in evaluation mode)", mark="~"),
        Row(reference="  Linear.forward x2", observed="  Linear.forward x2"),
        Row(reference="backward", observed="backward  train.py:84"),
        Row(reference=None, observed=f"  A{'b' * 60}.step", mark="+"),
        Row(reference="every parameter changes in all of 20 steps", observed="x: not", mark="~"),
    )
    also = (
        Also(
            check="contains-1",
            kind="invariant",
            code="contains",
            text="In every training step, zero_grad is called.",
            first_step=3,
            violations=5,
            subjects=("torch.optim.Optimizer.zero_grad",),
        ),
        Also(
            check="order-1",
            kind="invariant",
            code="order",
            text="Between two calls of Optimizer.step there is zero_grad.",
            first_step=None,
            violations=1,
        ),
        Also(check="order-2", kind="invariant", code="order", text="x", first_step=4, violations=2),
    )
    explains = tuple(one.check for one in also)
    report = report_of(events)
    finding = replace(finding, comparison=rows, also=also, explains=explains)
    other = replace(finding, id="other", comparison=(), also=(), explains=(), first_step=5, step=5)
    return replace(report, findings=[finding, other])


REPORTS = {
    "beside": beside,
    "beside-verbose": lambda: replace(beside(), presentation=Presentation(verbose=True)),
    "advice": advised,
    "advice-shown": lambda: replace(advised(), presentation=Presentation(info=True)),
    "suppressed": suppressed,
    "suppressed-shown": lambda: replace(
        suppressed(), presentation=Presentation(suppressed=True, fail_on="info")
    ),
    "long-path": long_path,
    "healthy": lambda: report_of(net().steps(5).build()),
    "nothing-checked": lambda: report_of(net().build()),
    "one-finding": lambda: report_of(frozen().build()),
    "many-variables": lambda: report_of(
        TraceBuilder()
        .process()
        .model("Net", {**DEEP, "bn.weight": BATCH_NORM})
        .optimizer(names=["Net.bn.weight"])
        .steps(2)
        .build()
    ),
    "several-findings": several,
    "learned": learned,
}


def written(form: str, report: Report) -> str:
    stream = io.StringIO()
    load_format(form)(report, stream)
    return stream.getvalue().replace(f'"version": "{traincheck.__version__}"', '"version": "0"')


@pytest.mark.parametrize("form", sorted(FORMATS.built_in))
@pytest.mark.parametrize("name", sorted(REPORTS))
def test_golden(name: str, form: str, request: pytest.FixtureRequest) -> None:
    path = GOLDEN / name / f"report.{form}"
    found = written(form, REPORTS[name]())
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found)
    assert found == path.read_text()


def test_there_is_no_golden_file_without_a_test() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(REPORTS)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_text_fits_80_columns_and_has_no_colour(name: str) -> None:
    text = written("text", REPORTS[name]())
    folded = [line for line in text.splitlines() if not line.startswith("  where ")]
    assert max(map(len, folded)) <= 80
    assert "\x1b" not in text
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_a_path_is_never_broken() -> None:
    report = long_path()
    (place,) = {e.where for e in report.findings[0].evidence if getattr(e, "where", None)}
    assert f"  {place}\n" in written("text", report)


def test_text_is_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    load_format("text")(REPORTS["one-finding"](), stream)
    assert "\x1b" in stream.getvalue()


def test_markup_in_a_name_is_only_text() -> None:
    report = REPORTS["one-finding"]()
    odd = replace(report.findings[0], title="[red]x[/red] [/]", variables=("Net[0].a",))
    text = written("text", replace(report, findings=[odd]))
    assert "[red]x[/red] [/]" in text
    assert "Net[0].a" in text


SUMMARY = {
    "events",
    "steps",
    "checked_steps",
    "ranks",
    "held",
    "violated",
    "not_triggered",
    "not_observable",
}
FINDING = {
    "id",
    "check",
    "kind",
    "code",
    "severity",
    "title",
    "message",
    "step",
    "first_step",
    "last_step",
    "rank",
    "stage",
    "violations",
    "subject",
    "expected",
    "observed",
    "evidence",
    "likely_cause",
    "fix",
}
BESIDE = {
    "tier",
    "healthy_programs",
    "variables",
    "topic",
    "where",
    "excerpt",
    "also_broke",
}
CONTRACT = ["schema_version", "summary", "first_violation", "findings"]


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_json_has_the_keys_of_the_contract_first(name: str) -> None:
    report = REPORTS[name]()
    document = json.loads(written("json", report))
    extra = {"suppressed"} if report.presentation.suppressed else set()
    assert list(document)[: len(CONTRACT)] == CONTRACT
    beside = {
        "exit_status", "tally", "nothing_checked", "notes", "suspect_checkpoints", "not_observable",
    }  # fmt: skip
    assert set(document) == {*CONTRACT, *beside} | extra
    assert document["exit_status"] == report.exit_status
    assert document["schema_version"] == 1
    assert set(document["summary"]) == SUMMARY
    first = document["findings"][0] if document["findings"] else None
    assert document["first_violation"] == first
    assert len(document["findings"]) == len(report.findings)
    for finding in document["findings"]:
        assert list(finding)[: len(FINDING)] == [key for key in finding if key in FINDING]
        assert set(finding) == FINDING | BESIDE
        assert set(finding["subject"]) == {"api", "variable", "module"}
        assert all({"k", "n", "t", "s", "g"} <= set(event) for event in finding["evidence"])


def test_json_names_the_topic_of_a_finding() -> None:
    report = several()
    first, *others = report.findings
    report = replace(report, findings=(replace(first, topic=Topic.MASK), *others))
    topics = [finding["topic"] for finding in json.loads(written("json", report))["findings"]]
    assert topics == ["mask", *[None for _ in others]]


def test_json_tells_what_the_text_notes() -> None:
    report = replace(several(), unobservable={"TC101": "no batch events"})
    document = json.loads(written("json", report))
    text = " ".join(written("text", report).split())
    assert len(document["notes"]) > 1
    assert all(note in text for note in document["notes"])
    assert len(document["not_observable"]) == document["summary"]["not_observable"]
    assert document["not_observable"] == [
        {"check": "TC101", "code": "TC101", "reason": "no batch events"}
    ]


def test_json_of_a_report_without_notes_has_empty_lists() -> None:
    document = json.loads(written("json", REPORTS["healthy"]()))
    assert document["notes"] == document["not_observable"] == []


def test_json_counts_verdicts() -> None:
    summary = json.loads(written("json", several()))["summary"]
    assert summary["violated"] == 2
    assert summary["not_observable"] == 1
    assert summary["held"] + summary["not_triggered"] == 4
