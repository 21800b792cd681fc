"""traincheck monitor and traincheck metrics: unedited programs, ranks, tables, errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.harness import command
from traincheck.cli import main as entry
from traincheck.metrics.formats import load
from traincheck.metrics.trace import read_run
from traincheck.metrics.trackers import read_tensorboard

TRAIN = """
import os, sys, torch
from torch import nn
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.out = nn.Linear(3, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.out(torch.relu(self.fc(x)))

torch.manual_seed(0)
model, rows = Net(), torch.randn(6, 16, 3)
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    rows = rows[:, dist.get_rank()::2]
    model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)
for x in rows:
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
print("weight", next(model.parameters()).sum().item())
if dist.is_initialized():
    dist.destroy_process_group()
sys.exit(3)
"""
METRICS = ("act:mean,std,norm,count", "param:norm", "grad:norm", "update:ratio", "state:rms")


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "traincheck", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str, int]:
    folder = tmp_path_factory.mktemp("monitor")
    asked = [word for text in METRICS for word in ("--metrics", text)]
    done = run(folder, "monitor", "-o", "one", "--every", "1", *asked, "train.py")
    return folder, done.stdout, done.stderr, done.returncode


def test_the_program_is_as_without_us(recorded) -> None:
    folder, out, _, status = recorded
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (out, status) == (plain.stdout, plain.returncode)
    assert status == 3


def test_a_table_follows(recorded) -> None:
    _, _, errors, _ = recorded
    assert "6 steps measured, one in 1 after the first ones; 3 modules, 12 variables" in errors
    assert "Net.fc.weight" in errors
    assert "traincheck metrics one" in errors


def test_differences_to_the_start(recorded, tmp_path: Path) -> None:
    """Also within a wrapper: two ranks have the differences of one."""
    folder, out, _, _ = recorded
    words = ["--every", "1", "--reference", "init", "--rcc"]
    done = run(folder, "monitor", "-o", "start", *words, "train.py")
    assert done.stdout == out
    assert "RCC (W_t-W_0)x_t" in done.stderr
    one = read_run(folder / "start")
    assert one["activation_difference/Net/rms"][0] == 0 < one["activation_difference/Net/rms"][5]
    launch = [command("torchrun"), "--standalone", "--nproc-per-node", "2", "train.py"]
    run(tmp_path, "monitor", "-o", "two", *words, "--", *launch)
    two = read_run(tmp_path / "two")
    assert one.keys() == two.keys()
    for key, values in one.items():
        assert two[key] == pytest.approx(dict(values), rel=1e-4, abs=1e-6), key


def test_two_ranks_equal_one(recorded, tmp_path: Path) -> None:
    folder = recorded[0]
    asked = [word for text in METRICS for word in ("--metrics", text)]
    launch = [command("torchrun"), "--standalone", "--nproc-per-node", "2", "train.py"]
    done = run(tmp_path, "monitor", "-o", "two", "--every", "1", *asked, "--", *launch)
    assert "no metrics" not in done.stderr, done.stderr
    one, two = read_run(folder / "one"), read_run(tmp_path / "two")
    assert one.keys() == two.keys()
    for key, values in one.items():
        assert two[key] == pytest.approx(dict(values), rel=1e-5, abs=1e-6), key


def shown(capsys, monkeypatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["traincheck", *words])
    status = entry.main()
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_metrics_by_layer(recorded, capsys, monkeypatch) -> None:
    one = str(recorded[0] / "one")
    status, out, _ = shown(capsys, monkeypatch, "metrics", one, "--select", "activation/*/std")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0
    assert lines[0] == ["std"]
    assert lines[1] == ["activation", "first", "last", "trend"]
    assert [line[0] for line in lines[2:5]] == ["Net.fc", "Net.out", "Net"]
    values = read_run(one)["activation/Net.fc/std"]
    assert lines[2][1:3] == [f"{values[0]:.4g}", f"{values[5]:.4g}"]


def test_metrics_by_step(recorded, capsys, monkeypatch) -> None:
    one = str(recorded[0] / "one")
    words = ("metrics", one, "--by", "step", "--steps", "2:4", "--limit", "3")
    status, out, _ = shown(capsys, monkeypatch, *words)
    assert status == 0
    assert len(out.splitlines()) == 5
    assert "more: --limit 0" in out


@pytest.mark.parametrize("form", ["csv", "json"])
def test_metrics_as_data(recorded, capsys, monkeypatch, tmp_path: Path, form: str) -> None:
    one = str(recorded[0] / "one")
    status, out, _ = shown(capsys, monkeypatch, "metrics", one, "--format", form)
    assert status == 0
    file = tmp_path / f"m.{form}"
    file.write_text(out, encoding="utf-8")
    assert load(file) == read_run(one)
    if form == "json":
        assert json.loads(out)["activation/Net/count"]["0"] == 16


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["monitor", "--metrics", "act:kurtoses", "train.py"], "no statistic is called 'kurtoses'"),
        (["monitor", "--metrics", "acts:rms", "train.py"], "there are no metrics of 'acts'"),
        (["monitor", "--metrics", "attn:rms", "train.py"], "attention has no metric 'rms'"),
        (["monitor", "--modules", "(", "train.py"], "--modules is not a regular expression"),
        (["monitor", "--plugin", "none.py", "train.py"], "--plugin 'none.py' is not a file"),
        (["monitor", "--reference", "w.pt", "train.py"], "--reference 'w.pt' is not a file"),
        (["monitor", "--metrics", "diff:rms", "train.py"], "differences need a reference"),
        (["monitor"], "no program to run"),
        (["metrics", "none"], "none"),
    ],
)
def test_bad_usage(words, text, capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    status, _, errors = shown(capsys, monkeypatch, *words)
    assert status == entry.BAD_USAGE
    assert text in errors
    assert "fix:" in errors


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ("every = 0", "every in [monitor] is 0"),
        ('metrics = ["acts:rms"]', "there are no metrics of 'acts'"),
        ('metrics = [{on = "act", per = "rows"}]', "per is 'rows'"),
        ('reference = "w.pt"', "--reference 'w.pt' is not a file"),
    ],
)
def test_bad_configuration(table, text, capsys, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    (tmp_path / "traincheck.toml").write_text(f"[monitor]\n{table}\n", encoding="utf-8")
    status, _, errors = shown(capsys, monkeypatch, "monitor", "train.py")
    assert status == entry.BAD_USAGE
    assert text in errors


def test_configuration(tmp_path: Path) -> None:
    """The command line comes first; the file says what it leaves open."""
    table = 'every = 2\nwarmup = 0\nmetrics = ["grad:norm", {on = "act", per = "feature"}]'
    (tmp_path / "traincheck.toml").write_text(f"[monitor]\n{table}\n", encoding="utf-8")
    done = run(tmp_path, "monitor", "-o", "one", "--every", "3", "train.py")
    found = read_run(tmp_path / "one")
    assert found.steps == [0, 3], done.stderr
    assert {key.partition("/")[0] for key in found} == {"gradient", "activation"}
    assert found["activation/Net.fc.feature_7/rms"]


def test_options_of_metrics_that_match_nothing(recorded, capsys, monkeypatch) -> None:
    one = str(recorded[0] / "one")
    for words in (["--select", "nothing"], ["--steps", "90:"], ["--steps", "x"]):
        status, _, errors = shown(capsys, monkeypatch, "metrics", one, *words)
        assert status == entry.BAD_USAGE
        assert "fix:" in errors


def test_a_run_without_metrics(capsys, monkeypatch, tmp_path: Path) -> None:
    run(tmp_path, "collect", "-o", "plain", "-p", "train.py")
    status, _, errors = shown(capsys, monkeypatch, "metrics", str(tmp_path / "plain"))
    assert status == entry.BAD_USAGE
    assert "traincheck monitor" in errors


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("csv", "metrics.csv"),
        ("json", "metrics.json"),
        ("hdf5", "metrics.h5"),
        ("parquet", "metric-values.parquet"),
    ],
)
def test_exports(recorded, capsys, monkeypatch, tmp_path: Path, form: str, name: str) -> None:
    if form == "hdf5":
        pytest.importorskip("h5py")
    one, out = recorded[0] / "one", tmp_path / "out"
    words = ("trace", "export", str(one), "--format", form, "-o", str(out))
    assert shown(capsys, monkeypatch, *words)[0] == 0
    assert load(out / name) == read_run(one)


def test_export_to_tensorboard(recorded, capsys, monkeypatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    one, out = recorded[0] / "one", tmp_path / "out"
    words = ("trace", "export", str(one), "--format", "tensorboard", "-o", str(out))
    assert shown(capsys, monkeypatch, *words)[0] == 0
    assert read_tensorboard(out).keys() == read_run(one).keys()
