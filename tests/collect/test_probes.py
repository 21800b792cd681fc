"""Probes leave the program as it is, whatever becomes of a copy of it."""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import os
import queue
import random
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.collect.recording import read_folder, recording
from tests.rules.probing import classified, results, trained
from traincheck.collect.probes import base, fork
from traincheck.collect.probes.base import (
    Budget,
    Call,
    Experiment,
    Laboratory,
    Result,
    unobservable,
)
from traincheck.collect.probes.engine import Plan, ProbeEngine
from traincheck.collect.probes.experiments import row_mixing
from traincheck.collect.probes.fork import Child, Outcome, forked
from traincheck.collect.probes.functions import Functions
from traincheck.report.run_summary import probe_rows
from traincheck.schema.claims import Needs
from traincheck.schema.probes.event import ProbeEvent


def copied(body: Callable[[Child], None], limit_s: float = 10.0) -> Outcome:
    outcome = forked(body, limit_s)
    assert isinstance(outcome, Outcome)
    return outcome


def test_a_copy_reports_and_ends() -> None:
    def body(child: Child) -> None:
        child.tell(pid=os.getpid(), value=0.5)
        child.end()

    outcome = copied(body)
    assert outcome.told["pid"] != os.getpid()
    assert (outcome.told["value"], outcome.reason) == (0.5, "")
    with pytest.raises(ChildProcessError):
        os.waitpid(outcome.told["pid"], os.WNOHANG)


def test_a_copy_that_fails_says_why() -> None:
    def raises(child: Child) -> None:
        raise ValueError("no such layer")

    def crashes(child: Child) -> None:
        os.abort()

    def exits(child: Child) -> None:
        os.kill(os.getpid(), 9)

    assert copied(raises).reason == "ValueError was raised: no such layer"
    assert copied(crashes).reason
    assert copied(exits).reason.startswith("the program calls os.kill")


def computes(seconds: float) -> None:
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass


def test_the_time_of_a_copy_is_that_of_its_cpu() -> None:
    outcome = copied(lambda child: computes(60), limit_s=0.2)
    assert outcome.is_slow
    assert outcome.reason == "it took more than 0.2 s of CPU"
    assert outcome.cpu_s < 10


def test_a_copy_that_sleeps_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork, "_WAITS_S", 0.3)

    def naps(child: Child) -> None:
        while True:
            time.sleep(0.01)

    outcomes = [copied(lambda child: time.sleep(60)), copied(naps)]
    assert all(outcome.is_slow for outcome in outcomes)
    assert {outcome.reason for outcome in outcomes} == {"the copy waited for 0.3 s"}


def test_a_copy_that_waits_for_a_lock_is_ended_at_once() -> None:
    lock = threading.Lock()
    lock.acquire()
    outcome = copied(lambda child: lock.acquire() and None)
    assert (outcome.is_stuck, outcome.is_slow) == (True, False)
    assert outcome.reason == "the copy waits for a lock or a thread of the program"
    assert outcome.asleep_s < fork._WAITS_S, "the system shows it"
    assert copied(lambda child: lock.release() or child.end()).reason == ""


def test_a_copy_that_computes_is_not_taken_for_one_that_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fork, "_WAITS_S", 0.3)

    def body(child: Child) -> None:
        computes(0.5)
        child.tell(value=1)
        child.end()

    outcome = copied(body)
    assert (outcome.told, outcome.reason) == ({"value": 1}, "")


def test_a_copy_that_takes_all_memory_ends_alone() -> None:
    def body(child: Child) -> None:
        held = [torch.ones(1 << 27) for _ in range(1 << 10)]  # half a terabyte
        child.tell(count=len(held))
        child.end()

    outcome = copied(body, limit_s=60)
    assert "count" not in outcome.told
    assert outcome.reason


def test_files_keep_their_positions_and_contents(tmp_path: Path) -> None:
    path = tmp_path / "data.txt"
    path.write_text("0123456789")
    with path.open("rb", buffering=0) as source, (tmp_path / "log").open("wb", buffering=0) as log:
        source.read(3)

        def body(child: Child) -> None:
            child.tell(text=source.read(4).decode())
            log.write(b"from a copy")
            child.end()

        assert copied(body).told["text"] == "3456"
        assert source.read(2) == b"34"
    assert (tmp_path / "log").read_bytes() == b""


def test_what_would_reach_further_ends_a_copy(tmp_path: Path) -> None:
    def writes(child: Child) -> None:
        (tmp_path / "new").write_text("text")

    def starts(child: Child) -> None:
        subprocess.run(["true"], check=False)

    def removes(child: Child) -> None:
        os.remove(__file__)

    assert "writes a file" in copied(writes).reason
    assert "subprocess.Popen" in copied(starts).reason
    assert "os.remove" in copied(removes).reason
    assert not (tmp_path / "new").exists()
    assert Path(__file__).exists()


def test_shared_memory_is_copied() -> None:
    shared, plain = torch.zeros(1000).share_memory_(), torch.zeros(1000)
    lock = multiprocessing.Lock()

    def body(child: Child) -> None:
        shared.fill_(1)
        plain.fill_(1)
        lock.acquire()
        child.tell(sum=float(shared.sum()))
        child.end()

    assert copied(body).told["sum"] == 1000
    assert float(shared.sum()) == float(plain.sum()) == 0
    assert lock.acquire(block=False)


# -- programs with threads


@contextlib.contextmanager
def repeated(act: Callable[[], Any]) -> Iterator[None]:
    """Another thread does it again and again. Threads change as often as they can."""
    is_over, interval = threading.Event(), sys.getswitchinterval()

    def run() -> None:
        while not is_over.is_set():
            act()

    thread = threading.Thread(target=run)
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()


def matrices() -> Callable[[], Any]:
    numbers = np.ones((256, 256))
    return lambda: numbers @ numbers


def layers() -> Callable[[], Any]:
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), torch.ones(4, 3, 16, 16)
    return lambda: net(x).sum().backward()


def log() -> Callable[[], Any]:
    handler = logging.handlers.QueueHandler(queue.Queue())
    record = logging.makeLogRecord({"msg": "text"})
    return lambda: (handler.handle(record), time.sleep(1e-4))


def jobs() -> Callable[[], Any]:
    def act() -> None:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(zlib.compress, [bytes(1 << 12)] * 8))

    return act


def lines() -> Callable[[], Any]:
    def act() -> None:
        with open(os.devnull, "wb") as raw:
            for _ in range(20):
                raw.write(b".")
                raw.flush()

    return act


THREADS: dict[str, Callable[[], Callable[[], Any]]] = {
    "asleep": lambda: partial(time.sleep, 1e-4),
    "bytecode": lambda: lambda: sum(range(100)),
    "matrices": matrices,
    "layers": layers,
    "log": log,
    "jobs": jobs,
    "lines": lines,
}


@pytest.mark.parametrize("name", THREADS)
def test_a_thread_of_the_program_does_not_keep_a_copy_waiting(name: str) -> None:
    net, x, numbers = nn.Linear(8, 3), torch.ones(4, 8), np.ones((256, 256))

    def body(child: Child) -> None:
        (numbers @ numbers).sum()  # with threads of a library, which are not in the copy
        loss = net(x).sum()
        loss.backward()
        logging.getLogger("ours").info("in a copy")
        child.tell(loss=float(loss))
        child.end()

    with repeated(THREADS[name]()):
        outcomes = [copied(body) for _ in range(10)]
    assert {outcome.reason for outcome in outcomes if not outcome.is_stuck} == {""}
    assert sum(outcome.is_stuck for outcome in outcomes) < 5


def test_a_file_that_a_thread_writes_or_reads_meanwhile_keeps_its_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(1 << 20))
    written: list[int] = []
    with (
        (tmp_path / "log").open("wb", buffering=0) as target,
        (tmp_path / "data").open("rb", buffering=0) as source,
    ):

        def body(child: Child) -> None:
            source.read(100)
            computes(0.02)
            child.end()

        with repeated(lambda: (written.append(target.write(b"line\n")), source.read(1))):
            assert {copied(body).reason for _ in range(5)} == {""}
        assert source.tell() == len(written)
    assert (tmp_path / "log").read_bytes() == b"line\n" * len(written)


def test_a_copy_that_found_a_lock_closed_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, outcomes = threading.Lock(), []
    lock.acquire()

    def once(*args: Any) -> Outcome | Child:
        outcome = forked(*args)
        if isinstance(outcome, Outcome):
            outcomes.append(outcome)
            if lock.locked():
                lock.release()
        return outcome

    class Waiting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with lock if not self.training else contextlib.nullcontext():
                return super().forward(x)

    monkeypatch.setattr(base, "forked", once)
    events = trained(tmp_path, Waiting(8, 3), classified, steps=3)
    assert [outcome.is_stuck for outcome in outcomes].count(True) == 1
    assert [event.status for event in results(events, "row_mixing")] == ["held"]


HANDLED: list[int] = []  # descriptors; such a registration cannot be taken back
RESTARTED: list[Callable[[], Any]] = []
os.register_at_fork(after_in_child=lambda: [os.write(fd, b"forked") for fd in HANDLED])
os.register_at_fork(
    after_in_parent=lambda: [threading.Thread(target=act).start() for act in RESTARTED],
    after_in_child=lambda: [threading.Thread(target=act).start() for act in RESTARTED],
)


def test_handlers_of_the_program_run_in_a_copy_that_is_separated(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as file:
        HANDLED.append(file.fileno())
        try:
            outcome = copied(lambda child: child.end())
        finally:
            HANDLED.clear()
    assert outcome.reason == ""
    assert (tmp_path / "log").read_bytes() == b""


def test_threads_that_handlers_of_the_program_start_are_not_in_a_copy() -> None:
    lock, in_parent = threading.Lock(), threading.Event()
    lock.acquire()

    def body(child: Child) -> None:
        worker = threading.Thread(target=time.sleep, args=(0.01,))
        worker.start()  # the copy may start threads itself
        worker.join()
        child.tell(names=[thread.name for thread in threading.enumerate()])
        lock.acquire()

    RESTARTED.extend([in_parent.set, partial(time.sleep, 0.5)])
    try:
        outcome = copied(body)
    finally:
        RESTARTED.clear()
    assert len(outcome.told["names"]) == 1
    assert (outcome.is_stuck, outcome.is_slow) == (True, False)
    assert in_parent.wait(60)


# -- whose fault it is


def test_exceptions_of_the_program_are_not_ours() -> None:
    inner = nn.Sequential(nn.Linear(8, 3))

    def raised(act: Callable[[], Any]) -> BaseException:
        try:
            act()
        except Exception as error:
            return error
        raise AssertionError("nothing was raised")

    theirs = [
        lambda: int("no number") + 1,  # of a lambda here, which stands for the program
        lambda: inner(torch.ones(2, 7)),  # of torch, below a model
        lambda: torch.ones(2, requires_grad=True).backward(),
    ]
    assert [fork.is_ours(raised(act)) for act in theirs] == [False] * 3
    ours = [lambda: row_mixing.distance(1, 2), lambda: Budget().take(None)]  # type: ignore[arg-type]
    assert [fork.is_ours(raised(act)) for act in ours] == [True] * 2
    assert fork.described(raised(ours[0])).startswith("AttributeError: 'int' object has no")


def test_what_passes_on_a_call_is_not_to_blame() -> None:
    from traincheck.collect.probes.operations import Tape

    net = nn.Linear(8, 3)

    def body(child: Child) -> None:
        with Tape(net):
            torch.ones(2).view(7)

    outcome = copied(body)
    assert outcome.reason.startswith("RuntimeError was raised: shape '[7]' is invalid")
    assert outcome.fault == ""


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2


IN_C = dict.__dict__["fromkeys"]  # a `classmethod_descriptor`
APPLIES: dict[str, tuple[Any, Any]] = {
    "as torch has it": (None, 6.0),
    "class method in C": (IN_C, {0: 5}),
    "class method": (classmethod(lambda cls, x, y: cls.__name__), "Keys"),
    "static method": (staticmethod(lambda x, y: y), 5),
    "function": (lambda x, y: y, 5),
    "function in C": (max, 5),
}


@pytest.mark.parametrize("name", APPLIES)
def test_what_follows_custom_functions_replaces_any_kind_of_method(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, expected = APPLIES[name]
    depth = Functions()

    class Keys(dict):  # type: ignore[type-arg]
        pass

    if given is not None:
        monkeypatch.setattr(torch.autograd.Function, "apply", given)
    else:  # put back what is replaced
        monkeypatch.setattr(
            torch.autograd.Function, "apply", torch.autograd.Function.__dict__["apply"]
        )
    depth.install()
    replaced = torch.autograd.Function.__dict__["apply"]
    if given is None:
        assert Function.apply(torch.tensor([3.0])).item() == expected
        assert depth.classes == ["Function"]
    else:
        call = replaced.__get__(None, Keys)
        assert call([0], 5) == expected if given is IN_C else call(0, 5) == expected
    assert depth.depth == 0


def test_random_numbers_of_python_are_those_of_the_program() -> None:
    random.seed(3)
    state = random.getstate()

    def body(child: Child) -> None:
        child.tell(number=random.random())
        child.end()

    number = copied(body).told["number"]
    assert random.getstate() == state
    assert random.random() == number


def test_a_program_that_handles_the_end_of_children_is_not_probed() -> None:
    import signal

    before = signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        assert "handler" in fork.obstacle()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert fork.obstacle() == ""


# -- whole runs

PROGRAM = """
import random, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0); random.seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(inplace=True), nn.Dropout(0.2),
                      nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), 1e-2)
data = TensorDataset(torch.randn(160, 8), torch.randint(0, 3, (160,)))
log = open(sys.argv[1], "w", buffering=1)
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True, num_workers=int(sys.argv[2])):
        loss = nn.functional.cross_entropy(model(x + random.random()), y)
        print("loss", loss.item(), file=log)
        print("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(hash(tuple(torch.cat([p.detach().flatten() for p in model.parameters()]).tolist())))
print(hash(tuple(torch.get_rng_state().tolist())), random.random())
raise SystemExit(7)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_is_the_same_to_the_last_bit(workers: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    ours = [sys.executable, "-m", "traincheck", "run", "--probe", "-o", str(tmp_path / "trace")]
    done = []
    for words in ([sys.executable], ours):
        log = tmp_path / f"log{len(done)}"
        line = [*words, str(script), str(log), str(workers)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        run = subprocess.run(line, capture_output=True, text=True, env=env, check=False)
        done.append((run.returncode, run.stdout, log.read_text()))
    assert done[0] == done[1]
    assert done[0][0] == 7
    found = [e for e in read_folder(tmp_path / "trace") if isinstance(e, ProbeEvent)]
    assert {e.name for e in found if e.status == "held"} >= {"replay", "row_mixing", "gradient"}
    pids = {path.name for path in (tmp_path / "trace").glob("events-*")}
    assert len(pids) <= 1 + 2 * workers, "copies write no trace"


class Broken(Experiment):
    name = "broken"

    def __init__(self, act: Callable[[], Any]) -> None:
        self.act = act

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        outcome = laboratory.replay(lambda: self.act() and None)
        return unobservable(outcome.reason) if outcome.reason else Result()


def hangs() -> None:
    time.sleep(60)


def raises() -> None:
    raise RuntimeError("broken")


def crashes() -> None:
    os.abort()


@contextlib.contextmanager
def probing(
    monkeypatch: pytest.MonkeyPatch, *experiments: Experiment, child_s: float = 20.0
) -> Iterator[None]:
    made = ProbeEngine.__init__

    def init(self: ProbeEngine, session: Any) -> None:
        plan, budget = Plan((2, 4)), Budget(60.0, child_s)
        made(self, session, plan=plan, budget=budget, experiments=experiments)

    with monkeypatch.context() as patch:
        patch.setattr(ProbeEngine, "__init__", init)
        yield


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 3))


def plainly(net: nn.Module) -> torch.Tensor:
    """The weights after the training of `trained`, without recording."""
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for step in range(12):
        optimizer.zero_grad()
        classified(net, step).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(net.parameters())


@pytest.mark.parametrize("act", [hangs, raises, crashes])
def test_a_broken_experiment_costs_its_time_only(
    act: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = model()
    with probing(monkeypatch, Broken(act), child_s=3.0):
        events = trained(tmp_path, net, classified)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), plainly(model()))
    (first, *rest) = results(events, "broken")
    assert first.status == "not_observable"
    assert bool(rest) is (act is not hangs), "after a copy that hangs there are no more"


def test_a_fault_of_ours_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Faulty(Experiment):
        name = "faulty"

        def run(self, call: Call, laboratory: Laboratory) -> Result | None:
            raise KeyError("ours")

    net = model()
    with probing(monkeypatch, Faulty()):
        events = trained(tmp_path, net, classified, must_be_whole=False)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), plainly(model()))
    (first, *_) = results(events, "faulty")
    assert first.status == "failed"
    assert first.reason.startswith("KeyError: 'ours' at test_probes.py:")


@pytest.mark.parametrize(
    ("name", "target"), [("row_mixing", "_changes"), ("batch_place", "_rolled")]
)
def test_a_fault_of_ours_in_a_copy_is_shown_as_ours(
    name: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"traincheck.collect.probes.experiments.row_mixing.{target}"
    net = model()
    with monkeypatch.context() as patch:
        patch.setattr(where, partial(int, "no number"))
        events = trained(tmp_path, net, classified, must_be_whole=False)
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), plainly(model()))
    found = list(results(events, name))
    assert {event.status for event in found} == {"failed"}
    assert "at row_mixing.py:" in found[0].reason
    assert {event.status for event in results(events, "gradient")} == {"held"}
    [mark] = [e for e in events if e.kind == "mark" and e.text == "fault"]
    assert "FailedError" in mark.data["reason"]
    rows = list(probe_rows([event for event in events if isinstance(event, ProbeEvent)]))
    assert [label for label, _ in rows if label in ("failed", "fix", "not observable")] == [
        "failed",
        "fix",
    ]
    assert "report it" in dict(rows)["fix"]


def test_a_model_that_raises_in_a_copy_is_not_our_fault(tmp_path: Path) -> None:
    class Strict(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self.training:
                raise ValueError("not for evaluation")
            return super().forward(x)

    events = trained(tmp_path, Strict(8, 3), classified)
    (first, *_) = results(events, "row_mixing")
    assert first.status == "not_observable"
    assert first.reason == "ValueError was raised: not for evaluation"


def test_losses_that_differ_between_copies_are_not_compared(tmp_path: Path) -> None:
    def loss(net: nn.Module, step: int) -> torch.Tensor:
        value = classified(net, step)
        return value * (1 + int.from_bytes(os.urandom(2), "big") / 65536)

    events = trained(tmp_path, model(), loss)
    (replay, *_) = results(events, "replay")
    assert replay.reason == "two copies without a change gave different losses"
    assert all(e.status == "not_observable" for e in results(events, "gradient"))


def test_each_net_of_a_gan_is_probed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizers = [torch.optim.Adam(net.parameters(), 1e-3) for net in (critic, generator)]
    with recording(tmp_path, probe=True, needs=Needs()) as run:
        for _ in range(12):
            fake = generator(torch.randn(16, 4))
            loss = critic(fake.detach()).mean() - critic(torch.randn(16, 8)).mean()
            optimizers[0].zero_grad()
            loss.backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            (-critic(generator(torch.randn(16, 4))).mean()).backward()
            optimizers[1].step()
    found = list(results(run.events, "gradient"))
    assert {event.status for event in found} == {"held"}
    assert {e.model for e in results(run.events, "row_mixing")} == {"Linear", "Sequential"}


def test_closures_are_probed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.LBFGS(net.parameters(), lr=0.1, max_iter=2)
    x, y = torch.randn(16, 8), torch.randint(0, 3, (16,))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        return loss

    with recording(tmp_path, probe=True, needs=Needs()) as run:
        for _ in range(4):
            optimizer.step(closure)  # type: ignore[arg-type]
    assert {event.status for event in results(run.events, "gradient")} == {"held"}


def test_a_model_in_half_precision_says_why(tmp_path: Path) -> None:
    def loss(net: nn.Module, step: int) -> torch.Tensor:
        return net(torch.randn(16, 8, dtype=torch.bfloat16)).square().mean()

    events = trained(tmp_path, nn.Linear(8, 3).bfloat16(), loss)
    (first, *_) = results(events, "gradient")
    assert "half precision" in first.reason


def test_a_compiled_model_says_why(tmp_path: Path) -> None:
    events = trained(tmp_path, torch.compile(model(), backend="eager"), classified)  # type: ignore[arg-type]
    (first, *_) = results(events, "gradient")
    assert first.reason == "the model is compiled"


class Scaled(nn.Module):
    """A transform: a module without parameters, called for each sample of a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def test_transforms_are_no_models(tmp_path: Path) -> None:
    scaled = Scaled()

    def loss(net: nn.Module, step: int) -> torch.Tensor:
        x = torch.stack([scaled(torch.randn(8)) for _ in range(64)])
        return nn.functional.cross_entropy(net(x), torch.arange(64) % 3)

    events = trained(tmp_path, model(), loss)
    found = [event for event in events if isinstance(event, ProbeEvent)]
    assert {event.model for event in found} == {type(model()).__name__}
    assert {event.status for event in results(events, "gradient")} == {"held"}
