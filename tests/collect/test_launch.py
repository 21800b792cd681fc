"""The launcher seen from outside: a program cannot tell that it is recorded. Hardly any torch.

Each program runs twice, directly and under traincheck-collect, and what can be seen is compared.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincheck.collect.launch import launcher as launching
from traincheck.collect.launch import run_manifest
from traincheck.collect.launch.launcher import (
    check_command,
    launch,
    new_run_id,
    script_command,
    shell_command,
)
from traincheck.collect.launch.run_manifest import interpreter_notes
from traincheck.collect.launch.settings import Settings
from traincheck.errors import LaunchError, OutputError, TraincheckError
from traincheck.schema.layout import event_file_name

pytestmark = pytest.mark.real_process

COLLECT = [
    sys.executable,
    "-c",
    "import sys; from traincheck.cli.main import collect_main; sys.exit(collect_main())",
]
LOOP = """
import os, signal, sys, time
def report(number, frame):
    # not print(): the signal may come while "ready" is still being flushed
    os.write(1, b"got %s\\n" % signal.Signals(number).name.encode())
    sys.exit(5)
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), report)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str, name: str = "s.py") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def settings(directory: Path, **rest) -> Settings:
    return Settings(directory=str(directory), run_id="r", **rest)


def collect(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    options = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run([*COLLECT, *arguments], check=False, **options)


def manifest(directory: Path) -> dict:
    return json.loads((directory / "manifest.json").read_text())


def program_stderr(done: subprocess.CompletedProcess[str]) -> str:
    """What the program wrote: all but our one last line."""
    lines = done.stderr.splitlines(keepends=True)
    assert lines[-1].startswith("traincheck: ")
    return "".join(lines[:-1])


# -- what the program sees, and what others see of it


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("pass", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('a reason')", 1),
        ("raise ValueError('on purpose')", 1),
        ("def broken(:", 1),
        ("import os; os._exit(255)", 255),
        ("import os; os.abort()", 128 + signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL),
    ],
)
def test_status_and_output_are_the_programs_own(script, tmp_path, text, status) -> None:
    path = script(f"{text}\n")
    bare = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    done = collect("-p", path, "-o", str(tmp_path / "run"))
    assert done.returncode == status
    assert bare.returncode in (status, 128 - status)
    assert done.stdout == bare.stdout
    assert program_stderr(done) == bare.stderr
    killed_by = signal.Signals(-bare.returncode).name if bare.returncode < 0 else None
    assert manifest(tmp_path / "run")["exit_status"] == status
    assert manifest(tmp_path / "run")["signal"] == killed_by


def test_arguments_folder_and_input_reach_the_program(script, tmp_path) -> None:
    path = script("import os, sys; print(sys.argv, os.getcwd(), sys.stdin.read(), sys.orig_argv)")
    arguments = ["--lr", "0.1", "", "a b", "--", "-p", "*"]
    options = {"cwd": tmp_path, "input": "to stdin", "text": True}
    bare = subprocess.run(
        [sys.executable, path, *arguments], capture_output=True, check=True, **options
    )
    done = collect("-p", path, "-o", "run", "--", *arguments, **options)
    assert done.stdout == bare.stdout
    assert "to stdin" in done.stdout


def test_a_quiet_run_adds_nothing_to_stderr(script, tmp_path) -> None:
    path = script("import sys; sys.stderr.write('only this')")
    loud = collect("-p", path, "-o", str(tmp_path / "loud"))
    assert loud.stderr.startswith("only this")
    assert "traincheck:" in loud.stderr
    assert collect("-p", path, "-o", str(tmp_path / "run"), "--quiet").stderr == "only this"


def test_file_descriptors_passed_on_reach_the_program(script, tmp_path) -> None:
    path = script("import os, sys; print(os.read(int(sys.argv[1]), 9))")
    receiver, sender = os.pipe()
    os.write(sender, b"by a pipe")
    done = collect(
        "-p", path, "-o", str(tmp_path / "run"), "--", str(receiver), pass_fds=[receiver]
    )
    os.close(receiver)
    os.close(sender)
    assert done.stdout == "b'by a pipe'\n"


def test_words_that_are_not_utf8_are_passed_on(script, tmp_path) -> None:
    path = script("import os, sys; print(os.fsencode(sys.argv[1]))")
    done = collect("-p", path, "-o", str(tmp_path / "run"), "--", os.fsdecode(b"\xff"))
    assert done.stdout == "b'\\xff'\n"
    assert manifest(tmp_path / "run")["command"][-1] == "\\xff"


# -- signals


@contextlib.contextmanager
def running(*command: str, **options) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=300)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT"])
def test_a_signal_sent_to_the_launcher_reaches_the_program(script, tmp_path, name) -> None:
    command = [*COLLECT, "-p", script(LOOP), "-o", str(tmp_path / "run"), "--quiet", "--", name]
    # A separate session has no terminal, so that no other process sends SIGINT to the program.
    with running(*command, start_new_session=True) as process:
        process.send_signal(getattr(signal, name))
        assert process.communicate(timeout=300)[0] == f"got {name}\n"
        assert process.returncode == 5


def test_a_signal_that_the_program_does_not_handle_ends_both(script, tmp_path) -> None:
    with running(*COLLECT, "-p", script(LOOP), "-o", str(tmp_path / "run"), "--quiet") as process:
        process.terminate()
        process.communicate(timeout=300)
        assert process.returncode == 128 + signal.SIGTERM
    assert manifest(tmp_path / "run")["signal"] == "SIGTERM"


def test_a_signal_that_is_ignored_stays_ignored(script, tmp_path) -> None:
    path = script("import signal; print(repr(signal.getsignal(signal.SIGHUP)))")
    program = ["nohup", *COLLECT, "-p", path, "-o", str(tmp_path / "run")]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert "SIG_IGN" in done.stdout
    assert "SIG_DFL" in collect("-p", path, "-o", str(tmp_path / "other")).stdout


COUNT = """
import signal, sys, time
count = []
signal.signal(signal.SIGINT, lambda number, frame: count.append(number))
print("ready", flush=True)
while not count:
    time.sleep(0.01)
time.sleep(0.5)  # a second one would be here by now
print("times:", len(count), flush=True)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_the_whole_group_reaches_the_program_once(script, tmp_path, name) -> None:
    """As batch systems send it, where no terminal is."""
    path = script(COUNT.replace("SIGINT", name))
    command = [*COLLECT, "--quiet", "-p", path, "-o", str(tmp_path / "run")]
    with running(*command, start_new_session=True) as process:
        os.killpg(process.pid, getattr(signal, name))
        assert process.communicate(timeout=300)[0] == "times: 1\n"
        assert process.returncode == 0


STARTING = """
import os, signal, subprocess, sys, time
from traincheck.collect.launch.signals import SignalRelay
with SignalRelay() as relay:
    program = subprocess.Popen([sys.executable, sys.argv[1]], stdout=subprocess.PIPE, text=True)
    assert program.stdout.readline() == "ready\\n"
    os.kill(0 if sys.argv[2] == "group" else os.getpid(), signal.SIGTERM)
    time.sleep(0.2)  # two at once would be one
    relay.attach(program)
    print(program.stdout.read(), end="")
"""


@pytest.mark.parametrize("to", ["group", "launcher"])
def test_a_signal_that_comes_before_the_launcher_knows_the_program_reaches_it_once(
    script, to
) -> None:
    path = script(COUNT.replace("SIGINT", "SIGTERM"))
    command = [sys.executable, "-c", STARTING, path, to]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, start_new_session=True
    )
    assert done.stdout == "times: 1\n", done.stderr


def children(launcher: subprocess.Popen[str]) -> list[int]:
    """The witness and the program."""
    path = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    if not path.exists():
        pytest.skip("no /proc here")
    pids = [int(pid) for pid in path.read_text().split()]
    assert len(pids) == 2
    return pids


def test_a_launcher_that_stood_still_hears_the_witness_all_the_same(script, tmp_path) -> None:
    """As where all of a machine is halted for a while."""
    command = [*COLLECT, "--quiet", "-p", script(COUNT), "-o", str(tmp_path / "run")]
    with running(*command, start_new_session=True) as process:
        witness, _ = children(process)
        for pid in (witness, process.pid):
            os.kill(pid, signal.SIGSTOP)
        os.killpg(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)
        os.kill(witness, signal.SIGCONT)
        assert process.communicate(timeout=300)[0] == "times: 1\n"
        assert process.returncode == 0


def test_a_time_limit_reaches_the_program_once(script, tmp_path) -> None:
    path = script(COUNT.replace("SIGINT", "SIGTERM"))
    command = ["timeout", "3", *COLLECT, "--quiet", "-p", path, "-o", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "ready\ntimes: 1\n"
    assert manifest(tmp_path / "run")["exit_status"] == 0


def test_a_witness_of_signals_ends_with_the_launcher(script, tmp_path) -> None:
    command = [*COLLECT, "--quiet", "-p", script(LOOP), "-o", str(tmp_path / "run")]
    with running(*command, start_new_session=True) as process:
        pids = children(process)
        process.kill()
        process.wait(30)
        deadline = time.monotonic() + 300
        while Path(f"/proc/{pids[0]}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not Path(f"/proc/{pids[0]}").exists()
        os.kill(pids[1], signal.SIGKILL)  # which goes on without its launcher


def test_ctrl_c_reaches_the_program_once(script, tmp_path) -> None:
    controller, terminal = pty.openpty()
    # The first process of a session that opens a terminal is controlled by it.
    opens = 'exec < "$0"; exec "$@"'
    command = ["sh", "-c", opens, os.ttyname(terminal), *COLLECT, "--quiet"]
    command += ["-p", script(COUNT), "-o", str(tmp_path / "run")]
    with running(*command, start_new_session=True) as process:
        os.write(controller, b"\x03")
        assert process.communicate(timeout=300)[0] == "times: 1\n"
        assert process.returncode == 0
    os.close(controller)
    os.close(terminal)


# -- the manifest


def test_the_manifest_of_a_finished_run(script, tmp_path) -> None:
    path = script("print(1)")
    collect("-p", path, "-o", str(tmp_path / "run"), "--every", "3", "--", "x", cwd=tmp_path)
    found = manifest(tmp_path / "run")
    assert found["schema_version"] == 1
    assert set(found["created_with"]) == {"traincheck", "python", "platform", "hostname"}
    assert found["command"] == [sys.executable, path, "x"]
    assert found["cwd"] == str(tmp_path)
    assert found["settings"]["every"] == 3
    assert found["run_id"].startswith("s-")
    assert found["started"] <= found["ended"]
    assert found["started"].endswith("+00:00")
    assert (found["exit_status"], found["signal"], found["processes"]) == (0, None, [])
    (note,) = found["notes"]
    assert note.startswith("nothing was recorded: no process used torch")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["manifest.json"]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise SystemExit(3)", "the program ended with status 3 before a process used torch, or"),
        ("import torch; raise SystemExit(3)", "the program ended with status 3 before a call was"),
        (
            "import os, torch; os.kill(os.getpid(), 9)",
            "the program was ended by SIGKILL before a call was recorded",
        ),
        ("import torch", "torch was imported, but the program made no recorded call"),
    ],
)
def test_why_nothing_was_recorded(script, tmp_path, source, said) -> None:
    collect("-p", script(source), "-o", str(tmp_path / "run"), cwd=tmp_path)
    (note,) = manifest(tmp_path / "run")["notes"]
    assert note.startswith(f"nothing was recorded: {said}")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["manifest.json"]


def test_no_secret_of_the_environment_enters_the_run(script, tmp_path) -> None:
    secrets = {"API_TOKEN": "s3cr3t", "AWS_SECRET_ACCESS_KEY": "s3cr3t", "TORCH_TOKEN": "s3cr3t"}
    harmless = {"OMP_NUM_THREADS": "1", "RANK": "0", "PYTHONHASHSEED": "7"}
    path = script("import os; print(os.environ['API_TOKEN'])")
    environ = {**os.environ, **secrets, **harmless}
    done = collect("-p", path, "-o", str(tmp_path / "run"), env=environ)
    assert done.stdout == "s3cr3t\n"
    assert all("s3cr3t" not in file.read_text() for file in (tmp_path / "run").iterdir())
    found = manifest(tmp_path / "run")["environment"]
    assert harmless.items() <= found.items()
    assert set(found) <= set(run_manifest.ENVIRONMENT)


def test_no_name_of_a_secret_is_allowed() -> None:
    words = ("TOKEN", "KEY", "SECRET", "PASS", "AUTH", "CRED", "URL", "PROXY")
    assert not [name for name in run_manifest.ENVIRONMENT if any(word in name for word in words)]


def test_the_first_manifest_is_there_when_the_launcher_is_killed(script, tmp_path) -> None:
    path = script("import os, time; print('ready', flush=True); os.getppid() and time.sleep(60)")
    with running(*COLLECT, "-p", path, "-o", str(tmp_path / "run")) as process:
        process.kill()
        process.wait()
        found = manifest(tmp_path / "run")
        assert found["launcher_pid"] == process.pid
        lines = {int(e.name): _command_line(e) for e in Path("/proc").iterdir() if e.name.isdigit()}
        child = next(
            pid
            for pid, line in lines.items()
            if path.encode() in line and b"collect_main" not in line  # the witness of signals
        )
        os.kill(child, signal.SIGKILL)
    assert found["started"]
    assert (found["ended"], found["exit_status"], found["processes"]) == (None, None, [])


def _command_line(entry: Path) -> bytes:
    try:
        return (entry / "cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def test_processes_are_those_that_left_events(script, tmp_path) -> None:
    names = [event_file_name(1, 8, 0), event_file_name(0, 9, 1), event_file_name(0, 9, 0)]
    run = str(tmp_path / "run")
    path = script(f"for n in {names!r}: open({run!r} + '/' + n, 'w').close()")
    done = collect("-p", path, "-o", run)
    assert "trace in" in done.stderr
    assert manifest(tmp_path / "run")["processes"] == [
        {"rank": 0, "pid": 9, "files": [names[2], names[1]], "bytes": 0},
        {"rank": 1, "pid": 8, "files": [names[0]], "bytes": 0},
    ]
    assert manifest(tmp_path / "run")["notes"] == []


@pytest.mark.parametrize(("end", "notes"), [("\\n", 0), ("", 1)])
def test_an_event_file_that_ends_within_a_record_is_told_of(script, tmp_path, end, notes) -> None:
    name = event_file_name(0, 9, 0)
    path = script(f"open('{tmp_path}/run/{name}', 'w').write('{{}}\\n{{}}{end}')")
    collect("-p", path, "-o", str(tmp_path / "run"))
    found = manifest(tmp_path / "run")["notes"]
    assert len(found) == notes
    assert all(note.startswith(f"{name} ends within a record") for note in found)


def test_a_process_that_could_not_be_traced_is_told_of(script, tmp_path) -> None:
    run = str(tmp_path / "run")
    note = {"reason": "ImportError: no orjson", "executable": "/other/python", "argv0": "t.py"}
    path = script(f"open({run!r} + '/not-traced-p77.json', 'w').write({json.dumps(note)!r})")
    done = collect("-p", path, "-o", run)
    told = "process 77 (/other/python, t.py) was not traced: ImportError: no orjson"
    assert manifest(tmp_path / "run")["notes"] == [told]
    assert told in done.stderr


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("python train.py -I", ""),
        ("python -u -B train.py", ""),
        ("python -m train -E", ""),
        ("python -c -I", ""),
        ("python -W error train.py -S", ""),
        ("env -I", ""),
        ("python -I train.py", "I"),
        ("/usr/bin/python3.11 -uE train.py", "E"),
        ("python -W error -S train.py", "S"),
        ("python -Werror -X dev -IS train.py", "IS"),
    ],
)
def test_an_interpreter_that_escapes_is_told_of(command, flags) -> None:
    notes = interpreter_notes(command.split())
    assert [note.split(" -")[1][0] for note in notes] == list(flags)


def test_an_isolated_run_has_the_note_and_no_other(tmp_path) -> None:
    done = collect("-o", str(tmp_path / "run"), "--", sys.executable, "-I", "-c", "print(1)")
    assert done.stdout == "1\n"
    (note,) = manifest(tmp_path / "run")["notes"]
    assert "-I" in note


# -- what cannot be started


def test_a_new_run_never_has_the_name_of_another() -> None:
    names = {new_run_id(["python", "dir/my train.py"]) for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("my-train-") for name in names)


@pytest.mark.parametrize(
    ("command", "stem"),
    [
        (["torchrun", "--nproc-per-node", "2", "x/ddp.py"], "ddp"),
        (["bash", "go.sh"], "go"),
        (["/bin/true"], "true"),
        (["../../.."], "run"),
    ],
)
def test_a_run_is_named_after_its_script(command, stem) -> None:
    assert new_run_id(command).rsplit("-", 3)[0] == stem


def test_a_default_folder_is_made_under_traces(script, tmp_path) -> None:
    done = collect("-p", script("pass"), cwd=tmp_path)
    (run,) = (tmp_path / "traces").iterdir()
    assert manifest(run)["run_id"] == run.name
    assert f"traces/{run.name}" in done.stderr


def _file_in_the_way(path: Path) -> None:
    path.write_text("mine")


def _finished_run(path: Path) -> None:
    path.mkdir()
    (path / "manifest.json").write_text("{}")


def _run_without_manifest(path: Path) -> None:
    path.mkdir()
    (path / event_file_name(0, 1, 0)).write_text("")


def _folder_of_runs(path: Path) -> None:
    path.mkdir()
    _finished_run(path / "first")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_file_in_the_way, "is a file"),
        (_finished_run, "already holds a trace"),
        (_run_without_manifest, "already holds a trace"),
        (_folder_of_runs, "folder of runs"),
    ],
)
def test_what_is_there_is_never_overwritten(tmp_path, make, words) -> None:
    run, witness = tmp_path / "run", tmp_path / "witness"
    make(run)
    before = sorted(run.rglob("*"))
    with pytest.raises(OutputError, match=words) as caught:
        launch(["touch", str(witness)], settings(run))
    assert str(run) in str(caught.value)
    assert caught.value.fix
    assert sorted(run.rglob("*")) == before
    assert not witness.exists()


def test_of_two_that_begin_in_one_moment_the_second_is_told(tmp_path, monkeypatch) -> None:
    run, witness = tmp_path / "run", tmp_path / "witness"

    def another_begins(_: int) -> None:
        (run / "manifest.json").write_text("{}")

    monkeypatch.setattr(os, "fsync", another_begins)
    with pytest.raises(OutputError, match="already holds a trace"):
        launch(["touch", str(witness)], settings(run))
    assert not witness.exists()
    assert [path.name for path in run.iterdir()] == ["manifest.json"]
    assert manifest(run) == {}


def test_a_disk_without_links_does_not_stop_a_run(tmp_path, monkeypatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuses)
    assert launch(["true"], settings(tmp_path / "run")).exit_status == 0
    assert manifest(tmp_path / "run")["exit_status"] == 0


def test_an_empty_folder_may_be_used(tmp_path) -> None:
    assert launch(["true"], settings(tmp_path)).exit_status == 0
    assert manifest(tmp_path)["exit_status"] == 0


def test_a_full_disk_is_noticed_before_the_program_starts(tmp_path, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    witness = tmp_path / "witness"
    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OutputError, match="No space left") as caught:
        launch(["touch", str(witness)], settings(tmp_path / "run"))
    assert str(tmp_path / "run") in str(caught.value)
    assert not witness.exists()
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fills_up_does_not_cost_the_exit_status(tmp_path, monkeypatch) -> None:
    write = run_manifest.write

    def fails_at_the_end(directory: Path, content: dict, **how: bool) -> None:
        if content["ended"] is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(directory, content, **how)

    monkeypatch.setattr(launching.run_manifest, "write", fails_at_the_end)
    outcome = launch(["sh", "-c", "exit 7"], settings(tmp_path / "run"))
    assert outcome.exit_status == 7
    assert any("No space left" in note for note in outcome.notes)
    assert manifest(tmp_path / "run")["ended"] is None


def test_a_folder_that_cannot_be_made_is_named(tmp_path) -> None:
    with pytest.raises(OutputError, match="/proc/run"):
        launch(["true"], settings(Path("/proc/run")))


def test_a_program_that_does_not_start_leaves_nothing(script, tmp_path) -> None:
    path = Path(script("#!/no/such/interpreter\n", "go"))
    path.chmod(0o755)
    with pytest.raises(LaunchError, match="go"):
        launch([str(path)], settings(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda p: script_command(str(p / "no.py")), "no.py"),
        (lambda p: script_command(str(p)), "is a folder"),
        (lambda p: shell_command(str(p / "no.sh")), "no.sh"),
        (lambda p: check_command([str(p)]), "is a folder"),
        (lambda p: check_command([str(p / "data")]), "not executable"),
        (lambda p: check_command([str(p / "train.py")]), "Python script"),
        (lambda p: check_command(["no-such-program-anywhere"]), "no-such-program-anywhere"),
    ],
)
def test_what_cannot_run_is_refused_with_a_fix(tmp_path, prepare, words) -> None:
    (tmp_path / "data").write_text("")
    (tmp_path / "train.py").write_text("")
    with pytest.raises(TraincheckError, match=words) as caught:
        prepare(tmp_path)
    assert caught.value.exit_code == 2
    assert caught.value.fix


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("echo 1", ["sh", "PATH", "a"]),
        ("#!/bin/bash -eu", ["/bin/bash", "-eu", "PATH", "a"]),
        ("#! /usr/bin/env bash", ["/usr/bin/env", "bash", "PATH", "a"]),
    ],
)
def test_a_shell_script_runs_as_its_first_line_says(script, first, expected) -> None:
    path = script(f"{first}\n", "run.sh")
    assert shell_command(path, ["a"]) == [path if w == "PATH" else w for w in expected]


def test_what_can_run_is_accepted(script) -> None:
    check_command(["true"])
    assert script_command(script("pass"), ["a"])[0] == sys.executable


def test_signals_are_handled_only_while_the_program_runs(tmp_path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    launch(["true"], settings(tmp_path / "run"))
    assert signal.getsignal(signal.SIGTERM) is before


# -- the real thing, once

TRAINS = """
import sys, torch
net = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    net(torch.ones(3, 2)).sum().backward()
    optimizer.step()
print(sys.argv)
"""


def test_a_shell_script_that_trains_leaves_a_trace(script, tmp_path) -> None:
    train = script(TRAINS, "train.py")
    shell = script(f'cd / && exec "{sys.executable}" "{train}" "$@"\n', "run.sh")
    done = collect("-s", shell, "-o", "run", "--", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{[train, 'a']}\n"
    assert program_stderr(done) == ""
    (process,) = manifest(tmp_path / "run")["processes"]
    (name,) = process["files"]
    kinds = {json.loads(line)["k"] for line in (tmp_path / "run" / name).read_text().splitlines()}
    assert {"mark", "call", "step", "optimizer"} <= kinds
