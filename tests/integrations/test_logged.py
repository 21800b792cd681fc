"""Findings in the logs of Lightning and Transformers, and in receivers of a watch."""

from __future__ import annotations

import csv
import json
import logging
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import traincheck
from tests.receivers.test_notifier import kept, plugin  # noqa: F401  # a fixture
from traincheck.collect.active_session import CURRENT
from traincheck.errors import UsageError


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        yield


def fit(tmp_path: Path, *, broken: bool, loggers: Any = None) -> Any:
    lightning = pytest.importorskip("lightning")
    from traincheck.integrations.lightning import TraincheckCallback

    class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

        def training_step(self, batch, index):
            return self.head(torch.relu(self.body(batch))).square().mean()

        def configure_optimizers(self):
            trained = self.head.parameters() if broken else self.parameters()
            return torch.optim.Adam(trained, lr=0.01)

    csv_logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    trainer = lightning.Trainer(
        accelerator="cpu", enable_progress_bar=False, enable_model_summary=False, max_epochs=1,
        enable_checkpointing=False, logger=[*(loggers or ()), csv_logger],
        callbacks=[TraincheckCallback()],
    )  # fmt: skip
    model = Lit()
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(12, 4), 2))
    rows = [row for file in tmp_path.rglob("metrics.csv") for row in csv.DictReader(file.open())]
    return rows, model


def test_lightning_logs_findings_with_the_loggers_of_the_trainer(tmp_path: Path) -> None:
    rows, _ = fit(tmp_path, broken=True)
    found = [row for row in rows if row.get("traincheck/error")]
    assert found
    assert float(found[-1]["traincheck/error"]) >= 1
    assert int(found[0]["step"]) < 6  # while it trains


def test_lightning_logs_nothing_for_a_healthy_loop(tmp_path: Path) -> None:
    rows, _ = fit(tmp_path, broken=False)
    assert not [row for row in rows if float(row.get("traincheck/error") or 0)]


def test_a_logger_that_raises_disturbs_nothing(tmp_path: Path, caplog: Any) -> None:
    lightning = pytest.importorskip("lightning")

    class Raising(lightning.pytorch.loggers.CSVLogger):  # type: ignore[misc,name-defined]
        def log_metrics(self, metrics, step=None):
            raise RuntimeError("no quota")

    _, model = fit(tmp_path / "a", broken=True)
    torch.manual_seed(0)
    with caplog.at_level(logging.WARNING, "traincheck"):
        _, other = fit(tmp_path / "b", broken=True, loggers=[Raising(tmp_path / "c")])
    texts = [one.getMessage() for one in caplog.records]
    assert texts.count("traincheck: findings could not be logged: no quota") == 1
    assert all(map(torch.equal, model.parameters(), other.parameters()))


def train(*, broken: bool, first: bool) -> tuple[list[dict], list[dict]]:
    """The logs that a callback of ``report_to`` gets, and the history of the Trainer."""
    transformers = pytest.importorskip("transformers")
    from traincheck.integrations.transformers import TraincheckCallback

    got: list[dict] = []

    class Reporter(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
        def on_log(self, args, state, control, logs=None, **_):
            got.append(dict(logs))

    config = transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.transformer.wte.parameters(), lr=0.01) if broken else None
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (16, 8))]
    arguments = transformers.TrainingArguments(
        "unused", num_train_epochs=1, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_steps=1, save_strategy="no",
    )  # fmt: skip
    callback = TraincheckCallback()
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows, callbacks=[Reporter(), callback],
        optimizers=(optimizer, None),
    )  # fmt: skip
    if first:
        callback.log_first(trainer)
    trainer.train()
    return got, trainer.state.log_history


@pytest.mark.parametrize("first", [True, False])
def test_transformers_logs_findings(tmp_path, monkeypatch, first: bool) -> None:
    monkeypatch.chdir(tmp_path)
    got, history = train(broken=True, first=first)
    assert bool([logs for logs in got if logs.get("traincheck/error")]) is first
    assert history[-1]["traincheck/error"] >= 1
    assert "traincheck/error" not in history[0]


def test_transformers_logs_nothing_for_a_healthy_loop(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    got, history = train(broken=False, first=True)
    assert not [logs for logs in (*got, *history) if logs.get("traincheck/error")]
    assert len(history) > 4


def loop(**options: Any) -> tuple[list[torch.Tensor], Any, float]:
    torch.manual_seed(3)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    begin = time.monotonic()
    with traincheck.watch(model, optimizer, **options) as run:
        for _ in range(6):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
        trained_s = time.monotonic() - begin
    return [*model.parameters(), torch.get_rng_state()], run, trained_s


def test_a_watch_sends_to_receivers(plugin: Path) -> None:  # noqa: F811
    state, run, _ = loop()
    other, again, _ = loop(to=["kept"])
    assert all(map(torch.equal, state, other))
    assert [message["kind"] for message in kept()] == ["finding", "report"]
    assert kept()[0]["finding"]["code"] == "TC201"
    assert kept()[0]["finding"]["where"]["file"].endswith("test_logged.py")
    assert kept()[1]["summary"]["steps"] == run.report().steps == 6
    assert run.counts == again.counts == kept()[1]["counts"]
    assert json.dumps([one.id for one in run.findings]) == json.dumps(
        [one.id for one in again.findings]
    )


def test_a_watch_does_not_wait_for_bad_receivers_while_it_trains(
    plugin: Path,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    state, run, _ = loop()
    with caplog.at_level(logging.WARNING, "traincheck"):
        other, again, _ = loop(to=["hanging", "dying", "missing"])
    assert all(map(torch.equal, state, other))
    assert [one.code for one in run.findings] == [one.code for one in again.findings]
    failed = [one.getMessage() for one in caplog.records if " failed: " in one.getMessage()]
    assert sorted(text.split()[2] for text in failed) == ["dying", "hanging", "missing"]


def test_a_receiver_that_does_not_exist_is_refused_before_training(plugin: Path) -> None:  # noqa: F811
    with pytest.raises(UsageError, match="there is no receiver 'nowhere'"):
        loop(to=["nowhere"])
    with pytest.raises(UsageError, match="to is one string"):
        loop(to="wandb")
    assert CURRENT.session is None
