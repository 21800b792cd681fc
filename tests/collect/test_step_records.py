"""What a step's record says of rates, modes and batches, and when its events are on disk."""

from __future__ import annotations

import threading

import numpy
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import read_folder, recording
from traincheck.collect.tensors.summarize import encode, summarize


def train_step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


def make(lr=0.5):
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def test_the_rate_is_the_one_that_was_used(tmp_path):
    with recording(tmp_path) as run:
        model, optimizer = make(0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        for _ in range(3):
            train_step(model, optimizer)
            scheduler.step()
    assert [event.lr["opt0"] for event in run.of("step")] == [[0.5], [0.25], [0.125]]


@pytest.mark.parametrize(
    "rate", [numpy.float64(0.5), numpy.float32(0.5), torch.tensor(0.5), 0.5], ids=type
)
def test_rates_of_numpy_and_tensors_are_numbers(tmp_path, rate):
    with recording(tmp_path) as run:
        model, optimizer = make(1.0)
        optimizer.param_groups[0].update(lr=rate, weight_decay=rate)
        train_step(model, optimizer)
    assert [event.lr for event in run.of("step")] == [{"opt0": [0.5]}]


@pytest.mark.parametrize("rate", [None, float("nan"), "warm"])
def test_a_rate_that_is_no_number_is_not_told(tmp_path, rate):
    """As Adafactor has it, which makes its own. What else the step holds is told."""

    class Relative(torch.optim.SGD):
        def step(self, closure=None):
            with torch.no_grad():
                self.param_groups[0]["params"][0].sub_(0.1)

    with recording(tmp_path) as run:
        model, other = make(0.5)
        optimizer = Relative(model.parameters(), lr=1.0)
        optimizer.param_groups[0]["lr"] = rate
        for _ in range(2):
            train_step(model, optimizer)
            other.step()
    assert [event.lr for event in run.of("step")] == [{"opt0": [0.5]}] * 2
    assert [event.counters["optimizer_step"] for event in run.of("step")] == [2, 2]


def test_a_mode_that_is_a_number_is_told(tmp_path):
    with recording(tmp_path) as run:
        model, optimizer = make()
        model.training = 1
        train_step(model, optimizer)
    assert [event.modes for event in run.of("step")] == [{"Linear": True}]


def test_a_step_that_a_rollout_follows_is_in_training(tmp_path):
    with recording(tmp_path) as run:
        model, optimizer = make()
        for _ in range(3):
            with torch.no_grad():
                model(torch.ones(2, 3))
            train_step(model, optimizer)
            train_step(model, optimizer)
    assert [(event.step, event.stage) for event in run.of("step")] == [
        (step, "train") for step in range(6)
    ]
    assert [event.stage for event in run.of("stage")] == ["eval", "train"] * 3


def test_a_step_that_only_evaluates_is_in_evaluation(tmp_path):
    with recording(tmp_path) as run:
        model, _ = make()
        with torch.no_grad():
            model(torch.ones(2, 3))
    assert [event.stage for event in run.of("step")] in ([], ["eval"])


def test_the_last_step_is_told_when_its_objects_are_gone(tmp_path):
    def main():
        model, optimizer = make(0.5)
        for _ in range(2):
            train_step(model, optimizer)

    with recording(tmp_path) as run:
        main()
    last = run.of("step")[-1]
    assert (last.step, last.lr, last.modes) == (1, {"opt0": [0.5]}, {"Linear": True})


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batches_for_evaluation_fetched_with_grad_open_no_step(tmp_path, mode):
    """The twin: in train mode the second loader feeds training."""
    data = TensorDataset(torch.ones(4, 3))
    with recording(tmp_path) as run:
        model, optimizer = make()
        for _ in range(2):
            model.train()
            for _batch in DataLoader(data, batch_size=4):
                train_step(model, optimizer)
            model.train(mode == "train")
            for batch in DataLoader(data, batch_size=4):
                with torch.no_grad():
                    model(batch[0])
    steps = [event.step for event in run.of("batch")]
    assert steps == ([0, 0, 1, 1] if mode == "eval" else [0, 1, 1, 2])


def test_a_training_loader_opens_steps_whatever_the_mode(tmp_path):
    """A model that is left in eval mode is no reason to see fewer steps."""
    loader = DataLoader(TensorDataset(torch.ones(4, 3)), batch_size=2)
    with recording(tmp_path) as run:
        model, optimizer = make()
        for _ in range(2):
            for _batch in loader:
                train_step(model, optimizer)
            model.eval()
    assert [event.step for event in run.of("batch")] == [0, 1, 2, 3]


def test_batches_of_skipped_steps_are_counted(tmp_path):
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=2)
    with recording(tmp_path, every=2) as run:
        model, optimizer = make()
        for _batch in loader:
            train_step(model, optimizer)
    found = [(event.index, list(event.indices)) for event in run.of("batch")]
    assert found == [(0, [0, 1]), (2, [4, 5])]


WAYS = {
    "grad.zero_()": lambda p: p.grad.zero_(),
    "grad.data.zero_()": lambda p: p.grad.data.zero_(),
    "grad.detach_().zero_()": lambda p: p.grad.detach_().zero_(),
    "grad = None": lambda p: setattr(p, "grad", None),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("exact", [True, False])
def test_gradients_cleared_by_hand_are_seen(tmp_path, way, exact):
    from traincheck.schema.claims import Needs

    needs = None if exact else Needs(states=frozenset({"gradient@backward"}))
    with recording(tmp_path, needs=needs) as run:
        model, optimizer = make()
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            for parameter in model.parameters():
                WAYS[way](parameter)
        model(torch.ones(2, 3)).sum().backward()
    seen = [
        "cleared" if e.change == "cleared" or (e.summary and e.summary.zero) else e.change
        for e in run.of("state")
        if e.role == "gradient" and e.name == "Linear.weight"
    ]
    assert seen.count("cleared") == 2


def test_events_of_other_threads_are_on_disk_when_a_step_ends(tmp_path):
    """What a follower reads at the end of a step is all of it."""
    with recording(tmp_path) as run:
        model, optimizer = make()
        train_step(model, optimizer)
        done, go = threading.Event(), threading.Event()

        def work():
            F.relu(torch.ones(1))
            done.set()
            go.wait(10)

        thread = threading.Thread(target=work)
        thread.start()
        done.wait(10)
        train_step(model, optimizer)  # its zero_grad ends the step before
        on_disk = [e.api for e in read_folder(tmp_path) if e.kind == "call" and "-t1" in e.stream]
        go.set()
        thread.join()
    assert on_disk == ["torch.nn.functional.relu"]
    assert len(run.calls("torch.nn.functional.relu")) == 1


@pytest.mark.parametrize(("given", "expected"), [(None, 1), ("4", 4)])
def test_the_number_of_ranks_is_told(tmp_path, monkeypatch, given, expected):
    if given is None:
        monkeypatch.delenv("WORLD_SIZE", raising=False)
    else:
        monkeypatch.setenv("WORLD_SIZE", given)
    with recording(tmp_path) as run:
        F.relu(torch.ones(1))
    assert run.marks("process")[0].data["world_size"] == expected


def test_numbers_of_other_libraries_are_numbers():
    class Count(int):
        pass

    assert summarize(numpy.float64(0.5)) == 0.5
    assert type(summarize(numpy.float64(0.5))) is float
    assert encode(numpy.float64("nan")) == b'"nan"'
    assert summarize(Count(3)) == 3
    assert summarize(numpy.ones(1)) == {"type": "numpy.ndarray"}  # the twin: not a number


def test_a_second_training_is_counted_from_its_first_batch(tmp_path):
    """The first model is in evaluation mode for good, and the second was not called yet."""
    rows, models = TensorDataset(torch.ones(6, 3)), []
    with recording(tmp_path) as run:
        for _ in range(2):
            model, optimizer = make()
            models.append(model)
            for (x,) in DataLoader(rows, batch_size=2):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                model(torch.ones(1, 3))
    counts = [{n: c for n, c in e.counters.items() if c} for e in run.of("step")]
    names = ("batch", "forward", "backward", "zero_grad", "optimizer_step")
    assert counts == [dict.fromkeys(names, 1)] * 6
