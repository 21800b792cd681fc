"""Every schedule case of the benchmark, in a plain loop, under Accelerate and in the HF Trainer.

Accelerate puts its own objects around optimizer, loader and scheduler, and loads the state of the
optimizer into it. None of this may hide a fault, and none may look like one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

from tests.checking import BY_CODE, report_of
from tests.collect.recording import recording

EPOCHS, BATCHES = 4, 20
UPDATES = EPOCHS * BATCHES
WRAPS = ("plain", "optimizer", "scheduler")  # the last: the scheduler is prepared, too

Make = Callable[[torch.optim.Optimizer, bool], Any]
Loop = Callable[["Training", bool], None]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the frameworks, and of torch about the order of calls
        yield


class Training:
    """A model, its optimizer, loader and scheduler, prepared by Accelerate or not."""

    def __init__(self, wrap: str, make: Make, is_broken: bool, cls: Any) -> None:
        model: Any = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.wrap, self.cls = wrap, cls
        rows = torch.randn(BATCHES * 4, 6)
        data = TensorDataset(rows, rows[:, :3].argmax(1))
        self.loader: Any = DataLoader(data, 4, shuffle=True)
        self.optimizer: Any = cls(model.parameters())
        self.accelerator = None
        if wrap != "plain":
            from accelerate import Accelerator

            self.accelerator = Accelerator(cpu=True)
            model, self.optimizer, self.loader = self.accelerator.prepare(
                model, self.optimizer, self.loader
            )
        self.model = model
        self.scheduler: Any = make(self.optimizer, is_broken)
        if wrap == "scheduler" and self.accelerator is not None:
            self.scheduler = self.accelerator.prepare(self.scheduler)

    def anew(self) -> None:
        self.optimizer = self.cls(self.model.parameters())
        if self.accelerator is not None:
            self.optimizer = self.accelerator.prepare(self.optimizer)

    def backward(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(self.model(x), y)
        loss.backward() if self.accelerator is None else self.accelerator.backward(loss)

    def updates(self, each: Callable[[], None] = lambda: None) -> None:
        """One epoch."""
        for x, y in self.loader:
            self.backward(x, y)
            self.optimizer.step()
            each()


def by_update(training: Training, is_broken: bool) -> None:
    for _ in range(EPOCHS):
        training.updates(training.scheduler.step)


def by_epoch(training: Training, is_broken: bool) -> None:
    for _ in range(EPOCHS):
        training.updates()
        training.scheduler.step()


def first(training: Training, is_broken: bool) -> None:
    """The scheduler before the optimizer."""
    for x, y in training.loader:
        training.backward(x, y)
        for one in (
            (training.scheduler, training.optimizer)
            if is_broken
            else (training.optimizer, training.scheduler)
        ):
            one.step()


def never(training: Training, is_broken: bool) -> None:
    for _ in range(EPOCHS):
        training.updates()
        if not is_broken:
            training.scheduler.step()


def twice(training: Training, is_broken: bool) -> None:
    for _ in range(EPOCHS):
        training.updates(training.scheduler.step)
        if is_broken:
            training.scheduler.step()


def of_another(training: Training, is_broken: bool) -> None:
    for _ in range(EPOCHS):
        if is_broken:
            training.anew()
        training.updates()
        training.scheduler.step()


def made_anew(training: Training, is_broken: bool) -> None:
    for _ in range(EPOCHS):
        if is_broken:
            training.anew()
        training.updates()


def by_metric(training: Training, is_broken: bool) -> None:
    accuracies = (0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
    for accuracy in accuracies:
        training.updates()
        training.scheduler.step(accuracy)


def other_unit(training: Training, is_broken: bool) -> None:
    (by_epoch if is_broken else by_update)(training, is_broken)


def other_unit_back(training: Training, is_broken: bool) -> None:
    (by_update if is_broken else by_epoch)(training, is_broken)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def step_lr(optimizer: Any, is_broken: bool) -> Any:
    return lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


CASES: dict[str, tuple[str, Make, Loop]] = {
    "X27 scheduler before optimizer": (
        "TC209", lambda o, _: lr_scheduler.ExponentialLR(o, gamma=0.9), first,
    ),
    "X87 warm-up of zeros": (
        "TC210",
        lambda o, bad: lr_scheduler.LambdaLR(
            o, lambda n: min(1.0, (n + 1) // 60 if bad else (n + 1) / 60)
        ),
        by_update,
    ),
    "X26 never stepped": ("TC211", step_lr, never),
    "X30 by batch and by epoch": (
        "TC213", lambda o, _: lr_scheduler.CosineAnnealingLR(o, T_max=UPDATES), twice,
    ),
    "X82 of another optimizer": ("TC216", step_lr, of_another),
    "cosine turns back": (
        "TC217",
        lambda o, bad: lr_scheduler.CosineAnnealingLR(o, T_max=EPOCHS if bad else UPDATES),
        by_update,
    ),
    "plateau of the wrong kind": (
        "TC220",
        lambda o, bad: lr_scheduler.ReduceLROnPlateau(
            o, mode="min" if bad else "max", patience=0
        ),
        by_metric,
    ),
    "X103 by epoch": (
        "TC221", lambda o, _: lr_scheduler.OneCycleLR(o, 0.1, total_steps=UPDATES), other_unit,
    ),
    "X104 milestones by batch": (
        "TC221", lambda o, _: lr_scheduler.MultiStepLR(o, [2, 3]), other_unit_back,
    ),
    "X105 the rate as a factor": (
        "TC222",
        lambda o, bad: lr_scheduler.LambdaLR(
            o, lambda n: (0.01 if bad else 1.0) * (1 + 0.001 * n) ** -0.75
        ),
        by_update,
    ),
    "X116 recreated": ("TC223", lambda o, _: None, made_anew),
}  # fmt: skip


def codes(folder: Path, code: str, play: Callable[[], None]) -> list[str | None]:
    """What the rule of the case, and the rules about schedules, find in a recording of this."""
    rules = [rule for name, rule in BY_CODE.items() if name == code or "TC208" < name < "TC225"]
    needs = rules[0].needs
    for rule in rules:
        needs |= rule.needs
    with recording(folder, needs=needs) as run:
        play()
    return [finding.code for finding in report_of(run.events, rules).findings]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("case", CASES)
def test_a_schedule_case_is_found_however_it_is_wrapped(
    tmp_path: Path, case: str, wrap: str
) -> None:
    code, make, loop = CASES[case]
    if wrap != "plain":
        pytest.importorskip("accelerate")
        if wrap == "scheduler" and code == "TC223":
            pytest.skip("has no scheduler")

    def play(*, is_broken: bool) -> None:
        loop(Training(wrap, make, is_broken, sgd), is_broken)

    assert code in codes(tmp_path / "buggy", code, lambda: play(is_broken=True))
    assert codes(tmp_path / "healthy", code, lambda: play(is_broken=False)) == []


class Classifier(nn.Module):
    """As the Trainer requires it: returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.net(x)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def epoch_end(scheduler: Any) -> Any:
    """A callback that moves the schedule on after each epoch, as the Trainer has done by then."""
    from transformers import TrainerCallback

    class Again(TrainerCallback):  # type: ignore[misc]
        def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
            scheduler.step()

    return Again()


def linear(optimizer: Any, steps: int) -> Any:
    from transformers import get_linear_schedule_with_warmup

    return get_linear_schedule_with_warmup(optimizer, 4, steps)


TRAINED: dict[str, tuple[str, Make, dict[str, Any]]] = {
    "warm-up of zeros": (*CASES["X87 warm-up of zeros"][:2], {}),
    "by batch and by epoch": (*CASES["X30 by batch and by epoch"][:2], {"again": True}),
    "cosine turns back": (*CASES["cosine turns back"][:2], {}),
    "made for batches, not updates": (
        "TC221",
        lambda o, bad: linear(o, UPDATES if bad else UPDATES // 4),
        {"gradient_accumulation_steps": 4},
    ),
    "milestones of epochs": (
        "TC221",
        lambda o, bad: lr_scheduler.MultiStepLR(o, [2, 3] if bad else [2 * BATCHES, 3 * BATCHES]),
        {},
    ),
    "the rate as a factor": (*CASES["X105 the rate as a factor"][:2], {}),
    "plateau of the wrong kind": (
        *CASES["plateau of the wrong kind"][:2],
        {"eval_strategy": "epoch", "metric_for_best_model": "accuracy", "num_train_epochs": 6},
    ),
}


@pytest.mark.parametrize("case", TRAINED)
def test_a_schedule_case_is_found_in_the_trainer(tmp_path: Path, case: str) -> None:
    transformers = pytest.importorskip("transformers")
    code, make, options = TRAINED[case]

    def play(*, is_broken: bool) -> None:
        model = Classifier()
        optimizer = sgd(model.parameters())
        scheduler = make(optimizer, is_broken)
        given = {k: v for k, v in options.items() if k != "again"}
        given.setdefault("num_train_epochs", EPOCHS)
        arguments = transformers.TrainingArguments(
            str(tmp_path / "out"), per_device_train_batch_size=4, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no", **given,
        )  # fmt: skip
        accuracies = iter((0.5, 0.55, 0.6, 0.65, 0.7, 0.75))
        rows = [{"x": row, "labels": row[:3].argmax()} for row in torch.randn(BATCHES * 4, 6)]
        transformers.Trainer(
            model, arguments, train_dataset=rows, eval_dataset=rows[:4],
            optimizers=(optimizer, scheduler),
            compute_metrics=lambda _: {"accuracy": next(accuracies)},
            callbacks=[epoch_end(scheduler)] if is_broken and "again" in options else [],
        ).train()  # fmt: skip

    assert code in codes(tmp_path / "buggy", code, lambda: play(is_broken=True))
    assert codes(tmp_path / "healthy", code, lambda: play(is_broken=False)) == []
