"""traincheck report, and --html of the commands that check, compare and profile."""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.builders import MLP, TraceBuilder
from tests.page.making import Html, codes, written
from tests.page.test_page import broken
from traincheck.cli import main as entry
from traincheck.page.encode import ABSENT, BROKEN
from traincheck.schema.events import Event
from traincheck.store.reader import TraceReader

PROGRAM = """\
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x in torch.utils.data.DataLoader(torch.randn(128, 8), batch_size=8):
    loss = (model(x) - x.mean(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
FIX = "Call optimizer.zero_grad() once in every iteration"


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(written(tmp_path / "bad", broken().build()))


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(6)
    return str(written(tmp_path / "good", trace.build()))


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return str(path)


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["traincheck", *words])
    return entry.main()


def page(path: Path) -> Html:
    return Html(path.read_text(encoding="utf-8"))


def test_a_page_is_written(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "report", run) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "1 finding" in err
    assert "page in report.html" in err
    assert FIX in page(tmp_path / "report.html").text


def test_against_another_run(
    run: str, healthy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.html"
    assert call(monkeypatch, "report", run, "--against", healthy, "-o", str(out)) == 0
    found = page(out)
    assert "First difference" in found.text
    assert FIX in found.text
    assert call(monkeypatch, "diff", healthy, run, "--format", "json", "-o", f"{out}.json") == 1
    first = json.loads(Path(f"{out}.json").read_text())["first"]
    (mark,) = (mark for mark in found.data["marks"] if mark["kind"] == "difference")
    assert mark["step"] == first["step_b"]


def test_it_opens_in_a_browser(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open_new_tab", opened.append)
    out = tmp_path / "x.html"
    assert call(monkeypatch, "report", run, "-o", str(out), "--open") == 0
    assert opened == [out.as_uri()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "nowhere"),
        (["report", "RUN", "-o", "."], "is a directory"),
        (["report", "RUN", "--against", "nowhere"], "nowhere"),
        (["check", "-t", "RUN", "--html", "no/such/x.html"], "is not a directory"),
        (["diff", "RUN", "RUN", "--html", "no/such/x.html"], "is not a directory"),
        (["run", "--html", "no/such/x.html", "train.py"], "is not a directory"),
        (["profile", "--html", "x.html", "--diff", "a.json", "b.json"], "writes no page"),
    ],
)
def test_bad_usage(
    words: list[str],
    message: str,
    run: str,
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = [run if word == "RUN" else word for word in words]
    assert call(monkeypatch, *found) == entry.BAD_USAGE
    err = capsys.readouterr().err
    assert message in err
    assert "fix:" in err


def test_html_of_check_is_the_same_page(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, check = tmp_path / "report.html", tmp_path / "check.html"
    assert call(monkeypatch, "report", run, "-o", str(report)) == 0
    assert call(monkeypatch, "check", "-t", run, "--html", str(check)) == 1
    assert report.read_bytes() == check.read_bytes()


def test_html_of_check_reads_the_run_once(
    run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, events = [], TraceReader.events

    def counted(reader: TraceReader) -> Iterator[Event]:
        passes.append(reader.path)
        return events(reader)

    monkeypatch.setattr(TraceReader, "events", counted)
    assert call(monkeypatch, "check", "-t", run, "--html", str(tmp_path / "check.html")) == 1
    assert passes == [Path(run)]


def test_html_of_diff_has_no_checks(
    run: str, healthy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.html"
    assert call(monkeypatch, "diff", healthy, run, "--html", str(out)) == 1
    found = page(out)
    assert "FIRST DIFFERENCE" in found.text
    assert "Findings" not in found.text
    assert {"A good", "B bad"} <= {curve["label"] for curve in found.data["curves"]}


def test_html_of_run_and_of_a_program_without_a_finding(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.html"
    assert call(monkeypatch, "run", "--html", str(out), script) == 1
    found = page(out)
    assert FIX in found.text
    assert "train.py:8" in found.text
    assert [curve["name"] for curve in found.data["curves"]][:1] == ["loss"]
    assert found.data["maps"][0]["name"] == "gradient norm"
    assert found.data["maps"][0]["rows"] == ["Sequential.0", "Sequential.2"]
    healthy = tmp_path / "healthy.py"
    healthy.write_text(
        PROGRAM.replace("    loss.backward()", "    model.zero_grad(); loss.backward()")
    )
    assert call(monkeypatch, "run", "--html", str(out), str(healthy)) == 0
    assert "no findings" in page(out).text  # although the trace is not kept


def test_nan_is_not_finite_and_not_missing(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = PROGRAM.replace(
        "    loss.backward()", "    loss = loss * float('nan')\n    loss.backward()"
    )
    Path(script).write_text(broken)
    out = tmp_path / "x.html"
    assert call(monkeypatch, "run", "--html", str(out), script) == 1
    found = page(out)
    (loss,) = (curve for curve in found.data["curves"] if curve["name"] == "loss")
    assert set(struct.unpack("<16f", base64.b64decode(loss["high"]))) == {math.inf}
    drawn = found.data["maps"][0]
    assert drawn["name"] == "gradient norm"
    assert all({BROKEN} <= set(row) <= {ABSENT, BROKEN} for row in codes(drawn))
    assert "not finite" in found.text


def test_a_page_that_fails_does_not_hide_the_summary(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("traincheck.page.build.page_from", fails)
    assert call(monkeypatch, "run", "--html", "x.html", script) == 1
    err = capfd.readouterr().err
    assert "no page: ZeroDivisionError('planted')" in err
    assert "1 finding in 16 steps" in err


def test_a_monitored_run_has_maps_of_activations_and_updates(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "x.html"
    assert call(monkeypatch, "monitor", "-o", "monitored", script) == 0
    assert call(monkeypatch, "report", "monitored", "-o", str(out)) == 0
    maps = {drawn["name"]: drawn["rows"] for drawn in page(out).data["maps"]}
    assert list(maps)[:2] == ["activation rms", "update over parameter"]
    assert maps["activation rms"] == [
        "Sequential", "Sequential.0", "Sequential.1", "Sequential.2",
    ]  # fmt: skip


def test_html_of_profile_has_the_layers(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, trace = tmp_path / "x.html", tmp_path / "trace"
    words = ["--step", "5", "--steps", "2", "--html", str(out), "--trace", str(trace), script]
    assert call(monkeypatch, "profile", *words) == 0
    found = page(out)
    assert "Layers of one step" in found.text
    assert "first nan" in found.text.lower()
    assert "What was observed" not in found.text
    again = tmp_path / "y.html"
    assert call(monkeypatch, "profile", str(trace), "--html", str(again)) == 0
    assert out.read_bytes() == again.read_bytes()
    assert call(monkeypatch, "report", str(trace), "-o", str(again)) == 0
    assert "Layers of one step" in page(again).text
