"""traincheck run: what is launched and checked, what is announced and summed up, the statuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import harness
from tests.builders import MLP, TraceBuilder, healthy_run
from tests.checking import net, of_no_loss
from traincheck.api import check
from traincheck.check.run_overview import RunOverview
from traincheck.cli import _live
from traincheck.cli import main as entry
from traincheck.collect.launch import launcher as launching
from traincheck.collect.launch.launcher import Outcome
from traincheck.collect.launch.settings import Settings
from traincheck.collect.launch.signals import ProgramStopper
from traincheck.facts.loop import Updates
from traincheck.facts.table import needs_of_facts
from traincheck.report.run_summary import RunSummary
from traincheck.rules.table import RULES
from traincheck.schema.claims import BATCH_CONTENT, Hypothesis, Invariant
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Report
from traincheck.schema.invariant_file import write_invariants
from traincheck.schema.layout import lost_file_name
from traincheck.store.manifest import Manifest, write_manifest
from traincheck.store.writer import TraceWriter

BROKEN = TraceBuilder().process().model("Net", MLP).optimizer().steps(4, omit={"zero_grad"}).build()
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


class Run:
    """Runs the command line with a launcher that writes a trace of our making."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch
        self.events: Sequence[Event] = healthy_run(4)
        self.exit_status = 0
        self.program = ["true"]
        self.returncode = 0
        self.lost: list[int] = []  # processes that could not write all
        self.command: list[str] = []
        self.settings = Settings(directory="", run_id="")
        monkeypatch.setattr(launching, "launch", self._launch)
        monkeypatch.setattr(_live, "_PATIENCE_S", 60.0)  # on a busy machine, too

    def __call__(self, *words: str, command: str = "run") -> int:
        self.monkeypatch.setattr(sys, "argv", ["traincheck", command, *words])
        return entry.main()

    def _launch(
        self, command: list[str], settings: Settings, *, on_start: Callable[[object], None]
    ) -> Outcome:
        self.command, self.settings = command, settings
        directory = Path(settings.directory)
        directory.mkdir(parents=True)
        process = subprocess.Popen(self.program)
        on_start(process)
        with TraceWriter(directory) as writer:
            for event in self.events:
                writer.emit(event)
        for pid in self.lost:
            (directory / lost_file_name(pid)).touch()
        self.returncode = process.wait(30)
        ended = "2026-01-01T00:00:00+00:00"
        write_manifest(directory, Manifest(run_id="x", ended=ended, exit_status=self.exit_status))
        return Outcome(exit_status=self.exit_status, processes=1 if self.events else 0)


@pytest.fixture
def run(monkeypatch, tmp_path) -> Run:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "run.sh").write_text("")
    return Run(monkeypatch)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("train.py", [sys.executable, "train.py"]),
        ("train.py --lr 1 x", [sys.executable, "train.py", "--lr", "1", "x"]),
        ("--keep train.py --keep", [sys.executable, "train.py", "--keep"]),
        ("--select TC1 train.py -- -h", [sys.executable, "train.py", "-h"]),
        ("train.py --help", [sys.executable, "train.py", "--help"]),
        ("train.py -- --lr 1 -- y", [sys.executable, "train.py", "--lr", "1", "--", "y"]),
        ("train.py --lr 1 -- y", [sys.executable, "train.py", "--lr", "1", "--", "y"]),
        ("run.sh -- -o x", ["sh", "run.sh", "-o", "x"]),
        ("run.sh -o x", ["sh", "run.sh", "-o", "x"]),
        ("-- env A=1 train", ["env", "A=1", "train"]),
    ],
)
def test_the_command_is_the_programs(run, words, command) -> None:
    assert run(*words.split()) == 0
    assert run.command == command


PASSED_ON = "{} passed to train.py; put options of traincheck before the script"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train.py --halt", PASSED_ON.format("--halt was")),
        ("train.py --lr 1 --every=2 -o x", PASSED_ON.format("--every, -o were")),
        ("train.py -- --halt", ""),
        ("train.py --help --lr 1", ""),
        ("--keep train.py --epochs 2", ""),
    ],
)
def test_options_of_ours_after_the_script_are_noted(run, capsys, words, said) -> None:
    assert run(*words.split()) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first == f"traincheck: note: {said}" if said else "note" not in first


def test_reports_are_written_in_every_format_asked_for(run, tmp_path) -> None:
    run.events = BROKEN
    assert run("--report", "json=a.json", "--report", "sarif=b.sarif", "train.py") == 1
    assert json.loads((tmp_path / "a.json").read_text())["findings"][0]["code"] == "TC201"
    assert "TC201" in (tmp_path / "b.sarif").read_text()


def test_what_the_checks_and_the_facts_need_is_recorded(run) -> None:
    run("--every", "5", "--warmup", "2", "--select", "TC201", "train.py")
    (rule,) = [rule for rule in RULES if rule.info.code == "TC201"]
    needs = run.settings.needs
    assert needs is not None
    assert needs | rule.needs == needs
    assert (run.settings.every, run.settings.warmup) == (5, 2)
    facts = needs_of_facts()
    assert needs | facts == needs
    assert needs.kinds == rule.needs.kinds | facts.kinds | {"mark", "step", "checkpoint"}
    assert needs.calls == rule.needs.calls | facts.calls
    assert BATCH_CONTENT not in needs.states  # to read whole batches is not cheap


@pytest.mark.parametrize(
    ("events", "exit_status", "words", "status"),
    [
        (healthy_run(4), 0, [], 0),
        (healthy_run(4), 7, [], 7),
        (healthy_run(4), 139, [], 139),
        (BROKEN, 0, [], 1),
        (BROKEN, 7, [], 1),
        (BROKEN, 7, ["--ignore", "TC201"], 7),
        (BROKEN, 0, ["--ignore", "TC2"], 0),
        ([], 5, [], 5),
        ([], 0, [], 4),
        ([], 0, ["--allow-empty"], 0),
        (healthy_run(4), 0, ["--require-steps", "4"], 0),
        (healthy_run(4), 0, ["--require-steps", "5"], 4),
        (healthy_run(4), 7, ["--require-steps", "5"], 7),
        (BROKEN, 0, ["--require-steps", "5"], 1),
        (BROKEN, 0, ["--require-steps", "5", "--allow-empty"], 2),
    ],
)
def test_exit_status(run, events, exit_status, words, status) -> None:
    run.events, run.exit_status = events, exit_status
    assert run(*words, "train.py") == status


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no program to run"),
        (["gone.py"], "does not exist"),
        (["--lr", "1", "train.py", "x"], "fix: put arguments of the program after its script: "),
        (["--lr", "1", "train.py", "x"], ": traincheck run train.py --lr 1 x\n"),
        (["--lr", "1"], "after its script; traincheck run --help lists the options"),
        (["--selct", "TC1", "train.py"], "did you mean --select"),
        (["env"], "traincheck run -- env\n"),
        (["env", "train.py"], "traincheck run -- env train.py"),
        (["-p", "train.py"], "name the script without -p: traincheck run train.py"),
        (["--", "train.py"], "traincheck run train.py"),
        (["-m", "pkg.train", "-x"], "fix: traincheck run -- python -m pkg.train -x"),
        (["-o", "d", "env", "-m", "a b"], "fix: traincheck run -o d -- env -m 'a b'"),
        (["--no-rules", "train.py"], "no check is selected"),
        (["--select", "TC999", "train.py"], "did you mean"),
        (["--report", "json", "train.py"], "write FORMAT=FILE"),
        (["--report", "jso=a.json", "train.py"], "no report format 'jso'"),
        (["--report", "json=no/such/folder.json", "train.py"], "is not a directory"),
    ],
)
def test_what_cannot_be_run_is_told_with_what_to_do(run, capsys, words, said) -> None:
    assert run(*words) == 2
    assert said in capsys.readouterr().err


def test_the_trace_is_removed_when_nothing_was_found(run, tmp_path, capsys) -> None:
    assert run("train.py") == 0
    assert not (tmp_path / "traces").exists()
    err = capsys.readouterr().err
    assert "no findings in 4 steps" in err
    assert "not kept" in err


def test_a_run_of_which_a_part_was_recorded_is_not_said_to_be_fine(run, capsys) -> None:
    run.lost = [1]
    assert run("-o", "mine", "train.py") == 0
    assert run("-t", "mine", command="check") == 0
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    for said in (err, out):
        assert re.search(r"findings, but only part of the run was checked: \d+ checks held", said)
        assert said.count("process 1 could not write all of its records") == 1


def test_a_run_without_a_step_is_not_said_to_be_fine(run, capsys) -> None:
    """Some checks hold of a model that is made and moved."""
    run.events = TraceBuilder().process().model("Net", MLP).optimizer().build()
    assert run("-o", "mine", "train.py") == 4
    assert run("-t", "mine", command="check") == 4
    out, err = (" ".join(text.split()) for text in capsys.readouterr())
    for said in (err, out):
        assert "findings, but nothing was checked: no training step was recorded" in said
        assert "fix check that the program reaches optimizer.step()" in said


@pytest.mark.parametrize("words", [["--keep"], ["-o", "traces/mine"]])
def test_a_trace_is_kept_on_demand(run, tmp_path, capsys, words) -> None:
    assert run(*words, "train.py") == 0
    (kept,) = (tmp_path / "traces").iterdir()
    assert f"traincheck-check -t traces/{kept.name}" in " ".join(capsys.readouterr().err.split())


def test_the_full_report_is_of_the_same_checks(run, tmp_path, capsys) -> None:
    claim = Hypothesis(relation="order", params={})
    write_invariants(tmp_path / "inv.json", [Invariant(id="i0", hypothesis=claim)], {}, [])
    run("-o", "mine", "-i", "inv.json", "--no-rules", "--ignore", "TC1,TC2", "train.py")
    again = "traincheck-check -t mine -i inv.json --no-rules --ignore TC1,TC2"
    assert f"full report: {again}" in " ".join(capsys.readouterr().err.split())


def test_findings_are_announced_once_and_summed_up(run, tmp_path, capsys) -> None:
    run.events = BROKEN
    assert run("train.py") == 1
    out, err = capsys.readouterr()
    assert out == ""  # it belongs to the program
    first, *rest = err.splitlines()
    assert first.startswith("traincheck: at step 1: TC201 error: ")
    summary = "\n".join(rest)
    assert summary.count("TC201 error") == 1
    for word in ("fix ", "zero_grad", "1 process, 1 rank, 4 steps", "Net (4 parameters", "opt0"):
        assert word in summary
    (kept,) = (tmp_path / "traces").iterdir()
    assert kept.name in summary


def test_without_a_finding_the_most_unusual_facts_are_told(run, capsys) -> None:
    run.events = of_no_loss()
    assert run("-o", "mine", "train.py") == 0
    err = " ".join(capsys.readouterr().err.split())
    assert "unusual the loss of `backward` is exactly 0, in 4 of 4 backward passes (0 of" in err
    assert "1 fact that few healthy programs have, no verdict; all: traincheck facts mine" in err
    assert run("train.py") == 0
    assert "for all, keep the trace with --keep" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("events", [net().steps(4).build(), BROKEN])
def test_facts_are_not_told_of_a_calm_run_and_beside_a_finding(run, capsys, events) -> None:
    run.events = events
    run("train.py")
    assert "unusual" not in capsys.readouterr().err


def test_a_fault_of_a_reader_of_facts_does_not_end_the_check(run, capsys, monkeypatch) -> None:
    monkeypatch.setattr(Updates, "_call", lambda *_: 1 / 0)
    run.events = BROKEN
    assert run("train.py") == 1
    err = " ".join(capsys.readouterr().err.split())
    assert "TC201 error" in err
    assert "facts are missing: their reader Updates failed with ZeroDivisionError" in err


def test_the_summary_is_bounded_and_shows_whole_fixes(run, capsys, monkeypatch) -> None:
    real = _live.write_run_summary

    def many(summary: RunSummary, stream: object) -> None:
        finding = replace(summary.report.findings[0], fix="Do this. " * 20, title="So it is. " * 40)
        findings = [replace(finding, id=str(n)) for n in range(40)]
        findings += [
            replace(finding, severity="info", code="TC901", healthy=None) for _ in range(9)
        ]
        report = replace(summary.report, findings=findings, notes=["It is so. " * 90] * 20)
        real(replace(summary, report=report), stream)

    monkeypatch.setattr(_live, "write_run_summary", many)
    run.events = BROKEN
    run("train.py")
    lines = capsys.readouterr().err.splitlines()[1:]
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines).split()).count("Do this.") == 20 * 20
    assert any("and 20 more: see the full report" in line for line in lines)


def test_a_broken_check_does_not_end_the_run(run, capsys, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("we got it wrong")

    monkeypatch.setattr(RunOverview, "add", fails)
    run.exit_status = 3
    assert run("train.py") == 3
    assert "checking failed with ValueError: we got it wrong" in capsys.readouterr().err


def test_collect_checks_while_it_records(run, capsys) -> None:
    run.events, run.exit_status = BROKEN, 5
    assert run("-p", "train.py", "--check", command="collect") == 5
    err = capsys.readouterr().err
    assert "traincheck: at step 1: TC201 error" in err
    assert "1 finding in 4 steps" in err
    assert run.settings.needs is None


def test_invariants_are_checked_too(run, tmp_path, capsys) -> None:
    claim = Hypothesis(relation="order", params={})
    write_invariants(tmp_path / "inv.json", [Invariant(id="i0", hypothesis=claim)], {}, [])
    assert run("-i", "inv.json", "--no-rules", "train.py") == 4
    err = " ".join(capsys.readouterr().err.split())
    assert "1 check not observable" in err
    assert "nothing was checked: the trace lacks the events for 1 check" in err


def test_what_is_in_the_baseline_is_not_told(run, tmp_path, capsys) -> None:
    run.events = BROKEN
    assert run("-o", str(tmp_path / "first"), "train.py") == 1
    known = str(tmp_path / "known.json")
    words = ["-t", str(tmp_path / "first"), "--baseline", known, "--write-baseline"]
    assert run(*words, command="check") == 0
    capsys.readouterr()
    assert run("--baseline", known, "--halt", "train.py") == 0
    err = capsys.readouterr().err
    assert "TC201" not in err
    assert "no findings in 4 steps" in err
    assert "1 by baseline" in err
    assert run("--baseline", str(tmp_path / "missing.json"), "train.py") == 2


def test_halt_stops_the_program_at_an_error(run, capsys, monkeypatch) -> None:
    run.events, run.program = BROKEN, SLEEPER
    assert run("--halt", "train.py") == 1
    assert run.returncode == -signal.SIGTERM
    err = capsys.readouterr().err
    assert "stopping the program" in err
    assert "--halt stopped the program at TC201" in err


@pytest.mark.parametrize(
    ("words", "is_thinned"),
    [
        (["--max-trace", "1MB"], True),
        (["--max-trace", "0.001 gb", "-o", "traces/mine"], True),
        (["--max-trace", "0"], False),
        ([], False),  # 100 MB
        (["--keep"], False),
    ],
)
def test_what_was_checked_is_dropped_beyond_a_size(run, tmp_path, capsys, words, is_thinned):
    builder = TraceBuilder().process().model("Net", MLP).optimizer().steps(250)
    run.events = builder.steps(10, omit={"zero_grad"}).build()
    assert run(*words, "train.py") == 1
    (kept,) = (tmp_path / "traces").iterdir()
    size = sum(path.stat().st_size for path in kept.glob("events-*"))
    assert (size < 1_000_000) is is_thinned
    said = " ".join(capsys.readouterr().err.split())
    assert ("TC201 error at step 250" in said, "steps 4 to" in said) == (True, is_thinned)
    assert run("-t", str(kept), command="check") == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "1 finding, the first at step 250" in out
    assert ("were checked during the run" in out) is is_thinned
    assert "bytes of the events" not in out


@pytest.mark.parametrize("size", ["much", "10", "-1MB", "1 pound"])
def test_a_size_that_is_none_is_refused(run, capsys, size) -> None:
    assert run("--max-trace", size, "train.py") == 2
    assert repr(size) in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--halt"], []])
def test_checkpoints_that_were_written_since_an_error_are_named(run, capsys, words) -> None:
    builder = TraceBuilder().process().model("Net", MLP).optimizer()
    for _ in range(4):
        builder.step(omit={"zero_grad"})
        path = f"out/{builder.step_number}.pt"
        builder.add(CheckpointEvent, op="save", path=path)
    run.events = builder.build()
    assert run(*words, "train.py") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "suspect" in said
    assert "out/1.pt (step 1), out/2.pt (step 2), out/3.pt (step 3)" in said
    assert "out/0.pt" not in said


@pytest.mark.real_process
def test_halt_stops_the_processes_of_the_run_and_no_others(tmp_path) -> None:
    ours = {**os.environ, "TRAINCHECK_SETTINGS": json.dumps({"directory": str(tmp_path)})}
    program, child = (subprocess.Popen(SLEEPER, env=ours) for _ in range(2))
    stranger = subprocess.Popen(SLEEPER)
    try:
        for process in (child, stranger):
            (tmp_path / f"events-r0-p{process.pid}-t0.jsonl").touch()
        wait_for(lambda: str(tmp_path) in Path(f"/proc/{child.pid}/environ").read_text())
        ProgramStopper(program, tmp_path)()
        assert program.wait(20) == child.wait(20) == -signal.SIGTERM
        assert stranger.poll() is None
    finally:
        for process in (program, child, stranger):
            process.kill()
            process.wait()


def test_halt_ends_what_does_not_listen(tmp_path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True)"
    deaf = subprocess.Popen(
        [sys.executable, "-c", f"{code}; time.sleep(60)"], stdout=subprocess.PIPE
    )
    try:
        assert deaf.stdout is not None
        deaf.stdout.readline()
        ProgramStopper(deaf, tmp_path, grace_s=0.05)()
        assert deaf.wait(20) == -signal.SIGKILL
    finally:
        deaf.kill()
        deaf.stdout.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


PROGRAM = """
import os, torch
from torch import nn

torch.manual_seed(0)
if "RANK" in os.environ:
    torch.distributed.init_process_group("gloo")
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
model = nn.parallel.DistributedDataParallel(net) if "RANK" in os.environ else net
optimizer = torch.optim.Adam(model.parameters())
for _ in range(5):
    if "BROKEN" not in os.environ:
        optimizer.zero_grad()
    x = torch.randn(8, 4)
    nn.functional.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
    optimizer.step()
print("done")
if "RANK" in os.environ:
    torch.distributed.destroy_process_group()
"""


def program(tmp_path: Path) -> Path:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    return script


def essence(report: Report) -> list[tuple[object, ...]]:
    return [
        (f.id, f.code, f.first_step, f.last_step, f.violations, f.message) for f in report.findings
    ]


@pytest.mark.parametrize("env", [{}, {"BROKEN": "1"}], ids=["healthy", "broken"])
def test_run_finds_what_collect_and_check_find(tmp_path, monkeypatch, env, capfd) -> None:
    script = program(tmp_path)
    summaries: list[RunSummary] = []
    monkeypatch.setattr(_live, "write_run_summary", lambda s, _: summaries.append(s))
    with monkeypatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        words = ["run", "-o", str(tmp_path / "live"), str(script)]
        assert entry.run(entry.main, "traincheck", words) == (1 if env else 0)
    assert capfd.readouterr().out == "done\n"
    found = summaries[0].report
    assert harness.collect(script, tmp_path / "run", env=env, rules=True).returncode == 0
    recorded = check(tmp_path / "run")
    assert essence(found) == essence(recorded)
    assert found.verdicts == recorded.verdicts
    assert bool(found.findings) == bool(env)


@pytest.mark.slow
def test_two_ranks(tmp_path) -> None:
    script = program(tmp_path)
    torchrun = [harness.command("torchrun"), "--nproc-per-node", "2", "--standalone"]
    done = harness.run(
        [harness.command("traincheck"), "run", "--", *torchrun, script],
        cwd=tmp_path,
        env={"BROKEN": 1},
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("done") == 2  # perhaps in one line
    assert done.stderr.count("TC201 error") == 2  # as it came, and in the summary
    assert "2 processes, 2 ranks, 5 steps" in done.stderr


LEFT = """
import datetime, sys, time, torch
import torch.distributed as dist

# The group gives up in time for a test; as it is, it takes 30 minutes.
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(4):
    if step == 2 and dist.get_rank() == 1:
        if sys.argv[1] == "raises":
            raise ValueError("a bad batch")
        time.sleep(600)
    optimizer.zero_grad()
    (weight * torch.randn(4)).sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("how", "words", "said"),
    [
        ("raises", [], "Rank 1 raised, and others wait for it"),
        # Not halted: it may only be slow. The group ends the job.
        ("sleeps", ["--stall-timeout", "5", "--halt"], "Rank 1 is silent, and others wait for it"),
    ],
)
def test_a_rank_that_leaves_the_other_waiting(tmp_path, how, words, said) -> None:
    (tmp_path / "left.py").write_text(LEFT)
    torchrun = [harness.command("torchrun"), "--nproc-per-node", "2", "--standalone"]
    done = harness.run(
        [harness.command("traincheck"), "run", *words, "--", *torchrun, "left.py", how],
        cwd=tmp_path,
    )
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(f"TC415 error: {said}") == 1  # as it came
    assert f"TC415 error at step 2: {said}" in done.stderr  # in the summary
    if how == "raises":
        assert "Fix the ValueError of rank 1" in done.stderr


QUIET = """
import datetime, os, signal, sys, threading, time, torch
import torch.distributed as dist
from torch import nn

where = sys.argv[1]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=20))
held = threading.Lock()


def quiet(place, *_):
    if (where, dist.get_rank(), step) != (place, 1, 7):
        return
    if where == "lock":
        held.acquire()
    actions = {"stopped": signal.SIGSTOP, "killed": signal.SIGKILL}
    if where in actions:
        os.kill(os.getpid(), actions[where])
    else:
        time.sleep(120)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x):
        quiet("forward")
        return self.layer(x)


def batches():
    for _ in range(12):
        quiet("loader")
        yield torch.randn(16, 8), torch.randint(0, 3, (16,))


held.acquire()
step = 0
net = Net()
net.layer.weight.register_hook(lambda gradient: quiet("gradient hook"))
net.layer.register_forward_hook(lambda *_: quiet("hook"))
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step, (x, y) in enumerate(batches()):
    for place in ("step", "lock", "stopped", "killed"):
        quiet(place)
    if where == "left" and dist.get_rank() == 1 and step == 7:
        break
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        net(x)
        quiet("evaluation")
"""


@pytest.mark.parametrize("where", ["gradient hook", "killed"])
def test_a_rank_that_goes_quiet_is_named(tmp_path, where) -> None:
    """No call of torch comes before: what it did last is on disk all the same."""
    _goes_quiet(tmp_path, where)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "where", ["step", "forward", "loader", "hook", "evaluation", "lock", "stopped", "left"]
)
def test_a_rank_that_goes_quiet_elsewhere_is_named(tmp_path, where) -> None:
    _goes_quiet(tmp_path, where)


def _goes_quiet(tmp_path: Path, where: str) -> None:
    (tmp_path / "quiet.py").write_text(QUIET)
    argv = [harness.command("torchrun"), "--nproc-per-node", "2", "--standalone", "quiet.py", where]
    done = harness.run(
        [harness.command("traincheck"), "run", "--stall-timeout", "5", "--", *argv], cwd=tmp_path
    )
    states = {"killed": "died or hung", "left": "ended"}
    said = f"TC415 error: Rank 1 {states.get(where, 'is silent')}, and others wait for it"
    live, found, _ = done.stderr.partition(said)
    assert found, done.stderr
    assert "findings in" not in live, "while the run went on, or at its end"
    if where not in states:
        place = r"DistributedDataParallel \(inside backward\) \((/\S*/)?quiet\.py:\d+\)"
        assert re.search(place, done.stderr), done.stderr
        assert "rank 1 has recorded nothing for " in done.stderr
