"""traincheck probe: its summary, its exit status, and where it ends the program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)
    def forward(self, x):
        x = self.head(x)
        return x - x.mean({dim})
model = Net(){more}
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range({steps}):
    optimizer.zero_grad()
    model(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
print("end")
"""


def probe(folder: Path, *words: str, **parts: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    given = {"dim": "", "more": "", "steps": "20", **parts}
    script.write_text(PROGRAM.format(**given))
    line = [sys.executable, "-m", "traincheck", "probe", *words, str(script)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, cwd=folder, capture_output=True, text=True, env=env, check=False)


def test_a_fault_is_reported_with_its_line(tmp_path: Path) -> None:
    done = probe(tmp_path, "--continue")
    assert (done.returncode, done.stdout) == (1, "end\n")
    assert "TC001" in done.stderr
    assert "the gradient is that of the loss: Net" in done.stderr


def test_a_healthy_program_is_ended_after_the_last_experiment(tmp_path: Path) -> None:
    done = probe(tmp_path, dim="1, keepdim=True", steps="1_000_000_000")
    assert (done.returncode, done.stdout) == (0, "")
    assert "other samples do not matter: Net" in done.stderr


def test_a_program_that_cannot_be_copied_checks_nothing(tmp_path: Path) -> None:
    done = probe(tmp_path, "--continue", more="; model.compile(backend='eager')")
    assert done.returncode == 4, done.stderr
    assert "the model is compiled" in " ".join(done.stderr.split())


BROKEN = """
import functools
from traincheck.collect.probes.experiments import row_mixing
row_mixing._changes = functools.partial(int, "no number")
"""


def test_a_fault_of_ours_in_an_experiment_has_the_status_of_our_faults(tmp_path: Path) -> None:
    done = probe(tmp_path, more=BROKEN, dim="1, keepdim=True", steps="1_000_000_000")
    assert done.returncode == 3, done.stderr
    text = " ".join(done.stderr.split())
    assert "failed a bug in traincheck: TypeError" in text or "a bug in traincheck: Val" in text
    assert text.count("report it") == 1
    assert "the gradient is that of the loss: Net" in text


def test_a_program_that_is_too_short_says_so(tmp_path: Path) -> None:
    done = probe(tmp_path, "--continue", steps="2")
    assert done.returncode == 4, done.stderr
    assert "not probed" in done.stderr
