"""traincheck trace checksums, end to end: two ranks, a frozen layer, bfloat16, accumulation."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
import yaml

from benchmarks import harness
from tests.collect.checksum_reference import reference
from traincheck.cli.main import main
from traincheck.collect.tensors.fingerprint import fingerprint

PROGRAM = """
import os, torch, numpy, random
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank); numpy.random.seed(rank); random.seed(rank)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.last.to(torch.bfloat16)

    def forward(self, x):
        return self.last(self.frozen(self.norm(self.first(x))).relu().bfloat16()).float()


net = Net()
model = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
seen = {}


def copy(tensor):
    return tensor.detach().clone()


for step in range(3):
    local = {}
    handles = []
    if step == 1:
        for name, p in net.named_parameters():
            if p.requires_grad:
                def hook(p, name=name):
                    local[name] = copy(p.grad)
                handles.append(p.register_post_accumulate_grad_hook(hook))
    optimizer.zero_grad()
    with model.no_sync():
        (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    (model(torch.randn(8, 4)).pow(2).mean() / 2).backward()
    if step == 1:
        named = dict(net.named_parameters())
        seen = {
            "data": {n: copy(p) for n, p in named.items()},
            "grad": {n: copy(p.grad) for n, p in named.items() if p.grad is not None},
            "local_grad": local,
            "buffers": {n: copy(b) for n, b in net.named_buffers()},
            "state": {n: {k: copy(v) for k, v in optimizer.state[p].items()}
                      for n, p in named.items() if p in optimizer.state},
            "rng": torch.get_rng_state(),
            "numpy": numpy.random.get_state()[2],
        }
    for handle in handles:
        handle.remove()
    optimizer.step()
torch.save(seen, f"seen{rank}.pt")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks with its reports."""
    folder = tmp_path_factory.mktemp("checksums")
    (folder / "train.py").write_text(PROGRAM)
    torchrun = [harness.command("torchrun"), "--nproc-per-node", "2", "--standalone", "train.py"]
    collect = [harness.command("traincheck"), "collect", "--checksums", "1:3", "-o", "run", "--"]
    done = subprocess.run(
        [*collect, *torchrun], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert main(["trace", "checksums", str(folder / "run"), "-o", str(folder / "out")]) == 0
    return folder


def report(folder: Path, rank: int, step: int = 1) -> dict[str, Any]:
    path = folder / "out" / f"step={step}" / f"rank{rank}.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    return found


def check(text: str, tensor: torch.Tensor) -> None:
    """All 17 statistics of a tensor."""
    shape, dtype, *numbers, digest = text.split("|")
    assert shape == ("×".join(map(str, tensor.shape)) or "()")  # noqa: RUF001
    assert (
        dtype == {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int64: "i64"}[tensor.dtype]
    )
    assert f"xxh3-128:{digest}" == fingerprint(tensor)
    symbols = ("∞̟", "∞̠", "⚠", "⌀", "m̃", "μ", "μ⁺", "σ", "σ²", "s²", "γ₁", "γ₂", "Mo", "↤", "↦")  # noqa: RUF001
    names = (
        "posinf", "neginf", "nans", "zeros", "med", "mean", "amean", "std", "var", "uvar",
        "skew", "kurt", "mode", "min", "max",
    )  # fmt: skip
    expected = reference(tensor)
    for name, symbol, number in zip(names, symbols, numbers, strict=True):
        assert number.endswith(symbol)
        told = number.removesuffix(symbol)
        if name in expected:
            assert float(told) == pytest.approx(expected[name], rel=1e-6, abs=1e-12, nan_ok=True)
        else:
            assert told in ("?", "nan")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_report_has_the_right_values(folder: Path, rank: int) -> None:
    found = report(folder, rank)
    seen = torch.load(folder / f"seen{rank}.pt", weights_only=False)
    parameters = {n: e for n, e in found["parameters"].items() if not n.startswith("__")}
    assert parameters.keys() == seen["data"].keys()
    for name, entry in parameters.items():
        check(entry["data"], seen["data"][name])
        for key in ("grad", "local_grad"):
            if name.startswith("frozen"):
                assert entry.get(key) is None
            else:
                check(entry[key], seen[key][name])
    buffers = {n: text for n, text in found["buffers"].items() if n != "__all_buffers__"}
    assert buffers.keys() == seen["buffers"].keys()
    for name, text in buffers.items():
        check(text, seen["buffers"][name])
    state = found["optimizers"][0]["state"]
    assert {n: set(s) for n, s in state.items()} == {n: set(s) for n, s in seen["state"].items()}
    for name, entries in state.items():
        for key, text in entries.items():
            check(text, seen["state"][name][key])
    assert f"xxh3-128:{found['rngs']['torch']}" == fingerprint(seen["rng"])
    assert found["rngs"]["numpy"]["pos"] == seen["numpy"]


def test_reduced_gradients_agree_and_local_ones_do_not(folder: Path) -> None:
    one, other = (report(folder, rank)["parameters"] for rank in (0, 1))
    assert one["__all_grads__"] == other["__all_grads__"]
    assert one["__all_data__"] == other["__all_data__"]
    assert one["__all_local_grads__"] != other["__all_local_grads__"]


def test_there_is_a_file_for_each_step_and_rank(folder: Path) -> None:
    files = sorted(path.relative_to(folder / "out").as_posix() for path in folder.rglob("*.yaml"))
    assert files == [f"step={s}/rank{r}.yaml" for s in (1, 2) for r in (0, 1)]


def test_steps_ranks_and_formats_are_chosen(folder: Path, capsys: pytest.CaptureFixture) -> None:
    run = str(folder / "run")
    words = ["--rank", "1", "--steps", "2:", "--format", "json", "--groups", "rngs"]
    assert main(["trace", "checksums", run, *words]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = orjson.loads(line)
    assert list(found) == ["__about__", "rngs"]
    assert (found["__about__"]["step"], found["__about__"]["rank"]) == (2, 1)
    assert main(["trace", "checksums", run, "--statistics", "hash"]) == 0
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [(d["__about__"]["step"], d["__about__"]["rank"]) for d in documents] == [
        (1, 0), (1, 1), (2, 0), (2, 1),
    ]  # fmt: skip
    assert len(documents[0]["buffers"]["norm.running_mean"]) == 32


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "7:"], "has no checksums of these steps and ranks"),
        (["--steps", "a"], "steps are 'a'"),
        (["--statistics", "sum"], "no statistic is called 'sum'"),
        (["--groups", "weights"], "no group of checksums is called 'weights'"),
        (["-o", "train.py"], "is a file"),
    ],
)
def test_bad_words_are_usage_errors(
    folder: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert main(["trace", "checksums", "run", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "fix:" in error


def test_a_schedule_that_is_none_is_refused_before_the_program_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    assert main(["collect", "--checksums", "each=3", "-p", "train.py"]) == 2
    assert "fix: for example all, every=100" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
