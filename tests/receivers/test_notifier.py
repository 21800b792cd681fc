"""A receiver that raises, hangs, dies or is missing is reported once, and nothing else changes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.builders import MLP, TraceBuilder
from tests.receivers.conftest import broken
from traincheck.cli import main as entry
from traincheck.errors import UsageError
from traincheck.receivers import notifier as sending
from traincheck.receivers.base import COMMAND, RECEIVERS, load_receiver
from traincheck.receivers.messages import RunName
from traincheck.receivers.notifier import Notifier
from traincheck.receivers.routes import Route, routes
from traincheck.schema.findings import Finding, Report
from traincheck.store.writer import TraceWriter

PLUGIN = """
import json, os, sys, time
from traincheck.receivers.base import Receiver


class Kept(Receiver):
    target = "file"
    takes_progress = True

    def __init__(self, file="kept.jsonl"):
        self.file = file

    def keep(self, message):
        print("a library that prints")
        with open(self.file, "a") as stream:
            stream.write(json.dumps(message) + "\\n")

    finding = withdrawn = progress = report = keep

    def close(self):
        return f"see {self.file}"


class Raising(Receiver):
    def finding(self, message):
        raise RuntimeError("no quota\\nTraceback")

    report = finding


class Hanging(Receiver):
    patience_s = 0.5

    def finding(self, message):
        time.sleep(600)


class Dying(Receiver):
    def finding(self, message):
        os._exit(7)


class Unmade(Receiver):
    def __init__(self):
        import no_such_library


class Slow(Receiver):
    def report(self, message):
        time.sleep(1.0)
        open("slow", "w").close()
"""
NAMED = ("Kept", "Raising", "Hanging", "Dying", "Unmade", "Slow")


@pytest.fixture(autouse=True)
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with receivers: kept, raising, hanging, dying, unmade, slow and missing."""
    site = tmp_path / "site"
    (site / "others-1.0.dist-info").mkdir(parents=True)
    (site / "other_sinks.py").write_text(PLUGIN)
    entries = "".join(f"{name.lower()} = other_sinks:{name}\n" for name in NAMED)
    text = f"[traincheck.sinks]\n{entries}missing = no_such_module:Receiver\nodd = json:dumps\n"
    (site / "others-1.0.dist-info" / "entry_points.txt").write_text(text)
    (site / "others-1.0.dist-info" / "METADATA").write_text("Name: others\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("other_sinks", None)


class Told(list[str]):
    """Lines for the user."""


def sent(*to: str, report: Report | None = None, **options: object) -> Told:
    """Send the broken report to receivers. Returns what the user is told."""
    told, report = Told(), report or broken()
    with Notifier(routes(to, {}), RunName(id="r"), told.append, **options) as notifier:
        notifier.report(report)
    return told


def kept() -> list[dict]:
    return [json.loads(line) for line in Path("kept.jsonl").read_text().splitlines()]


def test_findings_come_before_the_report() -> None:
    assert sent("kept") == ["kept: see kept.jsonl"]
    assert [message["kind"] for message in kept()] == ["finding", "report"]
    assert kept()[0]["counts"] == {"info": 0, "warning": 0, "error": 1}
    assert kept()[1]["report"]["exit_status"] == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("raising", "RuntimeError: no quota"),
        ("hanging", "not finished after 0.5 s; given up"),
        ("dying", "its process ended with status 7"),
        ("unmade", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("missing", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("odd", "TypeError: json:dumps is not a subclass of traincheck.receivers.base.Receiver"),
        ("webhook=$NO_SUCH_VARIABLE", "the environment variable NO_SUCH_VARIABLE is not set"),
    ],
)
def test_a_receiver_that_fails_is_reported_once_and_disturbs_no_other(
    name: str, reason: str
) -> None:
    told = sent(name, "kept")
    plain = name.partition("=")[0]
    assert sorted(told) == ["kept: see kept.jsonl", f"receiver {plain} failed: {reason}"]
    assert len(kept()) == 2


def test_no_process_and_no_thread_is_left() -> None:
    before = set(threading.enumerate())
    sent("hanging", "kept", "dying")
    left = [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]
    assert not left
    names = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(Path.cwd() / "site") not in names.stdout


def test_a_slow_receiver_is_waited_for() -> None:
    assert sent("slow") == []
    assert Path("slow").exists()


def test_the_check_never_waits_for_a_receiver() -> None:
    told, report = Told(), broken()
    notifier = Notifier(routes(["hanging"], {}), RunName(id="r"), told.append)
    for number in range(2000):  # more than a pipe holds
        finding = replace(report.findings[0], first_step=number)
        notifier.finding(finding, report)
    assert told == []  # nobody waited for the receiver, which sleeps ten minutes
    notifier.close()
    assert len(told) == 1


def test_a_message_that_cannot_be_made_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(sending, "finding_message", fail)
    monkeypatch.setattr(sending, "report_message", fail)
    told = sent("kept")
    assert told[0] == "receivers: a message could not be made: RuntimeError: a fault of ours"
    assert len(told) == 2


def test_a_finding_is_sent_once_and_withdrawn_once() -> None:
    report = broken()
    finding = report.findings[0]
    with Notifier(routes(["kept"], {}), RunName(id="r"), Told().append) as notifier:
        notifier.finding(finding, report)
        notifier.finding(replace(finding, violations=9), report)
        notifier.withdrawn(finding)
        notifier.withdrawn(finding)
    first, second = kept()
    assert (first["kind"], second["kind"]) == ("finding", "withdrawn")
    assert second["counts"]["error"] == 0


def test_a_known_finding_is_not_sent() -> None:
    sent("kept", is_known=lambda finding: finding.code == "TC201")
    assert [message["kind"] for message in kept()] == ["report"]


def test_findings_below_the_level_are_not_sent_singly() -> None:
    report = broken()
    advice: Finding = replace(report.findings[0], severity="info")
    report = replace(report, findings=[advice])
    sent("kept", report=report)
    assert [message["kind"] for message in kept()] == ["report"]
    Path("kept.jsonl").unlink()
    with Notifier(routes([], {"kept": {"level": "info"}}), RunName(id="r"), print) as notifier:
        notifier.report(report)
    assert [message["kind"] for message in kept()] == ["finding", "report"]


def test_progress_is_sent_at_intervals() -> None:
    now = [0.0]
    made = []

    def make() -> Report:
        made.append(now[0])
        return broken()

    options = {"clock": lambda: now[0]}
    with Notifier(routes(["kept"], {}), RunName(id="r"), Told().append, **options) as notifier:
        for second in range(40):
            now[0] = float(second)
            notifier.progress(make)
    assert made == [15.0, 30.0]
    assert [message["kind"] for message in kept()] == ["progress", "progress"]
    assert kept()[0]["summary"]["steps"] == broken().steps


def test_a_closed_pipe_ends_the_process_of_a_hanging_receiver(plugin: Path) -> None:
    """As when the command itself is killed."""
    code = (
        "import sys; sys.path[:] = {!r}; from traincheck.receivers import worker; {}worker.main()"
    )
    faster = "worker._PATIENCE_S = 0.2; "
    process = subprocess.Popen(
        [sys.executable, "-c", code.format(sys.path, faster)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    messages = [
        {"kind": "open", "entry": "other_sinks:Hanging", "settings": {}},
        {"kind": "finding"},
    ]
    process.communicate("".join(f"{json.dumps(one)}\n" for one in messages).encode(), timeout=300)
    assert process.returncode == 1


# --- which receivers ------------------------------------------------------------------------------


@pytest.mark.real_process
def test_every_receiver_of_ours_can_be_loaded_without_its_library() -> None:
    code = (
        "import sys; from traincheck.receivers.base import RECEIVERS, load_receiver\n"
        "for name in RECEIVERS.built_in: load_receiver(RECEIVERS.find(name))\n"
        "print({'wandb', 'mlflow', 'tensorboard', 'torch', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    assert all(
        load_receiver(RECEIVERS.find(name)).target for name in RECEIVERS.built_in if name != COMMAND
    )


def test_the_command_line_replaces_the_choice_of_the_file() -> None:
    tables = {"webhook": {"url": "https://x", "when": "always"}, "logging": {"level": "error"}}
    assert [one.name for one in routes([], tables)] == ["webhook", "logging"]
    assert routes(["none"], tables) == []
    (one,) = routes(["webhook=https://y"], tables)
    assert one.settings == {"url": "https://y", "when": "always"}
    (one,) = routes(["logging"], tables)
    assert (one.level, one.settings) == ("error", {})
    assert [one.name for one in routes(["none"], tables, ["true"])] == ["command"]


@pytest.mark.parametrize(
    ("to", "tables", "message"),
    [
        (["wanbd"], {}, "no receiver 'wanbd'\n  fix: did you mean wandb"),
        (["webhook"], {}, "--to webhook lacks url\n  fix: --to webhook=URL"),
        (["raising=x"], {}, "raising has no target"),
        (["command=rm"], {}, "use --on-finding COMMAND"),
        ([], {"command": {"line": "rm"}}, r"\[sinks.command\] would let a file run commands"),
        ([], {"wandb": {"projekt": "x"}}, r"\[sinks.wandb\] has no setting 'projekt'"),
        ([], {"wandb": {"level": "loud"}}, "has level 'loud'"),
        ([], {"wandb": {"timeout": True}}, "has timeout True"),
        ([], {"wandb": {"timeout": 0}}, "has timeout 0"),
    ],
)
def test_bad_usage(to: list, tables: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        routes(to, tables)


def test_a_timeout_of_the_file() -> None:
    (one,) = routes([], {"wandb": {"timeout": 3}})
    assert isinstance(one, Route)
    assert one.patience_s == 3


# --- the command ---------------------------------------------------------------------------------

Check = Callable[..., int]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    builder = TraceBuilder().process().model("Net", MLP).optimizer()
    with TraceWriter(tmp_path / "run") as writer:
        for event in builder.steps(4, omit={"zero_grad"}).build():
            writer.emit(event)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck-check", "-t", "run", *words])
        return entry.check_main()

    return run


@pytest.mark.parametrize("form", ["text", "json", "markdown"])
@pytest.mark.parametrize("follow", [(), ("--follow", "--stall-timeout", "0.1")])
def test_the_report_is_the_same_with_receivers_that_fail(
    check: Check, capsys: pytest.CaptureFixture, form: str, follow: tuple[str, ...]
) -> None:
    words = ("--format", form, "--select", "TC201", *follow)
    assert check(*words) == 1
    plain = capsys.readouterr()
    bad = [word for name in ("hanging", "raising", "dying", "missing") for word in ("--to", name)]
    assert check(*words, *bad, "--on-finding", "false") == 1
    found = capsys.readouterr()
    assert found.out == plain.out
    failed = [line for line in found.err.splitlines() if " failed: " in line]
    assert len(failed) == 5
    assert all(line.startswith("traincheck: receiver ") for line in failed)


def test_numbers_are_those_of_the_report(check: Check, capsys: pytest.CaptureFixture) -> None:
    assert check("--format", "json", "--to", "kept", "--to", "prometheus=run.prom") == 1
    document = json.loads(capsys.readouterr().out)
    finding, report = kept()
    assert report["report"] == document
    assert finding["finding"] == document["first_violation"]
    assert report["summary"] == document["summary"]
    text = Path("run.prom").read_text()
    for verdict in ("held", "violated", "not_triggered", "not_observable"):
        assert f'verdict="{verdict}"}} {document["summary"][verdict]}\n' in text
    check("--format", "markdown")
    assert report["markdown"] == capsys.readouterr().out


def test_receivers_of_the_configuration(check: Check) -> None:
    Path("traincheck.toml").write_text('[sinks.kept]\nfile = "configured"\n')
    assert check() == 1
    assert len(Path("configured").read_text().splitlines()) == 2
    assert check("--to", "none") == 1
    assert len(Path("configured").read_text().splitlines()) == 2
    Path("traincheck.toml").write_text('[sinks]\nkept = "x"\n')
    assert check() == 2


def test_bad_usage_ends_the_command(check: Check, capsys: pytest.CaptureFixture) -> None:
    assert check("--to", "nowhere") == 2
    assert "there is no receiver 'nowhere'" in capsys.readouterr().err
    assert check("--on-finding", "echo '") == 2


def test_a_baseline_holds_for_receivers(check: Check) -> None:
    assert check("--baseline", "known.json", "--write-baseline") == 0
    assert check("--baseline", "known.json", "--to", "kept") == 0
    assert [message["kind"] for message in kept()] == ["report"]
