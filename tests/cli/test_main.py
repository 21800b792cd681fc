"""The way in: every error becomes a message and an exit status; commands load when asked for."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

import traincheck
from tests.builders import healthy_run
from traincheck import __version__
from traincheck.cli import main as entry
from traincheck.errors import OutputError, TraincheckError, UsageError
from traincheck.store.writer import TraceWriter

ENTRY = "import sys; from traincheck.cli.main import main; sys.exit(main())"


def run(callback: Callable[[], object]) -> int:
    return entry.run(click.Command("x", callback=callback), "traincheck-x", [])


def run_raising(error: BaseException) -> int:
    def invoke() -> None:
        raise error

    return run(invoke)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (UsageError("x is 1", fix="make it 2"), 2, "error: x is 1\n  fix: make it 2\n"),
        (OutputError("cannot write"), 2, "error: cannot write\n"),
        (click.ClickException("no such thing"), 2, "Error: no such thing\n"),
        (click.Abort(), 130, ""),
        (KeyboardInterrupt(), 130, "\n"),  # behind the ^C of a terminal
        (click.exceptions.Exit(4), 4, ""),
        (SystemExit(4), 4, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("a reason"), 1, "a reason\n"),
        (BrokenPipeError(), 141, ""),
    ],
)
def test_an_error_becomes_a_status_and_a_message(error, status, message, capfd) -> None:
    stdout = os.dup(1)
    try:
        assert run_raising(error) == status
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert capfd.readouterr().err == message


def test_a_bug_of_ours_is_called_that(capfd, monkeypatch) -> None:
    monkeypatch.delenv("TRAINCHECK_DEBUG", raising=False)
    assert run_raising(ZeroDivisionError("by zero")) == 3
    text = capfd.readouterr().err
    assert "bug in traincheck: ZeroDivisionError: by zero" in text
    for part in ("TRAINCHECK_DEBUG=1", "report it", f"traincheck {__version__}", "torch 2"):
        assert part in text
    assert "Traceback" not in text


def test_an_end_of_file_is_no_interrupt(capfd) -> None:
    assert run_raising(EOFError("no more")) == 3
    assert "bug in traincheck: EOFError: no more" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EACCES, "check its permissions"),
        (errno.EPERM, "check its permissions"),
        (errno.ENAMETOOLONG, "give a shorter path"),
        (errno.ENOENT, "check the path"),
        (errno.ENOTDIR, "check the path"),
        (errno.ELOOP, "correct the symbolic link"),
        (errno.EISDIR, "name a file"),
        (errno.EROFS, "choose a path on a disk"),
    ],
)
def test_what_the_system_refuses_of_a_path_is_bad_input(capfd, number, fix) -> None:
    reason = os.strerror(number)
    assert run_raising(OSError(number, reason, "given/path")) == 2
    said = capfd.readouterr().err
    assert f"error: given/path: {reason}\n  fix: {fix}" in said
    assert "bug" not in said


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOENT, "No such file or directory", traincheck.__file__ + "x"),  # ours
        OSError(errno.ENOENT, "No such file or directory"),  # of no path
        OSError(errno.EBADF, "Bad file descriptor", "given/path"),  # no path causes it
    ],
)
def test_an_error_of_the_system_may_be_a_bug_of_ours(capfd, error) -> None:
    assert run_raising(error) == 3
    assert "bug in traincheck" in capfd.readouterr().err


def test_a_working_directory_that_is_gone_is_named(tmp_path, monkeypatch, capfd) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(os.getcwd) == 2
    assert "error: the working directory was removed" in capfd.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["check", "-t", "PATH"],
        ["check", "-t", "PATH", "--follow"],
        ["check", "-t", "run", "-i", "PATH"],
        ["check", "-t", "run", "--baseline", "PATH"],
        ["check", "-t", "run", "--config", "PATH"],
        ["check", "-t", "run", "--output", "PATH"],
        ["infer", "-t", "PATH"],
        ["infer", "-t", "run", "-o", "PATH"],
        ["run", "PATH"],
        ["run", "-o", "PATH", "train.py"],
        ["run", "--baseline", "PATH", "train.py"],
        ["collect", "-p", "PATH"],
        ["collect", "-s", "PATH"],
        ["collect", "-o", "PATH", "-p", "train.py"],
        ["trace", "show", "PATH"],
        ["trace", "export", "PATH", "-o", "out"],
        ["trace", "export", "run", "-o", "PATH"],
        ["invariants", "list", "PATH"],
    ],
)
@pytest.mark.parametrize("path", ["x" * 300, "loop", "file/below"])
def test_a_path_that_cannot_be_used_is_bad_input(words, path, tmp_path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "train.py").touch()
    with TraceWriter(tmp_path / "run") as writer:
        for event in healthy_run(2):
            writer.emit(event)
    words = [path if word == "PATH" else word for word in words]
    assert entry.run(entry.main, "traincheck", words) == 2
    said = capfd.readouterr().err
    assert path in said
    assert "fix: " in said
    assert "bug" not in said


def test_a_bug_of_ours_shows_its_traceback_on_request(capfd, monkeypatch) -> None:
    monkeypatch.setenv("TRAINCHECK_DEBUG", "1")
    assert run_raising(ZeroDivisionError("by zero")) == 3
    assert "Traceback" in capfd.readouterr().err


def test_what_the_terminal_has_no_letters_for_is_spelled(monkeypatch) -> None:
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, "ascii"))
    assert run(lambda: sys.stdout.write("l\xe4uft \udcff \u4e2d") and None) == 0
    assert out.getvalue() == rb"l\xe4uft \udcff \u4e2d"


@pytest.mark.parametrize(("returned", "status"), [(0, 0), (1, 1), (None, 0), ("text", 0)])
def test_a_command_returns_its_status(returned, status) -> None:
    assert run(lambda: returned) == status


def test_every_error_of_ours_is_bad_input_unless_it_says_otherwise() -> None:
    assert {kind.exit_code for kind in TraincheckError.__subclasses__()} == {2}


@pytest.mark.parametrize("name", sorted(entry.COMMANDS))
def test_a_row_of_the_table_is_a_command(name) -> None:
    assert entry.load(name).help


def test_the_group_lists_and_finds_its_commands() -> None:
    assert list(entry.main.commands) == list(entry.COMMANDS)
    assert len(entry.main.commands) == len(entry.COMMANDS)
    assert "collect" in entry.main.commands
    assert "colect" not in entry.main.commands
    assert entry.main.commands["collect"] is entry.load("collect")


@pytest.mark.real_process
def test_help_lists_every_command_without_loading_one() -> None:
    code = f"{ENTRY[:-17]}\ntry: main()\nfinally: print([m for m in sys.modules if '.cmd_' in m])"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True
    )
    for name, row in entry.COMMANDS.items():
        assert f"  {name} " in done.stdout
        assert row.help in done.stdout
    assert done.stdout.endswith("[]\n")


def test_the_version_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, "--version"], capture_output=True, text=True, check=True
    )
    assert __version__ in done.stdout


def test_an_unknown_command_is_bad_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, "colect"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "colect" in done.stderr


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("train.py --lr 1", "run train.py --lr 1"),
        ("-p train.py x", "run train.py x"),
        ("-m pkg.train x", "run -- python -m pkg.train x"),
        ("env train.py", "run -- env train.py"),
    ],
)
def test_a_program_without_a_command_is_told_how_to_run(words: str, line: str, capsys) -> None:
    assert entry.run(entry.main, "traincheck", words.split()) == 2
    assert capsys.readouterr().err.endswith(f"  fix: traincheck {line}\n")


@pytest.mark.parametrize("word", ["colect", "--nonsense"])
def test_other_mistakes_are_not_taken_for_programs(word: str, capsys) -> None:
    assert entry.run(entry.main, "traincheck", [word]) == 2
    assert "traincheck run" not in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error() -> None:
    receiver, sender = os.pipe()
    os.close(receiver)
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, "--help"],
        stdout=sender,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(sender)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["--help"], ["rules"], ["rules", "--format", "json"]])
def test_output_without_room_is_an_error_of_the_disk(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", ENTRY, *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the output: cannot be written: No space left")
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["nonsense"], ["check", "-t", "not there"], ["rules", "extra"]])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_messages_without_room_leave_the_status_as_it_is(words: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-c", ENTRY, *words]
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stderr=full, env=env, check=False)
    assert done.returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [["collect", "-p"], ["collect", "--check", "-p"], ["run"]])
def test_a_program_keeps_its_status_where_messages_have_no_room(words: list[str], tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nsys.exit(5)\n")
    command = [sys.executable, "-c", ENTRY, *words, str(script)]
    env = {**os.environ, "PYTHONUNBUFFERED": ""}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stderr=full, env=env, cwd=tmp_path, check=False)
    assert done.returncode == 5


@pytest.mark.parametrize("words", [["run"], ["collect", "-p"], ["collect", "--check", "-p"]])
def test_other_systems_are_told_what_works_there(words, tmp_path, monkeypatch, capsys) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(5)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert entry.run(entry.main, "traincheck", [*words, str(script)]) == 2
    text = capsys.readouterr().err
    assert "error: recording works on Linux only; this system is darwin" in text
    assert "traincheck-check" in text
    assert not (tmp_path / "traces").exists()
    assert entry.run(entry.main, "traincheck", ["rules"]) == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_streams_that_were_closed_before_the_start_change_nothing(closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", ENTRY, "rules"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
