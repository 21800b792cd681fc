"""The Lightning callback: its reports are those of a trace, and training is the same."""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import recording
from traincheck.collect.tensors.step_checksums import StepChecksums
from traincheck.errors import UsageError
from traincheck.integrations.step_schedules import (
    Always,
    CombinedSchedule,
    Elapsed,
    Every,
    Fixed,
    GlobalRank,
    LocalRank,
    Never,
    Schedule,
)
from traincheck.store.checksum_layout import CHECKSUMS, STATISTICS, read_reports, to_layout
from traincheck.store.reader import TraceReader

if importlib.util.find_spec("lightning") is None:
    pytest.skip("needs Lightning", allow_module_level=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the framework's own
        yield


@cache
def lit() -> Any:
    """A class of Lightning, which takes seconds to import."""
    import lightning

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.norm = nn.Linear(4, 8), nn.BatchNorm1d(8)
            self.frozen, self.head = nn.Linear(8, 8), nn.Linear(8, 1)
            self.frozen.requires_grad_(False)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            hidden = self.frozen(self.norm(self.body(batch[0])))
            return nn.functional.mse_loss(self.head(torch.relu(hidden)), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.01)

    return Lit


def fit(*callbacks: Any, **options: Any) -> Any:
    import lightning

    torch.manual_seed(0)
    model = lit()()
    data = TensorDataset(torch.randn(12, 4), torch.randn(12, 1))
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=1, callbacks=list(callbacks), **options,
    )  # fmt: skip
    trainer.fit(model, DataLoader(data, 2, shuffle=True))
    return model


def introspection(folder: Path, **options: Any) -> Any:
    from traincheck.integrations.lightning_checksums import Introspection

    options = {"checksums": set(CHECKSUMS), "schedule": Always(), **options}
    return Introspection(output_path_prefix=folder, **options)


def reports(folder: Path) -> dict[str, Any]:
    found = (folder / "introspection").rglob("rank*.yaml")
    return {path.parent.name: yaml.safe_load(path.read_text("utf-8")) for path in sorted(found)}


@pytest.mark.parametrize("options", [{}, {"gradient_clip_val": 0.05}, {"precision": "bf16-mixed"}])
def test_reports_are_those_of_a_trace(tmp_path: Path, options: dict[str, Any]) -> None:
    with recording(tmp_path / "run", checksums="all") as run:
        fit(introspection(tmp_path, tensor_stats=set(STATISTICS)), **options)
    found = reports(tmp_path)
    assert list(found) == [f"step={n}" for n in range(6)]
    for report in read_reports(TraceReader(run.folder)):
        assert found[f"step={report.step}"] == to_layout(report)
    parameters = found["step=3"]["parameters"]
    assert parameters["frozen.weight"]["grad"] is None
    assert parameters["body.weight"]["grad"].count("|") == 17


def test_training_is_the_same(tmp_path: Path) -> None:
    plain = fit()
    state = torch.get_rng_state()
    watched = fit(introspection(tmp_path, tensor_stats=set(STATISTICS)))
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(plain.parameters(), watched.parameters()):
        assert torch.equal(one, other)


def test_accumulation_gives_one_report_for_an_update(tmp_path: Path) -> None:
    fit(introspection(tmp_path), accumulate_grad_batches=3)
    found = reports(tmp_path)
    assert list(found) == ["step=0", "step=1"]
    batch = found["step=1"]["batch"]
    assert [batch["__batch_idx__"], *(b["__batch_idx__"] for b in batch["earlier"])] == [5, 3, 4]


def test_only_what_is_asked_for_is_reported(tmp_path: Path) -> None:
    fit(introspection(tmp_path, checksums={"params"}, schedule=Fixed(2, 2)))
    found = reports(tmp_path)
    assert list(found) == ["step=2", "step=3"]
    assert list(found["step=2"]) == ["__about__", "parameters"]
    assert len(found["step=2"]["parameters"]["body.weight"]["data"]) == 32


def test_nothing_is_done_by_default(tmp_path: Path) -> None:
    from traincheck.integrations.lightning_checksums import Introspection

    fit(Introspection(output_path_prefix=tmp_path), Introspection({"params"}, schedule=Never()))
    assert not list(tmp_path.iterdir())


def test_the_environment_is_that_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_TOKEN", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    fit(introspection(tmp_path, env_vars=True, pip_freeze=True, schedule=Never()))
    folder = tmp_path / "introspection"
    found = yaml.safe_load((folder / "env_vars.yaml").read_text("utf-8"))
    assert found["OMP_NUM_THREADS"] == "1"
    assert "secret" not in (folder / "env_vars.yaml").read_text("utf-8")
    assert set(found) < set(os.environ)
    versions = yaml.safe_load((folder / "pip_freeze.yaml").read_text("utf-8"))
    assert versions["torch"]


@pytest.mark.parametrize("method", ["before_update", "finish", "add_batch"])
def test_a_failure_of_ours_ends_the_reports_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("ours")

    plain = fit()
    monkeypatch.setattr(StepChecksums, method, broken)
    watched = fit(introspection(tmp_path))
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    assert not reports(tmp_path)
    assert [r.message for r in caplog.records if "no more reports" in r.message] == [
        "traincheck: no more reports of checksums: RuntimeError('ours')"
    ]


def test_a_folder_that_cannot_be_written_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    fit(introspection(tmp_path / "file"))
    assert any("cannot write" in record.message for record in caplog.records)


def test_hooks_are_removed_when_training_fails(tmp_path: Path) -> None:
    import lightning
    from torch.optim import optimizer as optimizers

    class Broken(lit()):  # type: ignore[misc]
        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            raise ValueError("it went wrong")

    before = len(optimizers._global_optimizer_pre_hooks)
    trainer = lightning.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=1, callbacks=[introspection(tmp_path)],
    )  # fmt: skip
    with pytest.raises(ValueError, match="it went wrong"):
        trainer.fit(Broken(), DataLoader(TensorDataset(torch.randn(4, 4), torch.randn(4, 1))))
    assert len(optimizers._global_optimizer_pre_hooks) == before


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no group of checksums is called 'weights'"):
        introspection(tmp_path, checksums={"weights"})
    with pytest.raises(UsageError, match="no statistic is called 'median'"):
        introspection(tmp_path, tensor_stats={"median"})


# -- schedules


def steps_of(schedule: Schedule, count: int = 8, **moment: Any) -> list[int]:
    given = {"stage": "train", "trainer": None, **moment}
    return [n for n in range(count) if schedule.check(batch_idx=n, step=n, **given)]


def test_schedules_choose_moments() -> None:
    assert steps_of(Never()) == []
    assert steps_of(Always(), 3) == [0, 1, 2]
    assert steps_of(Fixed(2, 3)) == [2, 3, 4]
    assert steps_of(Every(n_steps=3)) == [0, 3, 6]
    assert steps_of(Every(n_batches=4, n_steps=3)) == [0, 3, 4, 6]
    assert steps_of(Every(n_steps=3, stage="train"), stage="test") == []


def test_schedules_combine() -> None:
    assert steps_of(Fixed(0, 2) | Every(n_steps=4)) == [0, 1, 4]
    assert steps_of(Fixed(0, 5) & ~Every(n_steps=2)) == [1, 3]
    both = CombinedSchedule(lambda a, b: a != b, [Fixed(0, 3), Fixed(2, 3)])
    assert steps_of(both) == [0, 1, 3, 4]


def test_ranks_are_those_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = SimpleNamespace(global_rank=3, local_rank=1)
    assert steps_of(GlobalRank(3), 1, trainer=trainer) == [0]
    assert steps_of(GlobalRank(0, 1), 1, trainer=trainer) == []
    assert steps_of(LocalRank(1), 1, trainer=trainer) == [0]
    monkeypatch.setenv("RANK", "2")
    assert steps_of(GlobalRank(2), 1) == [0]


def test_an_interval_has_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([0.0, 5.0, 10.0, 12.0, 21.0])
    monkeypatch.setattr("traincheck.integrations.step_schedules.monotonic", lambda: next(now))
    assert steps_of(Elapsed(timedelta(seconds=10)), 5) == [0, 2, 4]


@pytest.mark.parametrize("arguments", [{}, {"n_steps": -1}, {"n_steps": 1, "stage": "fit"}])
def test_unusable_schedules_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Every(**arguments)
    with pytest.raises(UsageError):
        CombinedSchedule(max, [])
