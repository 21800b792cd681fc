"""Probes leave the program as it is, whatever becomes of a copy of it."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.collect.recording import read_folder, recording
from tests.rules.probing import classified, results, trained
from traincheck.collect.probes import fork
from traincheck.collect.probes.base import Call, Experiment, Laboratory, Result, unobservable
from traincheck.collect.probes.engine import ProbeEngine
from traincheck.collect.probes.fork import Child, Outcome, forked
from traincheck.collect.probes.laboratory import Budget
from traincheck.collect.probes.plan import Plan
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


def test_a_copy_that_hangs_is_ended() -> None:
    outcome = copied(lambda child: time.sleep(60), limit_s=0.5)
    assert outcome.is_slow
    assert "more than 0.5 s" in outcome.reason
    assert outcome.wall_s < 30


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
    assert "KeyError" in first.reason


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
