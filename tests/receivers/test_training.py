"""`traincheck run` with receivers, on a real program: training is the same, whatever they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.receivers.test_local_receivers import Server, samples, server  # noqa: F401  # a fixture
from tests.receivers.test_notifier import plugin  # noqa: F401  # a fixture
from tests.receivers.test_trackers import records_of

PROGRAM = """
import hashlib, sys, torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for step in range(12):
    loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 2, (8,)))
    loss.backward()
    optimizer.step()
    print(step, loss.item())
state = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print(hashlib.sha256(state).hexdigest(), torch.rand(1).item())
sys.exit(int(sys.argv[1]))
"""
pytestmark = pytest.mark.slow
LAUNCH = "from traincheck.cli.main import main; import sys; sys.exit(main())"


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(PROGRAM)
    path = os.pathsep.join(filter(None, (str(folder / "site"), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "WANDB_MODE": "offline", "WANDB_SILENT": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_bad_receivers_leave_training_findings_and_status_untouched(plugin: Path) -> None:  # noqa: F811
    alone = run(plugin, "train.py", "0")
    names = ("hanging", "raising", "dying", "unmade", "missing")
    bad = [word for name in names for word in ("--to", name)]
    checked = run(plugin, "-c", LAUNCH, "run", "--keep", *bad, "train.py", "0")
    assert checked.stdout == alone.stdout
    assert len(alone.stdout.splitlines()) == 13
    assert checked.returncode == 1
    assert "TC201 error" in checked.stderr
    failed = [line for line in checked.stderr.splitlines() if " failed: " in line]
    assert len(failed) == len(names), checked.stderr


def test_findings_are_sent_while_the_program_runs(plugin: Path, server: Server) -> None:  # noqa: F811
    """To W&B, a webhook, a file and a command, in one run of a program that then fails."""
    pytest.importorskip("wandb")
    (plugin / "note.py").write_text(
        "import os\nopen('noted', 'a').write(os.environ['TRAINCHECK_CODE'] + '\\n')\n"
    )
    to = [f"webhook={server.url}", "prometheus=run.prom", "wandb=silent"]
    words = [word for name in to for word in ("--to", name)]
    command = ["--on-finding", f"{sys.executable} note.py"]
    done = run(plugin, "-c", LAUNCH, "run", "-o", "t", *words, *command, "train.py", "3")
    assert done.returncode == 1, done.stderr
    assert (plugin / "noted").read_text() == "TC201\n"
    finding, report = server.bodies()
    assert (finding["kind"], report["kind"]) == ("finding", "report")
    assert finding["finding"]["where"]["line"] == 11
    assert finding["run"]["program"] == "train.py"
    assert finding["run"]["trace"] == str(plugin / "t")
    checked = run(plugin, "-c", LAUNCH, "check", "-t", "t", "--format", "json")
    document = json.loads(checked.stdout)
    assert report["report"]["summary"] == document["summary"]
    found = samples(plugin / "run.prom")
    names = 'program="train.py",run="t"'
    assert found["checks", f'{names},verdict="held"'] == document["summary"]["held"]
    records = records_of(plugin)
    assert [one.alert.title for one in records if one.WhichOneof("record_type") == "alert"] == [
        "TC201 error: Gradients are not cleared between optimizer steps"
    ]
    assert "traincheck: wandb: wandb sync " in done.stderr


def test_a_trace_that_is_not_kept_is_not_named(plugin: Path) -> None:  # noqa: F811
    good = PROGRAM.replace("    loss.backward()", "    optimizer.zero_grad(); loss.backward()")
    (plugin / "good.py").write_text(good)
    done = run(plugin, "-c", LAUNCH, "run", "--to", "kept", "good.py", "0")
    assert done.returncode == 0, done.stderr
    (report,) = [json.loads(line) for line in (plugin / "kept.jsonl").read_text().splitlines()]
    assert (report["kind"], report["exit_status"], report["run"]["trace"]) == ("report", 0, "")
    assert not (plugin / "traces").exists()


def test_an_interrupt_ends_the_waiting(plugin: Path) -> None:  # noqa: F811
    """Ctrl-C while a receiver hangs at the end of a check."""
    assert run(plugin, "-c", LAUNCH, "run", "-o", "t", "train.py", "0").returncode == 1
    code = LAUNCH.replace("import sys;", "import sys, signal, os, threading;")
    later = "threading.Timer(6, os.kill, (os.getpid(), signal.SIGINT)).start()"
    text = (plugin / "traincheck.toml").write_text("[sinks.hanging]\ntimeout = 200\n")
    assert text
    done = run(plugin, "-c", code.replace("sys.exit(", f"{later}; sys.exit("), "check", "-t", "t")
    assert done.returncode == 1, done.stderr
    assert "messages that are not sent yet are lost" in done.stderr
