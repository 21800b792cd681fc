"""traincheck-check: options, exit statuses, where things are written."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from benchmarks.lab import checked
from tests.builders import MLP, TraceBuilder, healthy_run
from tests.checking import of_no_loss
from traincheck.cli import cmd_check
from traincheck.cli import main as entry
from traincheck.schema.events import Event
from traincheck.schema.findings import Report
from traincheck.schema.invariant_file import write_invariants
from traincheck.store.manifest import Manifest, write_manifest
from traincheck.store.tail import TailReader
from traincheck.store.writer import TraceWriter

Check = Callable[..., int]


def write(directory: Path, events: Iterable[Event], **facts: object) -> Path:
    with TraceWriter(directory, Manifest(**facts) if facts else None) as writer:
        for event in events:
            writer.emit(event)
    return directory


def net() -> TraceBuilder:
    return TraceBuilder().process().model("Net", MLP).optimizer()


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return write(tmp_path / "good", healthy_run(4))


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return write(tmp_path / "bad", net().steps(4, omit={"zero_grad"}).build())


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Check:
    def run(*words: object) -> int:
        monkeypatch.setattr(sys, "argv", ["traincheck-check", *map(str, words)])
        return entry.check_main()

    return run


def test_a_healthy_run_gives_0(check: Check, good: Path, capsys) -> None:
    assert check("-t", good) == 0
    out, err = capsys.readouterr()
    assert re.match(r"No findings: \d+ checks held over 4 steps\.\n", out)
    assert err == ""


def test_without_a_finding_the_most_unusual_facts_follow(
    check: Check, tmp_path: Path, capsys
) -> None:
    run = write(tmp_path / "run", of_no_loss())
    assert check("-t", run) == 0
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert "unusual the loss of `backward` is exactly 0, in 4 of 4 backward passes (0 of" in text
    assert f"no verdict; all: traincheck facts {run}" in text
    assert check("-t", run, "-o", tmp_path / "report.txt") == 0
    assert (tmp_path / "report.txt").read_text() == out
    assert check("-t", run, "--format", "json") == 0
    assert "unusual" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["good", "bad"])
def test_no_facts_follow_a_calm_run_or_a_finding(check: Check, request, capsys, kind) -> None:
    check("-t", request.getfixturevalue(kind))
    assert "unusual" not in capsys.readouterr().out


def test_a_finding_gives_1(check: Check, bad: Path, capsys) -> None:
    assert check("-t", bad) == 1
    assert "ERROR TC201" in capsys.readouterr().out


@pytest.mark.parametrize("chosen", [["--no-rules"], ["--select", "TC201", "--ignore", "TC201"]])
def test_nothing_to_check_is_a_mistake(check: Check, bad: Path, capsys, chosen) -> None:
    assert check("-t", bad, *chosen) == 2
    assert "no check is selected" in capsys.readouterr().err


def test_several_runs_at_once_are_a_mistake(check: Check, good: Path, bad: Path, capsys) -> None:
    assert check("-t", str(bad), "-t", str(good)) == 2
    assert f"2 runs were given: {bad} {good}" in capsys.readouterr().err


def test_json_goes_to_stdout(check: Check, bad: Path, capsys) -> None:
    assert check("-t", bad, "--format", "json") == 1
    document = json.loads(capsys.readouterr().out)
    assert document["first_violation"]["code"] == "TC201"
    assert document["summary"]["events"] == len(net().steps(4, omit={"zero_grad"}).build())


def test_a_name_that_is_no_text_is_spelled_in_a_file(check: Check, bad: Path, tmp_path) -> None:
    odd = bad.rename(tmp_path / "b\udcff")
    (odd / "manifest.json").unlink()
    assert check("-t", odd, "-o", tmp_path / "report.txt") == 1
    assert r"b\udcff/manifest.json" in (tmp_path / "report.txt").read_text(encoding="utf-8")


def test_output_goes_to_a_file(check: Check, bad: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "report.json"
    assert check("-t", bad, "--format", "json", "--output", path) == 1
    assert json.loads(path.read_text())["findings"]
    assert capsys.readouterr().out == ""


def test_several_reports_are_written_at_once(
    check: Check, bad: Path, tmp_path: Path, capsys
) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.txt"
    assert check("-t", bad, "--report", f"json={first}", "--report", f"github={second}") == 1
    assert capsys.readouterr().out.startswith("1 finding")
    assert json.loads(first.read_text())["findings"]
    assert second.read_text().startswith("::error")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("json", "write FORMAT=FILE"),
        ("xml=a", "no report format 'xml'"),
        ("json=gone/a.json", "gone is not a directory"),
    ],
)
def test_a_report_that_cannot_be_written_is_refused(check: Check, bad: Path, capsys, value, said):
    assert check("-t", bad, "--report", value) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


@pytest.mark.parametrize(
    ("severity", "fail_on", "status"),
    [
        ("error", "error", 1),
        ("error", "info", 1),
        ("warning", "error", 0),
        ("warning", "warning", 1),
        ("info", "warning", 0),
        ("info", "info", 1),
    ],
)
def test_fail_on(
    check: Check, bad: Path, monkeypatch, severity: str, fail_on: str, status: int
) -> None:
    from dataclasses import replace

    real = cmd_check._check

    def changed(*given: object) -> Report:
        report = real(*given)
        return replace(report, findings=[replace(f, severity=severity) for f in report.findings])

    monkeypatch.setattr(cmd_check, "_check", changed)
    assert check("-t", bad, "--fail-on", fail_on) == status


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--select", "TC201"], 1),
        (["--select", "TC2"], 1),
        (["--select", "TC1"], 0),
        (["--select", "TC101,TC201"], 1),
        (["--select", "TC101", "--select", "TC201"], 1),
        (["--ignore", "TC201"], 0),
        (["--ignore", "TC101"], 1),
        (["--select", "TC2", "--ignore", "TC201"], 0),
        (["--select", "tc201"], 1),
        (["--ignore", "TC101, tc201"], 0),
        (["--ignore", "TC"], 2),
    ],
)
def test_select_and_ignore(check: Check, bad: Path, words: list[str], status: int) -> None:
    assert check("-t", bad, *words) == status


def test_a_name_of_a_rule_gets_its_code_told(check: Check, bad: Path, capsys) -> None:
    assert check("-t", bad, "--select", "missing-zero-grad") == 2
    assert "did you mean TC201?" in capsys.readouterr().err


def test_a_run_without_its_option_is_told_where_it_goes(check: Check, bad: Path, capsys) -> None:
    assert check(bad) == 2
    assert f"traincheck-check -t {bad}" in capsys.readouterr().err
    assert check("-t", bad, "other") == 2
    assert "one run at a time: leave out other" in capsys.readouterr().err


def test_an_unknown_code_names_the_nearest(check: Check, bad: Path, capsys) -> None:
    assert check("-t", bad, "--select", "TC299") == 2
    assert "did you mean TC2" in capsys.readouterr().err


def test_several_files_of_invariants(check: Check, good: Path, tmp_path: Path, capsys) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for path in (one, two):
        write_invariants(path, [], {}, [])
    assert check("-t", good, "-i", one, "-i", two) == 0


def test_bad_invariants_are_named(check: Check, good: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "bad.json"
    path.write_text("__import__('os').system('false')")
    assert check("-t", good, "-i", path) == 2
    assert str(path) in capsys.readouterr().err


def test_presets_are_invariants_that_come_with_it(
    check: Check, good: Path, bad: Path, capsys
) -> None:
    words = ("--no-rules", "--preset", "pytorch", "--preset", "amp")
    assert check("-t", good, *words) == 0
    assert re.match(r"No findings: \d+ checks held", capsys.readouterr().out)
    assert check("-t", bad, *words) == 1


def test_an_unknown_preset_lists_those_there_are(check: Check, good: Path, capsys) -> None:
    assert check("-t", good, "--preset", "pytroch") == 2
    err = capsys.readouterr().err
    assert "no preset 'pytroch'" in err
    assert "did you mean pytorch? presets: accumulation, amp, " in err


def test_the_only_run_of_a_folder_is_taken(check: Check, tmp_path: Path) -> None:
    write(tmp_path / "traces" / "only", healthy_run(3))
    assert check("-t", tmp_path / "traces") == 0


def test_a_folder_of_runs_lists_them(check: Check, tmp_path: Path, capsys) -> None:
    for name in ("b", "a"):
        write(tmp_path / "traces" / name, healthy_run(2))
    assert check("-t", tmp_path / "traces") == 2
    err = capsys.readouterr().err
    assert "holds 2 runs" in err
    assert err.index(str(tmp_path / "traces" / "a")) < err.index(str(tmp_path / "traces" / "b"))


@pytest.mark.parametrize("kind", ["missing", "empty", "file", "garbled", "newer"])
def test_what_is_no_trace_is_named(check: Check, tmp_path: Path, kind: str, capsys) -> None:
    path = tmp_path / "run"
    if kind == "file":
        path.write_text("x")
    elif kind != "missing":
        path.mkdir()
    if kind == "garbled":
        (path / "events-r0-p1-t0.jsonl").write_text("not json\n{}\n")
    if kind == "newer":
        write(path / "run", healthy_run(1))
        (path / "run" / "manifest.json").write_text('{"schema_version": 99}')
    assert check("-t", path) == 2
    err = capsys.readouterr().err
    assert str(path) in err
    assert "fix:" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("files", [(), ("events-r0-p1-t0.jsonl",)])
@pytest.mark.parametrize("follow", [(), ("--follow",)])
def test_a_run_that_left_nothing_was_not_checked(
    check: Check, tmp_path: Path, capsys, files: tuple[str, ...], follow: tuple[str, ...]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in files:
        (run / name).touch()
    write_manifest(run, Manifest(run_id="run", ended="2026-01-01T00:00:00+00:00", exit_status=0))
    assert check("-t", run, *follow, "--format", "json") == 4
    document = json.loads(capsys.readouterr().out)
    assert document["exit_status"] == 4
    assert document["nothing_checked"]["reason"] == "nothing was checked: nothing was recorded"
    assert check("-t", run, *follow, "--allow-empty") == 0


@pytest.mark.parametrize(
    ("facts", "said", "fix"),
    [
        (
            {"exit_status": 1},
            "the program ended with exit status 1 before",
            "correct the error that ended the program; its output shows it",
        ),
        (
            {"exit_status": 137, "signal": "SIGKILL"},
            "was ended by SIGKILL (kill -9, the kernel when memory ran out, or",
            "look for 'Out of memory' in dmesg",
        ),
        (
            {"exit_status": 143, "signal": "SIGTERM"},
            "was ended by SIGTERM (kill, timeout, a scheduler at its time limit, or",
            "give the program more time",
        ),
        (
            {"exit_status": 143},
            "ended with exit status 143, that of a command ended by SIGTERM (kill, timeout,",
            "give the program more time",
        ),
        (
            {"exit_status": 130, "signal": "SIGINT"},
            "was ended by SIGINT (Ctrl-C, or kill -INT) before",
            "run it again, and let it reach a training step",
        ),
        (
            {"exit_status": 0, "interrupted": "SIGTERM"},
            "received SIGTERM and ended with exit status 0 (kill, timeout,",
            "give the program more time",
        ),
        (
            {"exit_status": 139, "signal": "SIGSEGV"},
            "was ended by SIGSEGV (a crash in compiled code) before",
            "run it with python -X faulthandler",
        ),
        (
            {"exit_status": 138, "signal": "SIGUSR1"},
            "was ended by SIGUSR1 (sent by another process or by its own code) before",
            "run it again",
        ),
    ],
)
@pytest.mark.parametrize("events", [(), net().build()])
def test_a_program_that_died_before_it_trained(
    check: Check, tmp_path: Path, capsys, facts: dict[str, object], said: str, fix: str, events
) -> None:
    ended = "2026-01-01T00:00:00+00:00"
    run = write(tmp_path / "run", events, run_id="run", ended=ended, **facts)
    assert check("-t", run) == 4
    out = " ".join(capsys.readouterr().out.split())
    reason, _, rest = out.partition(" fix ")
    assert said in reason
    assert "before a training step was recorded" in reason
    assert rest.startswith(fix)
    is_error = fix.startswith("correct the error")
    assert ("correct the error" in out) == is_error


def test_an_empty_baseline_is_told(check: Check, tmp_path: Path, good: Path) -> None:
    empty = write(tmp_path / "run", net().build())
    known = tmp_path / "known.json"
    assert check("-t", empty, "--baseline", known, "--write-baseline") == 4
    assert check("-t", good, "--baseline", known, "--write-baseline") == 0


def test_what_is_given_to_the_wrong_option_is_told_where_it_belongs(
    check: Check, good: Path, tmp_path: Path, capsys
) -> None:
    write_invariants(tmp_path / "inv.json", [], {}, [])
    assert check("-t", good, "-i", good) == 2
    assert f"learn from it: traincheck-infer -t {good}" in capsys.readouterr().err
    assert check("-t", tmp_path / "inv.json") == 2
    assert (
        f"name a run with -t, and pass this file with -i {tmp_path / 'inv.json'}"
        in capsys.readouterr().err
    )


def test_a_run_that_goes_on_is_not_said_to_be_fine(check: Check, good: Path, capsys) -> None:
    facts = {"launcher_pid": os.getpid(), "created_with": {"hostname": platform.node()}}
    write_manifest(good, Manifest(**facts))
    assert check("-t", good) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("No findings, but only part of the run was checked: ")
    assert "note the run is still going on" in out


@pytest.mark.parametrize("kind", ["directory", "no parent", "no room"])
def test_an_output_that_cannot_be_written_is_named(
    check: Check, good: Path, tmp_path: Path, kind: str, capsys
) -> None:
    if kind == "no room" and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    path = {
        "directory": tmp_path,
        "no parent": tmp_path / "gone" / "x",
        "no room": Path("/dev/full"),
    }[kind]
    assert check("-t", good, "--output", path) == 2
    assert str(path) in capsys.readouterr().err


def test_how_the_run_ended_is_told(check: Check, tmp_path: Path, capsys) -> None:
    run = write(tmp_path / "run", healthy_run(2), run_id="run", signal="SIGKILL", exit_status=137)
    with (run / "events-r0-p1000-t0.jsonl").open("a") as file:
        file.write('{"k": "call", "n"')
    assert check("-t", run) == 0
    out = capsys.readouterr().out
    assert "ended by SIGKILL (kill -9, the kernel when memory ran out" in " ".join(out.split())
    assert "1 line of the trace could not be read" in out


def test_an_unknown_format_lists_those_there_are(check: Check, good: Path, capsys) -> None:
    assert check("-t", good, "--format", "xml") == 2
    assert "There are text, json" in capsys.readouterr().err


def test_a_trace_without_options_is_a_usage_error(check: Check, capsys) -> None:
    assert check() == 2
    assert "traincheck-check -t DIR" in capsys.readouterr().err


def test_the_library_says_what_the_command_prints(check: Check, bad: Path, capsys) -> None:
    """So benchmarks and tests may ask it instead, without a process for each run."""
    assert check("-t", bad, "--format", "json") == 1
    assert json.loads(capsys.readouterr().out) == checked(bad)


def test_following_a_finished_run_gives_the_same_report(check: Check, bad: Path, capsys) -> None:
    assert check("-t", bad, "--format", "json") == 1
    replayed = capsys.readouterr().out
    assert check("-t", bad, "--format", "json", "--follow") == 1
    out, err = capsys.readouterr()
    assert out == replayed
    (line,) = err.splitlines()  # one for the finding, not for each parameter or step
    assert line.startswith("traincheck: at step 1: TC201 error: ")


def test_following_a_run_that_grows(check: Check, tmp_path: Path, capsys, monkeypatch) -> None:
    events = net().steps(4, omit={"zero_grad"}).build()
    half = len(events) // 2
    path = tmp_path / "live"
    writer = TraceWriter(path)
    for event in events[:half]:
        writer.emit(event)
    writer.flush()
    waits = 0

    def sleep(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            for event in events[half:]:
                writer.emit(event)
            writer.close()

    real = TailReader.__init__
    monkeypatch.setattr(
        TailReader, "__init__", lambda self, run, **more: real(self, run, sleep=sleep, **more)
    )
    assert check("-t", path, "--follow", "--format", "json") == 1
    live = capsys.readouterr().out
    assert waits >= 1
    assert check("-t", path, "--format", "json") == 1
    assert capsys.readouterr().out == live


def test_an_empty_folder_may_become_the_run(
    check: Check, tmp_path: Path, capsys, monkeypatch
) -> None:
    path = tmp_path / "live"
    path.mkdir()

    def sleep(_: float) -> None:
        write(path, net().steps(4, omit={"zero_grad"}).build())

    real = TailReader.__init__
    monkeypatch.setattr(
        TailReader, "__init__", lambda self, run, **more: real(self, run, sleep=sleep, **more)
    )
    assert check("-t", path, "--follow") == 1
    seen = capsys.readouterr()
    assert "ERROR TC201" in seen.out
    assert f"waiting for a run in {path}" in seen.err


def test_an_interrupt_ends_following_with_a_report(
    check: Check, bad: Path, capsys, monkeypatch
) -> None:
    real = TailReader.events

    def interrupted(self: TailReader) -> Iterable[Event]:
        yield from real(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(TailReader, "events", interrupted)
    assert check("-t", bad, "--follow") == 1
    out = capsys.readouterr().out
    assert "ERROR TC201" in out
    assert "stopped" not in out, "the run had ended by then"


@pytest.mark.parametrize("patience_s", [0.0, 60.0])
def test_who_stops_watching_is_told_that_the_run_goes_on(
    check: Check, tmp_path: Path, capsys, monkeypatch, patience_s
) -> None:
    path = write(tmp_path / "live", net().steps(3).build()[:-1])  # in the midst of a step
    write_manifest(path, Manifest(run_id="live"))
    real = TailReader.__init__

    def made(self: TailReader, run: Path, **more: object) -> None:
        real(self, run, sleep=lambda _: signal.raise_signal(signal.SIGINT), **more)

    monkeypatch.setattr(TailReader, "__init__", made)
    monkeypatch.setattr(cmd_check, "_PATIENCE_S", patience_s)
    assert check("-t", path, "--follow") == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    assert out.startswith("No findings, but only part of the run was checked: ")
    assert "note the check was stopped before the run ended" in out
    assert ("press Ctrl-C to stop now" in err) is (patience_s == 0)


def test_a_bar_is_shown_on_a_terminal_only(good: Path, monkeypatch, capsys) -> None:
    from traincheck.store.reader import TraceReader

    reader = TraceReader(good)

    def is_watched() -> bool:
        return cmd_check._WATCHER in {thread.name for thread in threading.enumerate()}

    with cmd_check.progress(reader):
        assert not is_watched()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with cmd_check.progress(reader):
        assert is_watched()
        events = list(reader.events())
    assert not is_watched()
    assert events
    assert reader.bytes_read == reader.bytes_total > 0


def test_an_interrupt_leaves_nothing_unread(
    check: Check, tmp_path: Path, capsys, monkeypatch
) -> None:
    """The step that is not over yet is held back while following; it is not lost at the end."""
    events = net().steps(3, omit={"zero_grad"}).build()
    last = max(n for n, event in enumerate(events) if event.kind == "step")
    path = write(tmp_path / "live", events[:last])

    def sleep(_: float) -> None:
        signal.raise_signal(signal.SIGINT)

    real = TailReader.__init__
    monkeypatch.setattr(
        TailReader, "__init__", lambda self, run, **more: real(self, run, sleep=sleep, **more)
    )
    before = signal.getsignal(signal.SIGINT)
    assert check("-t", path, "--follow", "--format", "json") == 1
    assert json.loads(capsys.readouterr().out)["summary"]["events"] == last
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("settings", "is_told"),
    [
        ({"every": 10, "warmup": 0}, True),
        ({"every": 10, "warmup": 1}, True),
        ({"every": 10, "warmup": 4}, True),
        ({"every": 10, "warmup": 20}, False),
        ({"every": 1, "warmup": 0}, False),
        ({}, False),
        ({"every": "often"}, False),
    ],
)
def test_a_run_with_few_steps_in_a_row_is_told_what_that_hides(
    check: Check, good: Path, settings: dict[str, object], is_told: bool, capsys
) -> None:
    write_manifest(good, Manifest(run_id="good", settings=settings))
    assert check("-t", good, "--format", "json") == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert any("need consecutive steps" in note and "--warmup" in note for note in notes) is is_told
