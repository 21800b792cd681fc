"""Terms of losses, read from graphs: what is recorded, and what training notices."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.collect.recording import Recording, needs_sizes, recording
from tests.rules.provenance.losses import HEALTHY, clipped, distillation, with_unused_metrics
from tests.rules.provenance.training import Loss, Parts, train
from traincheck.collect.moments.tensor_methods import TensorMethods
from traincheck.collect.observers import loss_ledger, loss_terms
from traincheck.collect.observers.loss_terms import LossTermObserver
from traincheck.collect.tensors import loss_graph
from traincheck.schema.claims import Needs, Schedule
from traincheck.schema.observations.losses import LabelPositions, LossSums, LossTerms

pytestmark = needs_sizes
METHODS = ("__add__", "__mul__", "__rsub__", "mean")


def terms(run: Recording) -> list[dict[str, tuple[float, int]]]:
    """Weight and elements of each term by its name, for each backward pass."""
    return [
        {term["name"]: (round(term["weight"], 4), term["elements"]) for term in mark.data["terms"]}
        for mark in run.marks(LossTerms.text)
    ]


def raised(_source: Any, error: BaseException) -> None:
    raise error


def recorded(folder: Path, loss: Loss, steps: int = 4, **settings: Any) -> Recording:
    with recording(folder, **settings) as run:
        train(loss, steps)
    return run


def test_weights_of_terms(tmp_path: Path) -> None:
    run = recorded(tmp_path, distillation)
    assert terms(run) == [{"cross_entropy": (0.3, 16), "kl_div": (0.7, 64)}] * 3
    assert [mark.step for mark in run.marks(LossTerms.text)] == [1, 2, 3]


def test_weights_through_all_scalar_operations(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        first, second = F.cross_entropy(p.out, p.y), p.other(p.x).abs().mean()
        third = F.mse_loss(p.other(p.x), torch.zeros(16, 4))
        joined = torch.stack([first, second]).sum()  # 1, 1
        return 2 * (3 - (-joined) / 4) - third.view(1).squeeze() * 0.5  # type: ignore[no-any-return]

    run = recorded(tmp_path, loss)
    expected = {"cross_entropy": (0.5, 16), "Mean": (0.5, 64), "mse_loss": (-0.5, 64)}
    assert terms(run)[0] == expected


def test_weights_of_products_and_of_learned_factors(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
        return first * 2 * torch.exp(-p.weights[0]) + second.sqrt() * 0

    first = terms(recorded(tmp_path, loss))[0]
    assert first["mse_loss"] == (0.0, 64)
    assert 1 < first["cross_entropy"][0] < 2


def test_each_backward_of_a_step_has_its_terms(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        F.mse_loss(p.other(p.x), torch.zeros(16, 4)).div(4).backward()
        return F.cross_entropy(p.out, p.y)

    assert terms(recorded(tmp_path, loss))[:2] == [
        {"mse_loss": (0.25, 64)},
        {"cross_entropy": (1.0, 16)},
    ]


def test_gradients_of_other_roots_are_no_weights(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        inner = F.cross_entropy(p.out, p.y)
        (gradient,) = torch.autograd.grad(5 * inner, p.model.weight, create_graph=True)
        return inner + gradient.pow(2).sum()

    found = terms(recorded(tmp_path, loss))[0]
    assert found["cross_entropy"] == (1.0, 16)


def test_sums_are_written_a_step_later(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        first, second = F.cross_entropy(p.out, p.y), F.mse_loss(p.other(p.x), torch.zeros(16, 4))
        assert (first + 0.5 * second).item() > 0
        return first

    run = recorded(tmp_path, loss)
    marks = run.marks(LossSums.text)
    assert [(mark.step, mark.data["at"]) for mark in marks] == [(2, 1), (3, 2)]
    [found] = marks[0].data["sums"]
    assert (len(found["trained"]), len(found["dropped"]), found["is_used"]) == (1, 1, False)


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda loss: loss.__name__)
def test_training_is_identical(tmp_path: Path, loss: Loss) -> None:
    alone = train(loss)
    state = torch.get_rng_state()
    with recording(tmp_path):
        parts = train(loss)
    assert torch.equal(state, torch.get_rng_state())
    for mine, theirs in zip(parts.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_originals_are_back_after_a_step_and_after_the_recording(tmp_path: Path) -> None:
    before = {name: vars(torch.Tensor).get(name) for name in METHODS}
    functions = {name: getattr(F, name) for name in loss_terms.LOSSES}
    with recording(tmp_path):
        train(with_unused_metrics, 3)
        assert vars(torch.Tensor).get("__add__") is not before["__add__"]
    assert {name: vars(torch.Tensor).get(name) for name in METHODS} == before
    assert {name: getattr(F, name) for name in loss_terms.LOSSES} == functions
    with recording(tmp_path / "long"):
        train(with_unused_metrics, 12)  # more steps than are observed
        assert {name: vars(torch.Tensor).get(name) for name in METHODS} == before


def test_originals_are_back_after_steps_of_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may be about to observe the next step."""
    before = {name: vars(torch.Tensor).get(name) for name in METHODS}
    together = threading.Barrier(2, timeout=30)
    install = TensorMethods.install

    def slow(methods: TensorMethods) -> None:
        time.sleep(0.01)
        install(methods)

    def work() -> None:
        together.wait()
        train(with_unused_metrics, 4)

    monkeypatch.setattr(TensorMethods, "install", slow)
    with recording(tmp_path, must_be_whole=False):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {name: vars(torch.Tensor).get(name) for name in METHODS} == before


def test_a_replaced_method_is_equal_to_the_original() -> None:
    original = torch.Tensor.__add__
    seen: list[str] = []
    methods = TensorMethods(("__add__",), lambda name, *_: seen.append(name), raised)
    methods.install()
    try:
        assert torch.Tensor.__add__ == original
        assert {original: 1}[torch.Tensor.__add__] == 1
        assert torch.Tensor.__add__.__name__ == "__add__"
        assert (torch.ones(()) + 1).item() == 2
        assert sum([torch.ones(()), torch.ones(())], torch.zeros(())).item() == 2
        with pytest.raises(TypeError):
            torch.ones(()) + "a"  # type: ignore[operator]
    finally:
        methods.remove()
    assert "__add__" not in vars(torch.Tensor)
    assert seen == ["__add__"] * 3


def test_a_method_that_the_program_replaces_stays() -> None:
    methods = TensorMethods(("__add__",), lambda *_: None, raised)
    methods.install()

    def mine(self: Tensor, other: Any) -> Any:
        return torch.add(self, other)

    torch.Tensor.__add__ = mine  # type: ignore[method-assign,assignment]
    methods.remove()
    try:
        assert torch.Tensor.__add__ is mine
    finally:
        del torch.Tensor.__add__


def test_tables_of_a_subclass_find_their_functions(tmp_path: Path) -> None:
    table = {torch.Tensor.add: "added", torch.Tensor.mul: "multiplied"}
    seen = []

    class Own(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func in table:
                seen.append(table[func])
            return super().__torch_function__(func, types, args, kwargs or {})

    def loss(p: Parts) -> Tensor:
        own = torch.ones(()).as_subclass(Own)
        assert type((own + 1).mul(2)) is Own
        return F.cross_entropy(p.out, p.y)

    recorded(tmp_path, loss)
    assert seen == ["added", "multiplied"] * 4


def test_no_graph_is_kept_alive(tmp_path: Path) -> None:
    kept: list[weakref.ref[Tensor]] = []

    def loss(p: Parts) -> Tensor:
        gc.collect()
        assert all(ref() is None for ref in kept)
        out = p.out
        kept.append(weakref.ref(out))
        dropped = F.cross_entropy(out, p.y) + 0.5 * F.mse_loss(out, torch.zeros(16, 4))
        assert dropped.item() > 0
        return F.cross_entropy(p.model(p.x), p.y)

    recorded(tmp_path, loss, steps=8)
    assert len(kept) == 8


@pytest.mark.parametrize("holder", [loss_terms, loss_ledger, loss_graph], ids=lambda m: m.__name__)
def test_faults_are_counted_and_stay_inside(
    tmp_path: Path, holder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, "key_of", lambda node: 1 / 0)
    with recording(tmp_path, must_be_whole=False) as run:
        train(clipped, 4)
    assert run.marks("fault")


def test_faults_in_hooks_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_ledger, "_clone", lambda tensor: 1 / 0)
    with recording(tmp_path, must_be_whole=False) as run:
        train(distillation, 4)
    assert run.marks("fault")


def test_exceptions_of_the_program_pass(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        if p.step == 2:
            with pytest.raises(ValueError, match="batch_size"):
                F.cross_entropy(p.out, p.y[:3])
            with pytest.raises(RuntimeError):
                p.out.backward()
        return F.cross_entropy(p.out, p.y)

    assert len(terms(recorded(tmp_path, loss))) == 3


def test_long_chains_are_not_read(tmp_path: Path) -> None:
    def loss(p: Parts) -> Tensor:
        total = F.cross_entropy(p.out, p.y)
        for _ in range(400):
            total = total + 0.001 * total
        return total

    assert terms(recorded(tmp_path, loss)) == []


def test_observed_steps_follow_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_terms, "_SCHEDULE", Schedule(first=2, every=5))
    run = recorded(tmp_path, distillation, steps=14)
    assert [mark.step for mark in run.marks(LossTerms.text)] == [1, 2, 6, 11]


@pytest.mark.parametrize(
    ("needs", "is_wanted"),
    [
        (None, True),
        (Needs(states=frozenset({"loss@terms"})), True),
        (Needs(states=frozenset({"loss@positions"})), True),
        (Needs(states=frozenset({"loss@broadcast"})), False),
    ],
)
def test_it_is_installed_where_a_check_needs_it(
    tmp_path: Path, needs: Needs | None, is_wanted: bool
) -> None:
    before = F.mse_loss
    with recording(tmp_path, needs=needs) as run:
        assert LossTermObserver(run.session).is_wanted is is_wanted
        assert (F.mse_loss is not before) is is_wanted
        train(clipped, 4)
    kinds = {LossTerms.text, LabelPositions.text}
    assert {mark.text for mark in run.of("mark")} & kinds == (kinds if is_wanted else set())


def test_modules_without_gradient_are_no_terms(tmp_path: Path) -> None:
    with recording(tmp_path) as run:
        model, free = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            x = torch.randn(8, 4)
            (F.mse_loss(model(x), x) + 2 * F.l1_loss(free(x), x)).backward()
            optimizer.step()
    assert terms(run) == [{"mse_loss": (1.0, 32)}] * 3
    [constant] = run.marks(LossTerms.text)[0].data["constants"]
    assert (constant["name"], constant["weight"], constant["number"]) == ("l1_loss", 2.0, False)


def test_a_weight_that_is_written_without_gradients_is_no_fault(tmp_path: Path) -> None:
    net = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with recording(tmp_path) as run:
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(
                net(torch.randn(8, 4)), torch.arange(8) % 2
            ).backward()
            with torch.no_grad():
                net.weight[1, 3] += 1e-6
            optimizer.step()
    assert not [event for event in run.events if event.kind == "mark" and event.text == "fault"]
