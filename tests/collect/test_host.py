"""What programs do beside training that a recorder could come in the way of."""

from __future__ import annotations

import _thread
import enum
import gc
import os
import pickle
import signal
import threading
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.collect.recording import recording
from traincheck.collect.instruments.optimizers import Optimizers
from traincheck.schema.torch_api import Families

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


def fit(width: int = 4, steps: int = 2) -> nn.Module:
    model = nn.Linear(width, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, width)).pow(2).sum().backward()
        optimizer.step()
    return model


def test_models_that_died_leave_no_tensors_behind(tmp_path):
    """As in folds and sweeps. Their names are told as those of the next one."""
    with recording(tmp_path) as run:
        weights = [weakref.ref(fit().weight) for _ in range(3)]
        gc.collect()
        assert [ref() for ref in weights] == [None] * 3
        fit()
        assert len(run.session.live.optimizers) == 1
    assert [event.id for event in run.of("optimizer")] == ["opt0", "opt1", "opt2", "opt3"]
    assert {name for name, _ in run.changes("parameter")} >= {"Linear.weight", "Linear.bias"}


def test_nothing_is_kept_of_optimizers_that_died(tmp_path):
    """As those of a loop that makes one in each step."""
    with recording(tmp_path) as run:
        optimizers = next(i for i in run.session.installed if isinstance(i, Optimizers))
        sizes = []
        for _ in range(20):
            fit(steps=1)
            gc.collect()
            of_between = len(optimizers._between.seen)
            known = [value for value in vars(optimizers).values() if isinstance(value, dict)]
            sizes.append(of_between + sum(map(len, known)))
    assert sizes[-1] == sizes[2]
    steps = run.calls(Families.OPTIMIZER_STEP)
    assert [call.owner for call in steps] == [f"opt{number}" for number in range(20)]


def test_a_thread_looks_at_no_model_that_another_one_trains(tmp_path):
    """Autograd writes gradients without the lock of the interpreter: to read them is a crash."""
    failed, models, together = [], [], threading.Barrier(2)

    def work() -> None:
        try:
            together.wait(20)
            models.append(fit(width=64, steps=60))
        except Exception as error:
            failed.append(error)

    with recording(tmp_path) as run:
        main = nn.Linear(3, 1)
        torch.optim.SGD(main.parameters(), lr=0.1)
        main(torch.ones(1, 3)).sum().backward()
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    by_root = defaultdict(set)
    for event in run.of("state"):
        by_root[event.name.partition(".")[0]].add(event.stream)
    assert by_root.keys() == {"Linear", "Linear#2", "Linear#3"}
    assert all(len(streams) == 1 for streams in by_root.values())


def test_a_thread_of_autograd_looks_at_what_it_works_on(tmp_path):
    """On a GPU it runs hooks, an optimizer's step among them, and Python did not start it."""
    done = threading.Event()
    with recording(tmp_path) as run:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        _thread.start_new_thread(lambda: (optimizer.step(), done.set()), ())
        assert done.wait(20)
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
    assert ("Linear.weight", "content") in run.changes("parameter")
    assert [change for _, change in run.changes("gradient", "Linear.weight")].count("set") == 2


def test_a_model_trained_in_one_thread_is_seen_by_the_one_that_steps(tmp_path):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path) as run:
        out = []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        worker = threading.Thread(target=lambda: out.append(model(torch.ones(1, 3)).sum()))
        worker.start()
        worker.join()
        out[0].backward()
        optimizer.step()
    assert ("Linear.weight", "content") in run.changes("parameter")


def test_a_thread_that_updates_looks_at_what_another_computed_gradients_for(tmp_path):
    """A pool computes, and its work is waited for; none of it stays when its threads have ended."""
    with recording(tmp_path) as run:
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        pools = set()
        for _ in range(3):
            with ThreadPoolExecutor(1) as pool:
                pools.add(pool.submit(threading.get_ident).result(20))
                for _ in range(2):
                    optimizer.zero_grad()
                    pool.submit(lambda: model(torch.ones(1, 3)).sum().backward()).result(20)
                    optimizer.step()
        assert sum(thread in run.session.tracker.trainers for thread in pools) <= 1
    assert run.changes("parameter", "Linear.weight")[1:] == [("Linear.weight", "content")] * 6
    changes = [change for _, change in run.changes("gradient", "Linear.weight")]
    assert (changes.count("set"), changes.count("cleared")) == (6, 5)


def test_a_file_that_took_our_number_is_left_alone(tmp_path):
    with recording(tmp_path / "run", must_be_whole=False) as run:
        fit()
        fd = run.session.local.em.file.fd
        os.close(fd)
        with open(tmp_path / "own", "w") as own:
            assert own.fileno() == fd
            fit()
            own.write("mine")
    assert (tmp_path / "own").read_text() == "mine"
    assert len(run.of("step")) == 4


def test_a_file_put_in_the_place_of_ours_is_left_alone(tmp_path):
    with recording(tmp_path / "run", must_be_whole=False) as run:
        fit()
        with open(tmp_path / "own", "w") as own:
            os.dup2(own.fileno(), run.session.local.em.file.fd)
            fit()
            own.write("mine")
    assert (tmp_path / "own").read_text() == "mine"
    assert len(run.of("step")) == 4


def test_functions_of_c_are_no_methods(tmp_path):
    with recording(tmp_path) as run:

        class Net(nn.Module):
            act = torch.relu
            other = F.gelu

            def forward(self, x):
                return self.other(self.act(x))

        made = enum.Enum("Made", {"RELU": torch.relu, "GELU": F.gelu})
        Net()(torch.ones(2))
        assert [member.value for member in made] == [torch.relu, F.gelu]
    assert len(run.calls("torch.relu")) == len(run.calls("torch.nn.functional.gelu")) == 1


@pytest.mark.parametrize("function", ["relu", "detach", "sigmoid"])
def test_methods_of_tensors_are_pickled(tmp_path, function):
    with recording(tmp_path):
        held = pickle.loads(pickle.dumps(getattr(torch.Tensor, function)))
        assert held is getattr(torch.Tensor, function)
        assert pickle.loads(pickle.dumps(torch.relu)) is torch.relu


class LimitError(Exception):
    """What a deadline raises."""


def test_an_error_of_a_signal_handler_reaches_the_program(tmp_path):
    """Wherever it comes: in our code, too. After it, and after Ctrl-C, recording goes on."""

    def handler(number, frame):
        raise limits[number]

    limits = {signal.SIGALRM: LimitError, signal.SIGVTALRM: KeyboardInterrupt}
    before = {number: signal.signal(number, handler) for number in limits}
    met = 0
    try:
        with recording(tmp_path, must_be_whole=False) as run:
            for number in 10 * [signal.SIGALRM, signal.SIGVTALRM]:
                wrapped, run.session.tracker.scans.scan_parameters = (
                    run.session.tracker.scans.scan_parameters,
                    lambda *_, number=number: signal.raise_signal(number),
                )
                try:
                    fit(steps=1)
                except (LimitError, KeyboardInterrupt):
                    met += 1
                run.session.tracker.scans.scan_parameters = wrapped
                fit(steps=1)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
    assert met == 20
    assert not run.marks("fault")
    assert len([e for e in run.changes("parameter") if e[1] == "content"]) >= 40


def test_arguments_may_have_the_names_that_ours_have(tmp_path):
    """``model(x, module=...)`` is for the model to understand."""
    names = ("module", "args", "kwargs", "em", "span", "function", "optimizer", "result")

    class Net(nn.Linear):
        def forward(self, x, **named):
            assert tuple(named) == names
            return super().forward(x)

    class Own(torch.optim.SGD):
        def step(self, closure=None, **named):
            assert tuple(named) == names
            return super().step(closure)

    with recording(tmp_path) as run:
        model = Net(3, 1)
        optimizer = Own(model.parameters(), lr=0.1)
        model(torch.ones(1, 3), **dict.fromkeys(names, 1)).sum().backward()
        optimizer.step(**dict.fromkeys(names))
        assert torch.relu(input=torch.ones(1)).item() == F.linear(*[torch.ones(1, 1)] * 2).item()
    (call,) = [event for event in run.calls(Families.MODULE) if event.root]
    assert call.args["module"] == 1


def profiled() -> None:
    with torch.profiler.profile(with_stack=True):
        fit()


def test_the_profiler_finds_modules_on_the_stack(tmp_path):
    """It reads the local variable ``self`` of the frames that call modules, and dies without."""
    with recording(tmp_path) as run:
        profiled()
    assert run.calls(Families.OPTIMIZER_STEP)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_compiles_what_warns_and_what_derives_from_it(tmp_path):
    class Scripted(torch.jit.ScriptModule):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        @torch.jit.script_method
        def forward(self, x):
            return F.gelu(F.linear(x, self.linear.weight))

    with recording(tmp_path):
        softmax = torch.jit.script(nn.Softmax(dim=1))
        assert softmax(torch.zeros(1, 2)).tolist() == [[0.5, 0.5]]
        torch.jit.script(nn.CrossEntropyLoss())
        assert Scripted()(torch.ones(1, 2)).shape == (1, 2)


class Tabled(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return TABLE[function]() if function in TABLE else NotImplemented


TABLE = {}


def test_tables_of_overrides_hold_functions_of_c(tmp_path):
    with recording(tmp_path):
        TABLE[torch.relu] = lambda: "relu"
        TABLE[torch.matmul] = lambda: "matmul"
        try:
            assert torch.relu(torch.ones(2).as_subclass(Tabled)) == "relu"
            assert torch.matmul(torch.ones(2).as_subclass(Tabled), torch.ones(2)) == "matmul"
        finally:
            TABLE.clear()


@pytest.mark.parametrize("bounds", [(np.zeros(2), np.ones(2)), (torch.zeros(2), torch.ones(2))])
def test_groups_may_hold_arrays(tmp_path, bounds):
    with recording(tmp_path) as run:
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([{"params": [parameter], "bounds": bounds}], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            parameter.pow(2).sum().backward()
            optimizer.param_groups[0]["bounds"] = tuple(item + 1 for item in bounds)
            optimizer.step()
    assert len(run.calls(Families.OPTIMIZER_STEP)) == 3


def test_what_interrupts_the_fetching_of_a_batch_ends_no_recording(tmp_path, monkeypatch):
    loader = torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
    with recording(tmp_path) as run:
        fit()
        with monkeypatch.context() as patch:
            patch.setattr(run.session.steps, "_on_end", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        assert run.session.local.em is not None
        assert not run.session.local.em.busy


def interrupt() -> None:
    raise KeyboardInterrupt


class WithoutMode(nn.Module):
    """Its class takes the mode away; `nn.Module` sets it when it is made."""

    training = property(lambda self: self.missing, lambda self, value: None)

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x)


def test_modules_without_a_mode_are_taken_for_training(tmp_path):
    with recording(tmp_path) as run:
        for _ in range(10):
            WithoutMode()(torch.ones(1, 4)).sum().backward()
    assert {call.training for call in run.calls(Families.MODULE)} == {True}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_leaves_the_other_variables_in_place(tmp_path):
    with recording(tmp_path) as run:
        model = nn.Linear(4, 2)
        model.register_buffer("ragged", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    assert {name for name, _ in run.changes("parameter")} == {"Linear.weight", "Linear.bias"}


def language_training(device: str) -> None:
    """With tensors on the CPU, whatever the default device is once it runs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    places = torch.arange(10)
    ids = torch.randint(1, 7, (96, 10)).masked_fill(places > 6, 8)  # 8 ends a text, and pads it
    labels, mask = ids.masked_fill(ids == 8, -100), (places < 8).long()
    data = [
        {"input_ids": i, "attention_mask": mask, "labels": t, "row": torch.arange(40)}
        for i, t in zip(ids, labels)
    ]
    batches = iter(DataLoader(data, batch_size=32))
    with torch.device(device):
        for batch in batches:
            optimizer.zero_grad(set_to_none=False)
            logits, tokens = model(batch["input_ids"]).transpose(1, 2), batch["labels"]
            loss = F.cross_entropy(logits[..., :-1], tokens[:, 1:])
            found = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found):
                parameter.grad = gradient
            optimizer.step()
        model.eval()
        with torch.no_grad():
            F.cross_entropy(model(batch["input_ids"]).transpose(1, 2), tokens)


def test_the_default_device_is_for_tensors_of_the_program(tmp_path):
    """Ours are made where that one is which they are about, and whose memory is read."""
    told = {}
    for device in ("cpu", "meta"):
        with recording(tmp_path / device) as run:
            language_training(device)
        told[device] = [
            [(e.leaves, e.tokens) for e in run.of("batch")],
            [(e.args, e.result) for e in run.calls(CROSS_ENTROPY)],
            [(e.name, e.change, e.summary) for e in run.of("state")],
        ]
    assert told["meta"] == told["cpu"]
    batches, losses, _ = told["meta"]
    assert [tokens["lost_end"] for _, tokens in batches] == [8] * 3
    assert all(leaves["batch.row"]["stats"]["alike"] == 1 for leaves, _ in batches)
    assert [args["target"]["stats"]["shifted"] for args, _ in losses] == [1, 1, 1, 0]
