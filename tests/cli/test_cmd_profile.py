"""traincheck profile: programs, traces, comparisons, and exit statuses."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from traincheck.cli import main as entry
from traincheck.collect.profile.memory import IS_READABLE

PROGRAM = """\
import sys, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Sequential(nn.Linear(8, 32), nn.ReLU(inplace=True), nn.Linear(32, 8))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        x = checkpoint(self.a, x, use_reentrant=False) if "again" in sys.argv else self.a(x)
        if "nan" in sys.argv:
            x = x / (x * 0)
        return self.head(x)

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.randn(64, 8), batch_size=8)
for _ in range(int(sys.argv[1])):
    for x in data:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
print("end of the program", sum(p.sum().item() for p in model.parameters()))
sys.exit(5 if "fails" in sys.argv else 0)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["traincheck", "profile", *words])
    return entry.main()


def test_a_table_of_a_program(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--step", "3", "--steps", "2", script, "1") == 0
    text = capfd.readouterr().out
    assert "end of the program" in text
    assert "Net: 0.0 parameters" not in text
    assert "Linear" in text
    assert "steps 3-4 (median duration)" in text
    assert "first NaN  none in 2 steps" in text


def test_json_csv_and_their_difference(
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    plain, again, flat = (str(tmp_path / name) for name in ("a.json", "b.json", "c.csv"))
    few = ("--step", "3", "--steps", "1")
    assert run(monkeypatch, *few, "--format", "json", "-o", plain, script, "1") == 0
    assert run(monkeypatch, *few, "--format", "json", "-o", again, script, "1", "again") == 0
    assert run(monkeypatch, *few, "--format", "csv", "-o", flat, script, "1") == 0
    found = json.loads(Path(plain).read_text())
    info = found["tree"]["Net"]["children"]["a"]["children"]["0"]["info"]
    assert info["type"] == "Linear"
    assert info["retained"] == (8 * 8 * 4 if IS_READABLE else 0)  # its input
    rows = list(csv.DictReader(io.StringIO(Path(flat).read_text())))
    assert [row["path"] for row in rows][:3] == ["Net", "Net.a", "Net.a.0"]
    assert rows[2]["output_shapes"] == "8x32"
    capfd.readouterr()
    assert run(monkeypatch, "--diff", plain, again) == 1
    text = capfd.readouterr().out
    assert "Net.a\n" in text
    assert "computed again" in text
    assert run(monkeypatch, "--diff", plain, plain) == 0
    assert "no layer differs" in capfd.readouterr().out


def test_the_program_ends_after_the_profiled_steps(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--step", "2", "--steps", "1", "--stop", script, "100000") == 0
    text = capfd.readouterr().out
    assert "end of the program" not in text
    assert "Linear" in text


def test_the_status_of_the_program_is_kept(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--step", "1", script, "1", "fails") == 5
    assert "Linear" in capfd.readouterr().out


def test_too_few_steps(
    script: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--step", "50", script, "1") == 4
    assert "the run had 8 steps, and --step is 50" in capfd.readouterr().err


def test_the_first_nan_of_a_program_and_of_its_trace(
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    trace = str(tmp_path / "trace")
    words = ("--step", "0", "--steps", "1", "--trace", trace, "--first-nonfinite")
    assert run(monkeypatch, *words, script, "1", "nan") == 1
    told = capfd.readouterr().out.splitlines()[-1]
    assert told.startswith("step 0, forward: div in Net returns ")
    assert told.endswith(f" at {script}:14")
    assert run(monkeypatch, trace, "--first-nonfinite") == 1
    assert capfd.readouterr().out.splitlines() == [told]
    assert run(monkeypatch, trace, "--sort", "flops", "--top", "2") == 0
    assert "output not finite" in capfd.readouterr().out


def test_a_trace_without_a_profile_is_checked_by_the_rule(
    script: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for word, status in (("nan", 1), ("fine", 0)):
        trace = str(tmp_path / word)
        words = ["traincheck", "collect", "--rules", "-o", trace, "-p", script, "1", word]
        monkeypatch.setattr(sys, "argv", words)
        assert entry.main() == 0
        capfd.readouterr()
        assert run(monkeypatch, trace, "--first-nonfinite") == status
        assert ("TC701" in capfd.readouterr().out) is bool(status)
        assert run(monkeypatch, trace) == 2
        assert "no profiled step" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ((), "traincheck profile train.py"),
        (("--sort", "flop", "x.py"), "did you mean flops"),
        (("--columns", "out,retaned", "x.py"), "did you mean retained"),
        (("--diff", "missing.json"), "--diff A.json B.json"),
        (("missing.py",), "check the path"),
    ],
)
def test_bad_usage_names_the_fix(
    words: tuple[str, ...],
    fix: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *words) == 2
    assert fix in capfd.readouterr().err


def test_a_file_that_is_no_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for number, text in enumerate(("[]", "{}", "no json", '{"tree": 3, "schema_version": 1}')):
        path = tmp_path / f"{number}.json"
        path.write_text(text)
        assert run(monkeypatch, "--diff", str(path), str(path)) == 2
        assert "is not a profile" in capfd.readouterr().err
