"""Steps with closures: gradients are those right before the update, in every reader of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import recording
from traincheck.collect.moments.updates import Updates, before_update
from traincheck.collect.stats.compared import StepDigests
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.diff.library import diff
from traincheck.integrations.monitor import Monitor
from traincheck.metrics.trace import combine
from traincheck.schema.claims import Needs
from traincheck.schema.comparison.diff_view import DIFF_NEEDS
from traincheck.schema.metrics.requests import MonitorView, parse_requests

STEPS = 3
VIEW = MonitorView(requests=parse_requests(["grad:norm", "update:norm"]))
DIFF: dict[str, Any] = {"view": "diff", "needs": DIFF_NEEDS, "whole": True}
METRICS: dict[str, Any] = {"needs": Needs(), "monitor": VIEW.to_json(), "whole": True}
Seen = list[dict[str, torch.Tensor]]  # gradients in each call of a closure


def adjust(model: nn.Module, step: int) -> None:
    """What a program does to its gradients after backward: no scan but ours sees it."""
    for parameter in model.parameters():
        parameter.grad.mul_(0.5 + step)  # type: ignore[union-attr]


def gradients(model: nn.Module, root: str) -> dict[str, torch.Tensor]:
    return {f"{root}.{n}": p.grad.clone() for n, p in model.named_parameters()}  # type: ignore[union-attr]


def by_hand(
    make: Callable[..., torch.optim.Optimizer],
    *,
    change: Callable[[nn.Module, int], None] = adjust,
    model: nn.Module | None = None,
) -> tuple[list[Seen], nn.Module, list[Any]]:
    """Train with closures: gradients of each step, the model, results of the steps."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    optimizer = make(model.parameters())
    seen: list[Seen] = []
    results = []
    for step in range(STEPS):
        x = torch.randn(5, 3)
        calls: Seen = []

        def closure(x: torch.Tensor = x, step: int = step, calls: Seen = calls) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = (model(x) - 1).pow(2).mean()
            loss.backward()
            change(model, step)
            calls.append(gradients(model, "Linear"))
            return loss

        results.append(optimizer.step(closure))  # type: ignore[arg-type]
        seen.append(calls)
    return seen, model, results


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def lbfgs(parameters: Any) -> torch.optim.Optimizer:
    """It calls the closure several times a step: the first call is before the update."""
    return torch.optim.LBFGS(parameters, lr=0.1, max_iter=3)


def lightning_run() -> tuple[list[Seen], nn.Module, list[Any]]:
    """Automatic optimization, whose closure is Lightning's."""
    lightning = pytest.importorskip("lightning.pytorch")

    class Lit(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(3, 2)
            self.seen: list[Seen] = []

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = (self.fc(batch[0]) - 1).pow(2).mean()
            return loss

        def on_after_backward(self) -> None:  # within the closure
            adjust(self, len(self.seen))
            self.seen.append([gradients(self, "Lit")])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), 0.05)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.seed_everything(0, verbose=False)
        loader = DataLoader(TensorDataset(torch.randn(4 * STEPS, 3)), batch_size=4, shuffle=True)
        model = Lit()
        lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False,
        ).fit(model, loader)  # fmt: skip
    return model.seen, model, []


PROGRAMS: dict[str, Callable[[], tuple[list[Seen], nn.Module, list[Any]]]] = {
    "sgd": lambda: by_hand(sgd),
    "lbfgs": lambda: by_hand(lbfgs),
    "lightning": lightning_run,
}


@pytest.fixture(params=PROGRAMS)
def program(
    request: pytest.FixtureRequest,
) -> Callable[[], tuple[list[Seen], nn.Module, list[Any]]]:
    return PROGRAMS[request.param]


def test_monitor(tmp_path: Path, program: Callable[..., Any]) -> None:
    with recording(tmp_path / "run", **METRICS) as run:
        seen, _, _ = program()
    metrics = combine(run.events, VIEW)
    assert metrics.steps == list(range(STEPS))
    for step, (first, *_) in enumerate(seen):
        for name, gradient in first.items():
            norm = metrics[f"gradient/{name}/norm"][step]
            assert norm == pytest.approx(gradient.norm().item(), rel=1e-5)
            assert metrics[f"update/{name}/norm"][step] > 0


def test_view_diff(
    tmp_path: Path, program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, str | None]] = []
    original = StepDigests.add_all

    def add_all(digests: StepDigests, phase: str, items: Any) -> None:
        if phase == "gradient":
            found.append(dict(items))
        original(digests, phase, items)

    monkeypatch.setattr(StepDigests, "add_all", add_all)
    with recording(tmp_path / "run", **DIFF) as run:
        seen, _, _ = program()
    assert found == [{n: fingerprint(g) for n, g in first.items()} for first, *_ in seen]
    events = {
        (e.step, e.name, e.summary.fingerprint)
        for e in run.of("state")
        if e.role == "gradient" and e.summary
    }
    for step, found_now in enumerate(found):
        assert {(step, name, digest) for name, digest in found_now.items()} <= events


def test_lbfgs_calls_its_closure_several_times() -> None:
    seen, _, _ = by_hand(lbfgs)
    for first, second, *_ in seen:
        assert not torch.equal(first["Linear.weight"], second["Linear.weight"])


def test_two_runs_of_lightning_are_the_same(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        torch.manual_seed(number)  # before the program seeds: each process begins in another state
        with recording(tmp_path / name, **DIFF):
            lightning_run()
    found = diff(tmp_path / "a", tmp_path / "b")
    assert found.same
    assert not [note for note in found.notes if "generator" in note]


@pytest.mark.parametrize("name", PROGRAMS)
def test_training_is_bit_identical(tmp_path: Path, name: str) -> None:
    _, plain, results = PROGRAMS[name]()
    state = torch.get_rng_state()
    for number, settings in enumerate((DIFF, METRICS, {**DIFF, "checksums": "all"})):
        with recording(tmp_path / str(number), **settings):
            _, model, again = PROGRAMS[name]()
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)
        assert all(torch.equal(a, b) for a, b in zip(results, again, strict=True))
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("make", [sgd, lbfgs])
def test_monitor_in_the_process(make: Callable[..., torch.optim.Optimizer]) -> None:
    model = nn.Linear(3, 2)
    monitors: list[Monitor] = []

    def made(parameters: Any) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        monitors.append(Monitor(model, optimizer=optimizer, every=1, metrics=["grad:norm"]))
        return optimizer

    seen, _, _ = by_hand(made, model=model)
    metrics = monitors[0].get_all_metrics()
    for step, (first, *_) in enumerate(seen):
        norm = first["Linear.weight"].norm().item()
        assert metrics[step]["gradient/weight/norm"] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("settings", [DIFF, METRICS])
def test_an_exception_of_a_closure_passes_through(tmp_path: Path, settings: dict[str, Any]) -> None:
    def change(model: nn.Module, step: int) -> None:
        if step == 1:
            raise ValueError("it went wrong")

    with recording(tmp_path, **settings), pytest.raises(ValueError, match="it went wrong"):
        by_hand(sgd, change=change)


def test_arguments_and_result_of_a_closure_are_unchanged() -> None:
    done: list[int] = []

    def closure(*given: Any, **named: Any) -> Any:
        return given, named, len(done)

    changed = before_update(("optimizer", closure, "more"), {"x": 1}, lambda: done.append(1))
    assert changed is not None
    (optimizer, wrapped, more), kwargs = changed
    assert (optimizer, more, kwargs) == ("optimizer", "more", {"x": 1})
    assert wrapped.__qualname__ == closure.__qualname__
    assert [wrapped(1, y=2), wrapped()] == [((1,), {"y": 2}, 0), ((), {}, 1)]
    assert done == [1]
    changed = before_update(("optimizer",), {"closure": closure}, lambda: done.append(2))
    assert changed is not None
    assert changed[0] == ("optimizer",)
    assert changed[1]["closure"]() == ((), {}, 1)
    assert done == [1, 2]
    assert before_update(("optimizer", None), {}, lambda: done.append(3)) is None
    assert done == [1, 2, 3]


def test_nothing_is_installed_unless_it_is_asked_for(tmp_path: Path) -> None:
    before = dict(optimizers._global_optimizer_pre_hooks)
    for number, settings in enumerate(({}, DIFF, METRICS)):
        with recording(tmp_path / str(number), **settings):
            by_hand(sgd)
            added = set(optimizers._global_optimizer_pre_hooks) - set(before)
            assert [type(one) for one in added] == [Updates] * bool(settings)
        assert dict(optimizers._global_optimizer_pre_hooks) == before
