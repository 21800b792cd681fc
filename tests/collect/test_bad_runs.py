"""Runs that go wrong: an error that names the path, or training unharmed and nothing lost."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from benchmarks import harness
from benchmarks.harness import PROGRAMS
from benchmarks.lab import checked
from traincheck.collect.trace_writer import event_file

LOOP = """
import os, signal, sys
import torch
from torch import nn

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    if step == 9:
        {end}
print("reached the end")
"""


@pytest.fixture
def collect(tmp_path):
    """Record a script given as text, into a separate folder."""

    def start(text, out=None, **options):
        script = tmp_path / "script.py"
        script.write_text(text)
        return harness.collect(script, out or tmp_path / "run", **options)

    return start


def steps_in(trace):
    return [r["s"] for r in harness.records(trace) if r["k"] == "step"]


def assert_clean_error(done, *words):
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert str(word) in done.stderr


def test_missing_script(tmp_path):
    missing = tmp_path / "nowhere.py"
    done = harness.collect(missing, tmp_path / "run")
    assert_clean_error(done, missing)
    assert not (tmp_path / "run").exists()


def test_script_with_a_syntax_error(tmp_path, collect):
    done = collect("def broken(:\n")
    bare = harness.plain(tmp_path / "script.py")
    assert done.returncode == bare.returncode == 1
    assert "SyntaxError" in done.stderr
    assert bare.stderr in done.stderr  # Python's own words, with none of our frames among them


def test_exit_status_is_the_programs_own(tmp_path, collect):
    assert collect(LOOP.format(end="sys.exit(3)")).returncode == 3
    assert len(steps_in(tmp_path / "run")) == 10


def test_a_script_that_raises_keeps_its_traceback(tmp_path, collect):
    """A call fails inside torch while it is recorded: the exception passes through as it was."""
    done = collect(LOOP.format(end="model(torch.randn(8, 5))"))
    bare = harness.plain(tmp_path / "script.py")
    assert done.returncode == bare.returncode == 1
    assert "RuntimeError: " in bare.stderr
    assert bare.stderr in done.stderr  # none of our frames in it
    assert steps_in(tmp_path / "run")[:10] == list(range(10))
    exceptions = [r for r in harness.records(tmp_path / "run") if r.get("exception")]
    assert exceptions


def test_a_model_that_a_package_keeps_dies_in_silence(collect):
    """At the very end of a process names of files are gone: dill, say, holds ``__main__``."""
    kept = LOOP.format(end="import string; string.kept = model, optimizer")
    done = collect(kept, more=["--quiet"])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was ended by SIGKILL: its folder, and how the recording ended."""
    folder = tmp_path_factory.mktemp("killed")
    script = folder / "script.py"
    script.write_text(LOOP.format(end="os.kill(os.getpid(), signal.SIGKILL)"))
    return folder / "run", harness.collect(script, folder / "run")


def test_sigkill_loses_nothing_that_happened(killed):
    run, done = killed
    assert done.returncode == 128 + signal.SIGKILL
    # The last step may be open: its end is seen only when the next one begins.
    assert steps_in(run)[:9] == list(range(9))
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["signal"] in (signal.SIGKILL, "SIGKILL")
    report = checked(run)
    assert report["summary"]["steps"] >= 9
    assert report["findings"] == []


def test_torn_last_line_is_skipped_and_counted(tmp_path, killed):
    shutil.copytree(killed[0], tmp_path / "run")
    whole = checked(tmp_path / "run")["summary"]
    (file,) = harness.event_files(tmp_path / "run")
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    done = harness.run(harness.check_argv(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["events"] == whole["events"] - 1
    text = harness.run([harness.command("traincheck-check"), "-t", tmp_path / "run"])
    said = (text.stdout + text.stderr).lower()
    assert "1 line" in said or "skipped" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_reaches_the_program(tmp_path, collect, number):
    script = tmp_path / "script.py"
    script.write_text(
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(17))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    argv = [harness.command("traincheck-collect"), "-p", script, "-o", tmp_path / "run"]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True)
    with process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.wait(timeout=300) == 17


MARKER = "import pathlib; pathlib.Path({path!r}).touch()"


def test_output_path_is_a_file(tmp_path, collect):
    out, marker = tmp_path / "taken", tmp_path / "ran"
    out.write_text("mine")
    assert_clean_error(collect(MARKER.format(path=str(marker)), out=out), out)
    assert out.read_text() == "mine"
    assert not marker.exists()  # nothing is run that cannot be recorded


def test_output_folder_cannot_be_written(tmp_path, collect):
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    # Root may write everywhere but in the kernel's own file systems.
    out = locked / "run" if os.geteuid() else "/proc/traincheck-run"
    assert_clean_error(collect("print('ran')", out=out), out)


def test_output_folder_that_holds_a_trace_is_kept(tmp_path, collect):
    collect("import torch")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert_clean_error(collect("import torch"), tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


def assert_unharmed(bare, done, trace):
    """Training went on to its own end, and what is missing is admitted."""
    assert done.returncode == bare.returncode == 0, done.stderr
    assert done.stdout == bare.stdout
    assert "Traceback" not in done.stderr
    report = harness.run(harness.check_argv(trace))
    assert report.returncode in (0, 1), report.stderr
    summary = json.loads(report.stdout)["summary"]
    assert summary["events"] > 0


def test_file_size_limit_does_not_harm_training(tmp_path):
    """Writing fails in mid-run (RLIMIT_FSIZE, which needs no privilege)."""
    script, out = PROGRAMS / "mlp_dropout.py", tmp_path / "run"
    bare = harness.plain(script)
    collect = [harness.command("traincheck-collect"), "-p", script, "-o", out]
    # Python writes compiled modules without a look at how much was written: they would be cut
    shell = 'export PYTHONDONTWRITEBYTECODE=1; ulimit -f 64; exec "$@"'  # blocks of 512 bytes
    assert_unharmed(bare, harness.run(["sh", "-c", shell, "sh", *collect]), out)
    assert sum(path.stat().st_size for path in harness.event_files(out)) <= 64 * 1024
    notes = json.loads((out / "manifest.json").read_text())["notes"]
    assert any("could not write all of its records" in note for note in notes)
    # One run in some two hundred reaches the limit with the last byte of a record
    is_cut = any(not path.read_bytes().endswith(b"\n") for path in harness.event_files(out))
    assert any("ends within a record" in note for note in notes) == is_cut


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 200 kB, where mounting is permitted."""
    mount, unmount = shutil.which("mount"), shutil.which("umount")
    place = tmp_path / "small"
    place.mkdir()
    argv = [mount, "-t", "tmpfs", "-o", "size=200k", "tmpfs", place]
    if (
        mount is None
        or unmount is None
        or subprocess.run(argv, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a tmpfs is not permitted here")
    yield place
    subprocess.run([unmount, "-l", place], check=True)


FILL = """
        file = os.open(os.environ["UP_FILL"], os.O_WRONLY | os.O_CREAT)
        try:
            while os.write(file, bytes(1024)):
                pass
        except OSError:
            print("no room")
"""


def test_full_disk_does_not_harm_training(tmp_path, small_disk, collect):
    """The program fills the disk that its trace is on."""
    out, fill = small_disk / "run", small_disk / "fill"
    done = collect(LOOP.format(end=FILL), out, env={"UP_FILL": fill})
    assert shutil.disk_usage(small_disk).free < event_file.WINDOW  # it was full
    fill.unlink()
    assert_unharmed(harness.plain(tmp_path / "script.py", env={"UP_FILL": fill}), done, out)


SAVES = """
import os
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.Adam(model.parameters())
for step in range(300):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).sum().backward()
    optimizer.step()
torch.save([model.state_dict(), torch.zeros(15_000)], os.environ["UP_TARGET"])
print("saved")
"""


def test_a_trace_leaves_room_for_a_checkpoint(tmp_path, small_disk, collect):
    """The disk would be full of records when the program saves: it is the program's."""
    out, target = small_disk / "run", small_disk / "checkpoint.pt"
    done = collect(SAVES, out, env={"UP_TARGET": target})
    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr
    (note,) = json.loads((out / "manifest.json").read_text())["notes"]
    assert "the disk of the trace was nearly full" in note
    assert 0 < len(steps_in(out)) < 300
    assert note in json.dumps(checked(out))


def test_environment_stays_out_of_the_trace(tmp_path, collect):
    secrets = {
        "AWS_SECRET_ACCESS_KEY": "s3cret-alpha-1",
        "HF_TOKEN": "s3cret-beta-2",
        "MY_SETTING": "s3cret-gamma-3",
        "TRAINCHECK_NOT_OURS": "s3cret-delta-4",
    }
    done = collect(LOOP.format(end="print(len(os.environ['HF_TOKEN']))"), env=secrets)
    assert done.returncode == 0
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) >= 2
    for path in files:
        assert b"s3cret" not in path.read_bytes(), path


def test_program_started_with_no_collector_of_its_own_is_admitted(tmp_path):
    """``-I`` and ``-E`` interpreters escape: the run ends as it would, and the manifest says so."""
    collect = [harness.command("traincheck-collect"), "-o", tmp_path / "run", "--"]
    done = harness.run([*collect, sys.executable, "-I", "-c", "print('ran')"])
    assert done.returncode == 0
    assert done.stdout == "ran\n"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["processes"] == []
    assert manifest["notes"]
