"""The view "diff": recordings of one program are equal, and a change shows where it was made."""

from __future__ import annotations

import random
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import Recording, recording
from traincheck.collect.stats import compared as compared_module
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.schema.comparison.diff_view import DIFF_NEEDS
from traincheck.schema.comparison.generator_states import fingerprint as of_state
from traincheck.schema.comparison.sketch import decode, distance, norm, total
from traincheck.schema.marks import MOMENTS, PHASES
from traincheck.schema.observations.processes import ProcessFacts
from traincheck.schema.observations.reading import observed
from traincheck.schema.values import tensor_summary

VIEW: dict[str, Any] = {"view": "diff", "needs": DIFF_NEEDS, "whole": True}
STEPS = 6


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.BatchNorm1d(8)
        self.drop, self.last = nn.Dropout(0.2), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        hidden = self.drop(self.norm(self.first(x)))
        return {"logits": self.last(hidden), "more": (hidden, 3, "text")}


Change = Callable[..., None]


def nothing(moment: str, step: int, **objects: Any) -> None:
    """The healthy twin of each change."""


def train(change: Change = nothing, *, steps: int = STEPS) -> nn.Module:
    """A loop that calls ``change`` at some moments of each step."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = TensorDataset(torch.randn(steps * 4, 6), torch.randint(0, 3, (steps * 4,)))
    change("loop", 0)
    for step, (x, y) in enumerate(DataLoader(data, batch_size=4, shuffle=True)):
        change("batch", step, x=x)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x)["logits"], y)
        change("loss", step, model=model)
        loss.backward()
        change("gradient", step, model=model)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        change("clipped", step, model=model)
        optimizer.step()
        change("updated", step, model=model, optimizer=optimizer)
    return model


def recorded(folder: Path, change: Change = nothing, **settings: Any) -> Recording:
    with recording(folder, **{**VIEW, **settings}) as run:
        train(change)
    return run


def digests(run: Recording) -> dict[int, dict[str, str]]:
    return {event.step: dict(event.digests) for event in run.of("step")}


def first_difference(one: Recording, other: Recording) -> tuple[int, str] | None:
    """Step and phase, in causal order."""
    ours, theirs = digests(one), digests(other)
    assert ours.keys() == theirs.keys()
    for step, found in ours.items():
        for phase in PHASES:
            if found.get(phase) != theirs[step].get(phase):
                return step, phase
    return None


def at(moment: str, step: int, action: Callable[..., None]) -> Change:
    def change(where: str, number: int, **objects: Any) -> None:
        if (where, number) == (moment, step):
            with torch.no_grad():
                action(**objects)

    return change


CHANGES = {
    "an extra draw before the loop": (at("loop", 0, lambda: torch.rand(1)), (0, "rng")),
    "an extra draw in a step": (at("batch", 3, lambda x: torch.rand(1)), (3, "rng")),
    "numpy draws": (at("batch", 2, lambda x: np.random.rand()), (2, "rng")),
    "a sample is written to": (at("batch", 2, lambda x: x[0, 0].add_(1e-6)), (2, "forward")),
    "a buffer": (
        at("updated", 2, lambda model, optimizer: model.norm.running_mean.add_(1)),
        (3, "buffer"),
    ),
    "a gradient": (
        at("gradient", 4, lambda model: model.first.bias.grad[0].add_(1e-4)),
        (4, "gradient"),
    ),
    "a gradient after it is clipped": (
        at("clipped", 4, lambda model: model.last.weight.grad.data[0, 0].mul_(2)),
        (4, "gradient"),
    ),
    "a parameter between backward and step": (
        at("gradient", 1, lambda model: model.last.weight[1, 2].add_(1e-5)),
        (1, "parameter"),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_first_difference_is_where_it_was_made(tmp_path: Path, name: str) -> None:
    change, expected = CHANGES[name]
    plain = recorded(tmp_path / "plain")
    assert first_difference(plain, recorded(tmp_path / "again")) is None
    assert first_difference(plain, recorded(tmp_path / "changed", change)) == expected


def test_every_step_has_all_phases(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    assert list(digests(run)) == list(range(STEPS))
    assert all(set(found) == set(PHASES) for found in digests(run).values())


def test_without_the_view_nothing_of_it_is_recorded(tmp_path: Path) -> None:
    for needs in (None, DIFF_NEEDS):
        folder = tmp_path / str(needs is None)
        run = recorded(folder, view="", needs=needs)
        assert not any(digests(run).values())
        assert not [event for event in run.of("rng") if event.moment or event.state]
        assert not run.marks(ProcessFacts.text)
        assert "comparison" not in run.session.instruments


def test_digests_are_those_of_contents_not_of_their_sum(tmp_path: Path) -> None:
    """Two rows that change places in two gradients would cancel out in a XOR."""

    def swap(model: nn.Module) -> None:
        weight = model.first.weight.grad  # type: ignore[union-attr]
        weight.data.copy_(weight.data.flip(0))  # type: ignore[union-attr]

    plain, swapped = recorded(tmp_path / "a"), recorded(tmp_path / "b", at("clipped", 0, swap))
    assert first_difference(plain, swapped) == (0, "gradient")


# -- generators


def moments(run: Recording) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for event in run.of("rng"):
        if event.moment:
            found[event.moment].append(event)
    return found


def test_states_of_all_generators_at_each_moment(tmp_path: Path) -> None:
    def save(**_: Any) -> None:
        torch.save({"rng": torch.get_rng_state()}, tmp_path / "rng.pt")
        torch.load(tmp_path / "rng.pt", weights_only=True)

    run = recorded(tmp_path / "run", at("updated", 1, save))
    found = moments(run)
    assert set(found) == set(MOMENTS)
    for moment, events in found.items():
        assert {event.source for event in events} == {"torch", "python", "numpy"}, moment
    assert len(found["forward"]) == len(found["step"]) == 3 * STEPS
    assert len(found["loader"]) == len(found["start"]) == 3


def test_states_are_kept_at_few_moments_and_are_what_they_say(tmp_path: Path) -> None:
    events = [event for events in moments(recorded(tmp_path)).values() for event in events]
    kept = [event for event in events if event.state]
    assert 0 < len(kept) // 3 <= 16 < len(events)
    for event in kept:
        assert of_state(event.source, b64decode(event.state)) == event.fingerprint


def test_the_state_before_the_loader_is_that_before_it_draws(tmp_path: Path) -> None:
    found: list[str | None] = []
    change = at("loop", 0, lambda: found.append(fingerprint(torch.get_rng_state())))
    events = moments(recorded(tmp_path, change))
    assert [e.fingerprint for e in events["loader"] if e.source == "torch"] == found
    forward = next(e for e in events["forward"] if e.source == "torch")
    assert forward.fingerprint not in found


def test_unseeded_generators_do_not_count(tmp_path: Path) -> None:
    def loop() -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            random.random()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    runs = []
    for name in "ab":
        torch.manual_seed(0)
        with recording(tmp_path / name, **VIEW) as run:
            loop()
        runs.append(run)
    assert first_difference(*runs) is None


# -- values of calls


def test_outputs_that_are_asked_for_have_fingerprints(tmp_path: Path) -> None:
    expected = {"all": {"Net", *(f"Net.{n}" for n in ("first", "norm", "drop", "last"))}}
    expected |= {"root": {"Net"}, "Net.[fl]*": {"Net.first", "Net.last"}}
    for outputs, names in expected.items():
        run = recorded(tmp_path / outputs.strip("Net.[]*"), outputs=outputs)
        with_fingerprint = {
            call.module
            for call in run.of("call")
            if call.module and b"fingerprint" in repr(call.result).encode()
        }
        assert with_fingerprint == names


def test_fingerprints_are_those_of_the_tensors(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []
    with recording(tmp_path, **VIEW, outputs="all") as run:
        model = Net().eval()
        x = torch.randn(4, 6)
        result = model(x)
        seen += [result["logits"], result["more"][0]]
        loss = result["logits"].sum()
        loss.backward()
    (call,) = (c for c in run.calls("torch.nn.Module.forward") if c.module == "Net")
    found = call.result["dict"]
    assert found["logits"]["fingerprint"] == fingerprint(seen[0])
    assert found["more"][0]["fingerprint"] == fingerprint(seen[1])
    assert found["more"][1:] == [3, "text"]
    assert call.args["0"]["fingerprint"] == fingerprint(x)
    (backward,) = run.calls("torch.autograd.backward")
    assert backward.args["tensors"]["fingerprint"] == fingerprint(loss)


def test_a_recomputed_forward_is_no_other_output(tmp_path: Path) -> None:
    def run(name: str, *, is_checkpointed: bool) -> Recording:
        torch.manual_seed(0)
        with recording(tmp_path / name, **VIEW, outputs="all") as run:
            model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for _ in range(2):
                x = torch.ones(2, 4, requires_grad=True)
                out = checkpoint(model, x, use_reentrant=False) if is_checkpointed else model(x)
                out.sum().backward()
                optimizer.step()
        return run

    plain, again = run("plain", is_checkpointed=False), run("again", is_checkpointed=True)
    assert first_difference(plain, again) is None


def test_on_devices_the_same_is_recorded_when_the_step_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: None
) -> None:
    """The CPU is taken for a device."""
    plain = recorded(tmp_path / "plain", sketch=True)
    monkeypatch.setattr(compared_module, "is_far", lambda tensor: True)
    one = recorded(tmp_path / "one", sketch=True)
    assert first_difference(one, recorded(tmp_path / "two", sketch=True)) is None
    assert all(set(found) == set(PHASES) for found in digests(one).values())
    name = "a gradient after it is clipped"
    assert first_difference(one, recorded(tmp_path / "other", CHANGES[name][0], sketch=True)) == (
        4,
        "gradient",
    )
    ours, theirs = (
        [tensor_summary(e.result["dict"]["logits"]) for e in run.calls("torch.nn.Module.forward")]
        for run in (one, plain)
    )
    for mine, other in zip(ours, theirs, strict=True):
        assert mine is not None
        assert other is not None
        assert mine.fingerprint is not None
        assert mine.fingerprint.startswith("mix-128:")
        assert mine.sketch == other.sketch is not None


# -- sketches


def test_sketches_stand_in_all_records_of_numbers(tmp_path: Path) -> None:
    run = recorded(tmp_path, sketch=True, outputs="all")
    states = [e for e in run.of("state") if e.summary is not None]
    assert {e.role for e in states} == {"parameter", "gradient", "optimizer_state", "buffer"}
    for event in states:
        is_number = event.summary.dtype == "float32" and event.change != "flags"
        assert (event.summary.sketch is not None) is is_number, event
    for batch in run.of("batch"):
        assert "sketch" in batch.leaves["batch[0]"]
        assert "sketch" not in batch.leaves["batch[1]"]  # whole numbers
    assert not [
        e for e in recorded(tmp_path / "plain").of("state") if e.summary and e.summary.sketch
    ]


def test_sizes_of_differences_are_told(tmp_path: Path) -> None:
    nudge = at("clipped", 0, lambda model: model.first.weight.grad.mul_(1.01))
    runs = (
        recorded(tmp_path / "a", sketch=True),
        recorded(tmp_path / "b", nudge, sketch=True),
    )
    one, other = (
        [
            decode(e.summary.sketch)
            for e in run.of("state")
            if e.name == "Net.first.weight" and e.role == "gradient" and e.summary and e.step == 0
        ][-1]
        for run in runs
    )
    assert distance(one, other) / norm(one) == pytest.approx(0.01, rel=1e-4)


def test_outputs_of_micro_batches_add_up_to_that_of_the_whole(tmp_path: Path) -> None:
    def run(name: str, parts: int) -> list[tuple[float, ...]]:
        torch.manual_seed(0)
        with recording(tmp_path / name, **VIEW, sketch=True) as run:
            model = nn.Linear(6, 3).double()
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            for x in torch.randn(2, 8, 6, dtype=torch.float64):
                optimizer.zero_grad()
                for rows in x.chunk(parts):
                    model(rows).sum().backward()
                optimizer.step()
        calls = [c for c in run.calls("torch.nn.Module.forward") if c.step == 1]
        return [decode(c.result["sketch"]) for c in calls]

    (whole,), parts = run("whole", 1), run("parts", 4)
    assert len(parts) == 4
    assert distance(total(parts), whole) <= 1e-12 * norm(whole)


# -- sampling


def test_steps_between_are_not_recorded(tmp_path: Path) -> None:
    with recording(tmp_path, **VIEW, every=4, sketch=True) as run:
        train(steps=12)
    assert {step for step, found in digests(run).items() if found} == {0, 4, 8}
    assert {e.step for e in run.of("rng") if e.moment} == {0, 4, 8}


def test_sampled_steps_have_the_digests_of_a_whole_recording(tmp_path: Path) -> None:
    whole, some = recorded(tmp_path / "a"), recorded(tmp_path / "b", every=4)
    for step in (0, 4):
        ours, theirs = digests(whole)[step], digests(some)[step]
        same = {phase for phase in PHASES if ours[phase] == theirs.get(phase)}
        assert same >= set(PHASES) - {"rng", "batch"}, step


# -- facts of the process


def test_facts_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnop")

    def other(model: nn.Module, **_: Any) -> None:
        torch.use_deterministic_algorithms(True, warn_only=True)

    try:
        run = recorded(tmp_path, at("updated", 2, other))
    finally:
        torch.use_deterministic_algorithms(False)
    first, second = (observed(mark, ProcessFacts) for mark in run.marks(ProcessFacts.text))
    assert first is not None
    assert second is not None
    assert first.threads == torch.get_num_threads()
    assert first.cpu_capability == torch.backends.cpu.get_cpu_capability()
    assert first.hash_seed == "7"
    assert first.versions["torch"] == str(torch.__version__)
    assert first.versions["numpy"] == np.__version__
    assert first.flags["deterministic"] is False
    assert second.flags["deterministic"] is True
    assert [m.step for m in run.marks(ProcessFacts.text)] == [0, 3]
    assert "hf_abc" not in "".join(map(repr, run.events))
