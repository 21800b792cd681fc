"""The page of a run: what it shows without JavaScript, and that nothing of a trace is markup."""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path

import pytest

from benchmarks.report_page import write
from tests.builders import MLP, TraceBuilder
from tests.page.making import Html, page_of_events, page_of_folder, written
from traincheck.api import make_engine
from traincheck.diff.library import diff
from traincheck.page import sections
from traincheck.page.build import Shown, Watcher, page_of, page_of_run
from traincheck.page.render import json_text
from traincheck.page.timeline import Timeline
from traincheck.report.json_report import report_json
from traincheck.schema.events import CheckpointEvent, MarkEvent
from traincheck.schema.words import printable
from traincheck.store.manifest import Manifest
from traincheck.store.reader import TraceReader

HOSTILE = (
    "</script><script>boom()</script>",
    "<img src=x onerror=boom()>",
    "<svg/onload=boom()>",
    "<!--",
    "-->",
    "<![CDATA[",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "{# x #}",
    "${7*7}",
    "'\"><b>",
    "` onmouseover=boom()",
    "javascript:boom()",
    "&lt;b&gt;",
    "&amp;",
    "\u202egnp.exe",
    "\u2066hidden\u2069",
    "\u200bzero",
    "\u2028line",
    "\u2029para",
    "\x00null",
    "\x07bell",
    "\x1b[31mred",
    "\r\nSet-Cookie",
    "a\tb",
    "a\nb",
    "\\u003cb\\u003e",
    "%3Cb%3E",
    "../../etc/passwd",
    "C:\\windows",
    "::error::x",
    "##[error]x",
    "名前",
    "é\u0301",
    "🙂🙃",
    "x" * 10_000,
    "</style><style>*{display:none}",
    "</title><h1>x",
    "</textarea>",
    "<a href='https://example.com'>x</a>",
)
SECTIONS = ("findings", "timeline", "maps", "steps", "observed")


def broken(steps: int = 6) -> TraceBuilder:
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    return trace.steps(steps, omit={"zero_grad"})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks whose variables have norms."""
    folder = tmp_path_factory.mktemp("large") / "run"
    write(folder, 30, layers=12, spike=(17, "Net.layers.5"))
    return folder


def test_a_finding_is_readable_without_scripts(tmp_path: Path) -> None:
    html, report = page_of_events(tmp_path / "run", broken().build())
    page = Html(html)
    (finding,) = report_json(report)["findings"]
    keys = ("code", "severity", "title", "expected", "observed", "likely_cause", "fix")
    for text in (finding[key] for key in keys):
        assert " ".join(text.split()) in page.text
    assert f"{finding['where']['file']}:{finding['where']['line']}" in page.text
    assert page.text.index(finding["title"]) < page.text.index("What was observed")


def test_its_numbers_are_those_of_json(tmp_path: Path) -> None:
    html, report = page_of_events(tmp_path / "run", broken().build())
    page, told = Html(html), report_json(report)
    summary = told["summary"]
    assert f"{summary['steps']}, {summary['checked_steps']} of them recorded" in page.text
    assert f"{summary['held']} held, {summary['violated']} violated" in page.text
    assert f"{told['findings'][0]['violations']} times" in page.text
    marks = [(mark["step"], mark["text"]) for mark in page.data["marks"]]
    (finding,) = told["findings"]
    assert (finding["first_step"], f"{finding['code']}: {finding['title']}") in marks


def test_the_header_has_moments_and_versions() -> None:
    timeline = Timeline()
    timeline.add(
        MarkEvent(
            seq=0, time_ns=0, rank=0, stream="p1-t0", step=0, stage="init", text="process",
            data={"torch": "2.13.0", "python": "3.12.1", "argv0": "train.py"},
        )
    )  # fmt: skip
    facts = dict(sections.environment(None, None, timeline))
    assert facts == {"versions": "python 3.12.1, torch 2.13.0"}
    manifest = Manifest(
        created_with={"traincheck": "0.1.0"},
        started="2026-11-27T16:33:14.042+00:00",
        ended="2026-11-27T16:40:00",
        exit_status=1,
    )
    facts = dict(sections.environment(None, manifest, timeline))
    assert facts["versions"] == "traincheck 0.1.0, python 3.12.1, torch 2.13.0"
    assert facts["started"] == "2026-11-27 16:33:14 UTC"
    assert facts["ended"] == "2026-11-27 16:40:00, exit status 1"


def test_a_run_without_a_program_is_named_by_its_folder(tmp_path: Path) -> None:
    html, report = page_of_events(tmp_path / "mine", broken().build())
    assert not report.program
    assert "<h1>mine</h1>" in html


def test_a_run_without_findings(large: Path) -> None:
    html, report = page_of_folder(large)
    page = Html(html)
    assert report.findings == []
    assert "no findings;" in page.text
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert ids >= {*SECTIONS, "ranks"}


def test_an_empty_run_says_what_to_do(tmp_path: Path) -> None:
    html, _ = page_of_events(tmp_path / "run", TraceBuilder().process().build())
    page = Html(html)
    assert ("p", {"class": "verdict warning"}) in page.tags
    assert "check that the program reaches optimizer.step()" in page.text


def test_the_same_trace_gives_the_same_bytes(large: Path, tmp_path: Path) -> None:
    again = tmp_path / "elsewhere" / large.name
    shutil.copytree(large, again)
    assert page_of_folder(large)[0] == page_of_folder(again)[0]


def test_nothing_is_loaded_and_only_its_scripts_run(large: Path) -> None:
    page = Html(page_of_folder(large)[0])
    for _, attributes in page.tags:
        assert not {"src", "srcset", "action", "style", "onclick"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for t, a in page.tags if "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none'")
    for attributes, text in page.scripts:
        if "id" not in attributes:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy


def test_hostile_names_are_text(tmp_path: Path) -> None:
    assert len(HOSTILE) == 40
    trace = TraceBuilder().process(argv0=HOSTILE[0])
    for name in HOSTILE:
        trace.model(name, {f"{name}.weight": "torch.nn.modules.linear.Linear"})
        trace.mark(name)
    trace.optimizer().steps(2, omit={"zero_grad"})
    for name in HOSTILE:
        trace.call(name, where=name, owner=name)
        trace.add(CheckpointEvent, op="save", path=name)
    html, report = page_of_events(tmp_path / "run", trace.steps(1, omit={"zero_grad"}).build())
    page = Html(html)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"img", "svg", "iframe", "textarea", "object"}
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert sum(tag == "h1" for tag, _ in page.tags) == 1
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    assert report.findings
    shown = [name for name in HOSTILE if " ".join(printable(name)[:200].split()) in page.text]
    assert shown == list(HOSTILE)
    assert len(html) < 400_000
    assert not any(character in html for character in "\u202e\u2066\u2028\x00\x1b\x07")


def test_json_in_a_page_ends_no_element() -> None:
    text = json_text({"a": list(HOSTILE)})
    assert not set(text) & set("<>&\u2028\u2029")


def test_a_step_with_a_violation_is_shown_before_and_after(tmp_path: Path) -> None:
    html, report = page_of_events(tmp_path / "run", broken().build())
    page = Html(html)
    steps = [a["data-inspected"] for tag, a in page.tags if "data-inspected" in a]
    assert str(report.findings[0].first_step) in steps
    assert "train.py:84" in page.text


def test_a_loop_is_not_hidden_by_the_initialization_of_its_model() -> None:
    trace = TraceBuilder().process()
    for name in ("normal_", "zeros_") * 30:
        trace.call(f"torch.nn.init.{name}")
    trace.call("torch.nn.init.ones_", where="train.py:3")
    trace.call("torch.optim.Optimizer.step", where="/usr/lib/site-packages/x/trainer.py:7")
    watcher = Watcher()
    for event in trace.end_step().build():
        watcher.add(event)
    rows = watcher.inspector.steps[0].rows
    assert [(row.what, row.where, row.times) for row in rows] == [
        ("torch.nn.init.*", "", 60),
        ("torch.nn.init.ones_", "train.py:3", 1),
        ("torch.optim.Optimizer.step", "x/trainer.py:7", 1),
    ]


def test_norms_before_and_after_a_step(large: Path) -> None:
    watcher = Watcher([(17, 1)])
    for event in TraceReader(large).events():
        watcher.add(event)
    (step,) = (one for one in watcher.inspector.steps if one.rank == 1)
    assert (step.step, step.is_disputed) == (17, True)
    change = next(one for one in step.changes if one.role == "parameter")
    assert change.before is not None
    assert change.after is not None
    assert change.before != change.after


def test_a_run_beside_another_marks_the_step_of_diff(large: Path, tmp_path: Path) -> None:
    good = written(tmp_path / "good", broken(4).build())
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(2, omit={"zero_grad"})
    trace.new_fingerprint()
    bad = written(tmp_path / "bad", trace.steps(2, omit={"zero_grad"}).build())
    difference = diff(good, bad)
    assert difference.first is not None
    reader, other = TraceReader(bad), TraceReader(good)
    html, _ = page_of_run(make_engine(), reader, against=other, difference=difference)
    page = Html(html)
    (mark,) = (one for one in page.data["marks"] if one["kind"] == "difference")
    assert mark["step"] == difference.first.step_b
    assert difference.first.message.split(" of ", maxsplit=1)[0] in page.text
    assert {one["label"] for one in page.data["curves"]} >= {"A good", "B bad"}


def test_results_that_are_known_are_shown_without_a_check(large: Path) -> None:
    html, report = page_of_folder(large)
    reader = TraceReader(large)
    again = page_of(reader, Shown(report=report))
    assert Html(again).data == Html(html).data
    alone = Html(page_of(reader, Shown(difference=diff(large, large))))
    assert "SAME" in alone.text
    assert "Findings" not in alone.text
    assert "What was observed" not in alone.text
