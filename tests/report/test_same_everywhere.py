"""One recorded program: every form in which its report is shown has the numbers of the JSON."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.page.making import Html
from tests.receivers.test_local_receivers import Server
from traincheck.api import check

SCRIPT = """
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(12):
        x, y = torch.randn(16, 8), torch.randint(0, 4, (16,))
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        opt.step()
"""
FORMATS = ("text", "json", "sarif", "junit", "markdown", "github")
Facts = dict[str, Any]


@dataclass
class Shown:
    """The run in all forms. outputs: of commands; folder: where files are."""

    folder: Path
    outputs: dict[str, str] = field(default_factory=dict)
    posted: list[dict[str, Any]] = field(default_factory=list)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")

    def json(self, name: str) -> Any:
        return json.loads(self.text(name))


def command(folder: Path, *words: str, status: int = 0) -> str:
    # MLflow in the process of another test leaves variables with its server and experiment.
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    environ = {**kept, "COLUMNS": "100", "MLFLOW_ALLOW_FILE_STORE": "true"}
    done = subprocess.run(
        [sys.executable, "-m", "traincheck", *words],
        cwd=folder, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout


# Their libraries are slow on a busy machine.
TRACKERS = """
[sinks.tensorboard]
directory = "board"
timeout = 300
[sinks.mlflow]
uri = "mlruns"
timeout = 300
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("everywhere")
    (folder / "train.py").write_text(textwrap.dedent(SCRIPT), encoding="utf-8")
    command(folder, "run", "-o", "run", "train.py", status=1)
    server = Server()
    reports = [word for name in FORMATS for word in ("--report", f"{name}=report.{name}")]
    receivers = ("prometheus=sink.prom", "logging=sink.log", f"webhook={server.url}")
    words = [*reports, "--html", "page.html", *(w for one in receivers for w in ("--to", one))]
    command(folder, "check", "-t", "run", *words, status=1)
    made = Shown(folder)
    (folder / "traincheck.toml").write_text(TRACKERS, encoding="utf-8")
    command(folder, "check", "-t", "run", status=1)
    made.outputs["status"] = command(folder, "status", "run", status=1)
    made.outputs["status --json"] = command(folder, "status", "run", "--json", status=1)
    made.outputs["top"] = command(folder, "top", "run")
    server.stop()
    made.posted = server.bodies()
    return made


@pytest.fixture(scope="module")
def facts(shown: Shown) -> Facts:
    """What the JSON report says."""
    report = shown.json("report.json")
    (finding,) = report["findings"]
    return {
        **report["summary"],
        **{key: finding[key] for key in ("id", "code", "severity", "title", "first_step", "fix")},
        "line": f"{finding['where']['file']}:{finding['where']['line']}",
        "findings": len(report["findings"]),
        "exit_status": report["exit_status"],
        **{severity: 0 for severity in ("info", "warning", "error")},
        finding["severity"]: 1,
    }


def found(pattern: str, text: str) -> Facts:
    """The groups of a pattern; numbers where they are digits."""
    match = re.search(pattern, " ".join(text.split()))
    assert match, (pattern, text)
    return {key: int(one) if one.isdigit() else one for key, one in match.groupdict().items()}


COUNTS = (
    r"(?P<held>\d+) held, (?P<violated>\d+) violated, (?P<not_triggered>\d+) not triggered, "
    r"(?P<not_observable>\d+) not observable"
)
RUN = r"(?P<events>\d+) events, (?P<steps>\d+) steps, (?P<ranks>\d+) rank"
ONE = r"(?P<code>TC\d+) (?P<severity>error) at step (?P<first_step>\d+): (?P<title>[A-Z][a-z ]+)"


def of_text(shown: Shown) -> Facts:
    text = shown.text("report.text")
    head = r"(?P<findings>\d+) finding, the first at step (?P<first_step>\d+)\."
    fix = r"fix (?P<fix>Call .*?backward\(\)\.) where (?P<line>\S+)"
    return found(head, text) | found(RUN, text) | found(COUNTS, text) | found(fix, text)


def of_sarif(shown: Shown) -> Facts:
    (run,) = shown.json("report.sarif")["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    summary = {**run["properties"], "checked_steps": run["properties"]["checkedSteps"]}
    del summary["checkedSteps"]
    return {
        **summary,
        "findings": len(run["results"]),
        "code": result["ruleId"],
        "severity": result["level"],
        "id": result["partialFingerprints"]["traincheck/v1"],
        "first_step": result["properties"]["firstStep"],
        "line": f"{place['artifactLocation']['uri']}:{place['region']['startLine']}",
    }


def of_junit(shown: Shown) -> Facts:
    suites = ET.fromstring(shown.text("report.junit"))
    (case,) = (one for one in suites.iter("testcase") if one.find("failure") is not None)
    failures = int(suites.attrib["failures"])
    values = {one.attrib["name"]: int(one.attrib["value"]) for one in suites.iter("property")}
    return {
        **values,
        "violated": failures,
        "held": int(suites.attrib["tests"]) - failures,
        "code": case.attrib["classname"].rpartition(".")[2],
        "line": f"{case.attrib['file']}:{case.attrib['line']}",
    }


def of_markdown(shown: Shown) -> Facts:
    text = shown.text("report.markdown")
    row = (
        r"\| (?P<first_step>\d+) \| \*\*(?P<code>TC\d+)\*\* (?P<severity>\w+) \| (?P<title>[^|]+) "
    )
    row += r"\| `(?P<line>[^`]+)`"
    return found(row, text) | found(RUN, text) | found(COUNTS, text)


def of_github(shown: Shown) -> Facts:
    text = shown.text("report.github")
    place = r"file=(?P<file>\S+?),line=(?P<line>\d+),title=(?P<code>TC\d+) (?P<title>[^:]+)"
    said = found(place, text)
    return {"code": said["code"], "title": said["title"], "line": f"{said['file']}:{said['line']}"}


def of_page(shown: Shown) -> Facts:
    text = " ".join(Html(shown.text("page.html")).texts)
    head = r"(?P<findings>\d+) finding; (?P<held>\d+) checks held over (?P<steps>\d+) steps"
    card = r"(?P<severity>error) (?P<code>TC\d+) (?P<title>[A-Z][a-z ]+) "
    card += r"Step (?P<first_step>\d+) to .*? Line (?P<line>\S+) "
    card += r".*? Fix (?P<fix>Call .*?backward\(\)\.)"
    run = r"steps (?P<steps>\d+), (?P<checked_steps>\d+) of them recorded ranks (?P<ranks>\d+) "
    run += r"events (?P<events>\d+)"
    return found(head, text) | found(card, text) | found(run, text)


def of_notebook(shown: Shown) -> Facts:
    text = " ".join(Html(check(shown.folder / "run")._repr_html_()).texts)
    head = r"(?P<findings>\d+) finding in (?P<steps>\d+) steps"
    code = r"(?P<code>TC\d+) (?P<severity>error)"
    return found(head, text) | found(code, text) | found(r"(?P<fix>Call .*?backward\(\)\.)", text)


def of_status(shown: Shown) -> Facts:
    pattern = r"checked=(?P<last>\d+) findings=(?P<findings>\d+) .*codes=(?P<code>\S+)"
    said = found(pattern, shown.outputs["status"])
    return {"checked_steps": said.pop("last") + 1, **said}


def of_status_json(shown: Shown) -> Facts:
    status = json.loads(shown.outputs["status --json"])
    (finding,) = status["findings"]
    return {
        **status["summary"],
        **{key: finding[key] for key in ("id", "code", "severity", "title", "first_step", "fix")},
        "findings": sum(status["counts"].values()),
    }


def of_top(shown: Shown) -> Facts:
    text = shown.outputs["top"]
    counts = r"checks (?P<held>\d+) held (?P<violated>\d+) violated (?P<not_triggered>\d+) not "
    line = r"ERROR (?P<code>TC\d+) at step (?P<first_step>\d+): (?P<title>[A-Z][a-z ]+steps)"
    return found(line, text) | found(counts, text)


def of_webhook(shown: Shown) -> Facts:
    report = next(one for one in shown.posted if one["kind"] == "report")
    message = next(one for one in shown.posted if one["kind"] == "finding")
    finding = message["finding"]
    assert report["report"] == shown.json("report.json")
    return {
        **report["summary"],
        **{key: finding[key] for key in ("id", "code", "severity", "title", "first_step", "fix")},
        "findings": sum(report["counts"].values()),
        "exit_status": report["exit_status"],
    }


def of_prometheus(shown: Shown) -> Facts:
    text = shown.text("sink.prom")
    said = found(r'code="(?P<code>\w+)",severity="(?P<severity>\w+)"} (?P<findings>\d+)', text)
    for name in ("steps", "checked_steps", "exit_status"):
        said |= found(rf"traincheck_{name}{{[^}}]*}} (?P<{name}>\d+)", text)
    for name in ("held", "violated", "not_triggered", "not_observable"):
        said |= found(rf'verdict="{name}"}} (?P<{name}>\d+)', text)
    return said


def of_tensorboard(shown: Shown) -> Facts:
    name = "tensorboard.backend.event_processing.event_accumulator"
    board = pytest.importorskip(name).EventAccumulator(str(shown.folder / "board"))
    board.Reload()
    numbers = {
        tag.removeprefix("traincheck/"): int(board.Scalars(tag)[-1].value)
        for tag in board.Tags()["scalars"]
    }
    return {**numbers, "first_step": board.Scalars("traincheck/error")[0].step}


def of_mlflow(shown: Shown) -> Facts:
    pytest.importorskip("mlflow")
    (document,) = shown.folder.glob("mlruns/**/report.json")
    assert json.loads(document.read_text(encoding="utf-8")) == shown.json("report.json")
    return {
        path.name: int(float(path.read_text(encoding="utf-8").splitlines()[-1].split()[1]))
        for path in shown.folder.glob("mlruns/**/metrics/traincheck/*")
    }


def of_logging(shown: Shown) -> Facts:
    text = shown.text("sink.log")
    end = r"(?P<findings>\d+) finding; (?P<held>\d+) checks held over (?P<steps>\d+) steps"
    return found(ONE, text) | found(end, text) | found(r"where: (?P<line>\S+)", text)


PLACES: dict[str, Callable[[Shown], Facts]] = {
    "text": of_text,
    "sarif": of_sarif,
    "junit": of_junit,
    "markdown": of_markdown,
    "github": of_github,
    "page": of_page,
    "notebook": of_notebook,
    "status": of_status,
    "status --json": of_status_json,
    "top": of_top,
    "webhook": of_webhook,
    "prometheus": of_prometheus,
    "logging": of_logging,
    "tensorboard": of_tensorboard,
    "mlflow": of_mlflow,
}


@pytest.mark.parametrize("name", PLACES)
def test_the_numbers_are_those_of_the_json(shown: Shown, facts: Facts, name: str) -> None:
    said = PLACES[name](shown)
    assert len(said) >= 3
    assert said == {key: facts[key] for key in said}
