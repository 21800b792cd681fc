"""Callbacks of Lightning and Transformers, the helper for Accelerate: with the real libraries.

In each the gradients are gone when a callback of the framework is called; the planted bugs are in
what happens before.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traincheck.collect.active_session import CURRENT
from traincheck.errors import MissingDependencyError, UsageError
from traincheck.integrations.watching import Watch

CALL = nn.Module.__call__


@pytest.fixture(autouse=True)
def _quiet_and_clean(monkeypatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the frameworks' own
        yield
    assert CURRENT.session is None
    assert nn.Module.__call__ is CALL


def codes(run: Watch) -> list[tuple[str, int | None]]:
    return [(f.code, f.first_step) for f in run.findings if f.severity != "info"]


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.randn(12, 4), torch.randn(12, 1)), 2)


class TestLightning:
    def fit(
        self, *, broken: bool, fails: bool = False, trainer: Mapping[str, Any] = {}, **options: Any
    ) -> Any:
        lightning = pytest.importorskip("lightning")
        from traincheck.integrations.lightning import TraincheckCallback

        class Lit(lightning.LightningModule):  # type: ignore[misc,name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

            def training_step(self, batch, index):
                x, y = batch
                if fails and index == 3:
                    raise ValueError("it went wrong")
                return nn.functional.mse_loss(self.head(torch.relu(self.body(x))), y)

            def configure_optimizers(self):
                trained = self.head.parameters() if broken else self.parameters()
                return torch.optim.Adam(trained, lr=0.01)

            def validation_step(self, batch, index):
                self.log("loss", self.training_step(batch, index=0))

        callback = TraincheckCallback(**options)
        defaults: dict[str, Any] = {"enable_checkpointing": False, "max_epochs": 1, **trainer}
        made = lightning.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            num_sanity_val_steps=0, **{**defaults, "callbacks": [
                *defaults.get("callbacks", ()), callback
            ]},
        )  # fmt: skip
        made.fit(Lit(), loader(), loader())
        return callback, made

    def test_a_healthy_loop_is_quiet(self) -> None:
        callback, _ = self.fit(broken=False)
        assert codes(callback.run) == []
        assert callback.run.report().steps == 6

    def test_a_planted_bug_is_found(self) -> None:
        callback, _ = self.fit(broken=True)
        assert ("TC101", 0) in codes(callback.run)
        assert {"Lit.body.weight"} <= set(callback.run.findings[0].variables)

    def test_halt_ends_training(self) -> None:
        """The first step cannot show it yet: a parameter may be updated by hand later on."""
        _, trainer = self.fit(broken=True, halt=True, trainer={"min_epochs": 1})
        assert trainer.global_step == 2
        assert trainer.fit_loop.min_epochs == 1

    @pytest.mark.parametrize("broken", [True, False])
    @pytest.mark.parametrize("when", ["steps", "epochs", "validation", "exception"])
    def test_nothing_is_saved_after_a_halt(self, tmp_path, when, broken) -> None:
        lightning = pytest.importorskip("lightning")
        callbacks = lightning.pytorch.callbacks
        saver = {
            "steps": lambda: callbacks.ModelCheckpoint(
                tmp_path, "{step}", every_n_train_steps=1, save_top_k=-1, save_last=True
            ),
            "epochs": lambda: callbacks.ModelCheckpoint(
                tmp_path, "{step}", save_on_train_epoch_end=True, save_last=True
            ),
            "validation": lambda: callbacks.ModelCheckpoint(tmp_path, "{step}", monitor="loss"),
            "exception": lambda: callbacks.OnExceptionCheckpoint(tmp_path),
        }[when]()
        options = {"enable_checkpointing": True, "callbacks": [saver]}
        _, trainer = self.fit(broken=broken, halt=True, trainer=options)
        kept = {"steps": ["last", "step=1"]} if broken else {
            "steps": ["last", *(f"step={n}" for n in range(1, 7))],
            "epochs": ["last", "step=6"],
            "validation": ["step=6"],
        }  # fmt: skip
        names = sorted(path.stem for path in tmp_path.glob("*.ckpt"))
        assert names == kept.get(when, [])
        assert saver in trainer.checkpoint_callbacks
        if names == ["last", "step=1"]:
            assert torch.load(tmp_path / "last.ckpt", weights_only=False)["global_step"] == 1

    def test_nothing_stays_when_training_fails(self) -> None:
        with pytest.raises(ValueError, match="it went wrong"):
            self.fit(broken=False, fails=True)
        assert CURRENT.session is None


class TestTransformers:
    def train(
        self,
        *,
        broken: bool,
        fails: bool = False,
        arguments: Mapping[str, Any] = {},
        also: Any = None,
        **options: Any,
    ) -> Any:
        transformers = pytest.importorskip("transformers")
        from traincheck.integrations.transformers import TraincheckCallback

        config = transformers.GPT2Config(
            vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2
        )
        model = transformers.GPT2LMHeadModel(config)
        optimizer = None
        if broken:
            optimizer = torch.optim.AdamW(model.transformer.wte.parameters(), lr=0.01)
        rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 32, (12, 8))]
        rows[9] = {} if fails else rows[9]
        callback = TraincheckCallback(**options)
        with tempfile.TemporaryDirectory() as folder:
            given = transformers.TrainingArguments(
                folder, num_train_epochs=1, per_device_train_batch_size=2, report_to=[],
                use_cpu=True, disable_tqdm=True, logging_strategy="no",
                **{"save_strategy": "no", **arguments},
            )  # fmt: skip
            trainer = transformers.Trainer(
                model, given, train_dataset=rows, eval_dataset=rows,
                callbacks=[callback, *([also] if also else [])], optimizers=(optimizer, None),
            )  # fmt: skip
            trainer.train()
            self.saved = sorted(os.listdir(folder))
        return callback, trainer

    def test_a_healthy_loop_is_quiet(self) -> None:
        callback, _ = self.train(broken=False)
        assert codes(callback.run) == []
        assert callback.run.report().steps == 6

    def test_a_planted_bug_is_found(self) -> None:
        callback, trainer = self.train(broken=True, halt=True)
        assert ("TC101", 0) in codes(callback.run)
        assert trainer.state.global_step == 2

    @pytest.mark.parametrize("broken", [True, False])
    @pytest.mark.parametrize("when", ["steps", "epoch", "best", "another callback"])
    def test_nothing_is_saved_after_a_halt(self, when, broken) -> None:
        transformers = pytest.importorskip("transformers")

        class Saver(transformers.TrainerCallback):  # type: ignore[misc,name-defined]
            def on_step_end(self, args, state, control, **_):
                control.should_save = True

        by_step = {"save_strategy": "steps", "save_steps": 1}
        best = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
        arguments = {
            "steps": by_step,
            "epoch": {"save_strategy": "epoch"},
            "best": {**by_step, **best},
            "another callback": {},
        }[when]
        also = Saver() if when == "another callback" else None
        _, trainer = self.train(broken=broken, halt=True, arguments=arguments, also=also)
        assert trainer.state.global_step == (2 if broken else 6)
        last = 1 if broken else 6
        steps = range(1, last + 1) if when != "epoch" else [] if broken else [6]
        assert self.saved == [f"checkpoint-{step}" for step in steps]
        assert type(trainer.control) is transformers.TrainerControl

    def test_a_trainer_that_was_halted_can_train_again(self) -> None:
        callback, trainer = self.train(broken=True, halt=True)
        trainer.remove_callback(callback)
        trainer.train()
        assert trainer.state.global_step == 6

    def test_a_training_that_failed_does_not_disturb_the_next(self) -> None:
        with pytest.raises((KeyError, ValueError)):
            self.train(broken=True, fails=True)
        assert CURRENT.session is not None  # the Trainer does not say that it ended
        callback, _ = self.train(broken=False)
        assert codes(callback.run) == []
        assert callback.run.report().steps == 6


class TestAccelerate:
    def train(self, *, broken: bool) -> Watch:
        accelerate = pytest.importorskip("accelerate")
        from traincheck.integrations.accelerate import watch

        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        with pytest.raises(UsageError, match="has not prepared anything"):
            watch(accelerator)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        model, optimizer, batches, scheduler = accelerator.prepare(
            net, optimizer, loader(), scheduler
        )
        with watch(accelerator) as run:
            for x, y in batches:
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.mse_loss(model(x), y))
                    optimizer.step()
                    scheduler.step()
                    if not broken:
                        optimizer.zero_grad()
        return run

    @pytest.mark.parametrize("broken", [False, True])
    def test_a_loop(self, broken) -> None:
        run = self.train(broken=broken)
        assert run.report().steps == 3
        assert codes(run)[:1] == ([("TC201", 1)] if broken else [])

    def test_something_else_is_refused(self) -> None:
        pytest.importorskip("accelerate")
        from traincheck.integrations.accelerate import watch

        with pytest.raises(UsageError, match="a Linear is not an Accelerator"):
            watch(nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["lightning", "transformers", "accelerate"])
def test_a_missing_framework_is_named_with_its_install_command(monkeypatch, name) -> None:
    module = f"traincheck.integrations.{name}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    for known in [m for m in sys.modules if m.partition(".")[0] in (name, "pytorch_lightning")]:
        monkeypatch.delitem(sys.modules, known)

    class Nothing:
        def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
            if fullname.partition(".")[0] in (name, "pytorch_lightning"):
                raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)

    monkeypatch.setattr(sys, "meta_path", [Nothing(), *sys.meta_path])
    with pytest.raises(MissingDependencyError) as error:
        importlib.import_module(module)
    assert error.value.fix == f"pip install {name}"
