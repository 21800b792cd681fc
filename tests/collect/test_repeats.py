"""Unrecorded steps are compared with the step before: their records are the same.

The reference is a counter that counts each sign. Both are played the same loops, by hooks that do
what those of the instruments do.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from tests.collect.recording import recording
from tests.collect.test_steps import LOOPS
from traincheck.collect.session import step_boundary
from traincheck.collect.steps import pattern_counter
from traincheck.collect.steps.pattern_counter import LAST, LEFT, PatternStepCounter
from traincheck.collect.steps.sampling import EveryNth
from traincheck.collect.steps.step_counter import StepCounter


@pytest.fixture(autouse=True)
def _without_a_limit(monkeypatch):
    """However slow this machine is."""
    monkeypatch.setattr(pattern_counter, "_LONGEST_NS", 1 << 60)


class Loop:
    """A counter among hooks, of steps of which each ``every``-th is recorded."""

    def __init__(self, optimizers, every, *, compares):
        self.alive = set(optimizers)
        self.sampling = EveryNth(every)
        self.is_on, self.is_idle = True, False
        self.told = []  # number and counters of each step that ended
        self.heard = []  # in which step a sign of a recorded step was
        self.counted = 0  # signs that were not only compared
        ends = self._ended, lambda done: set(self.alive)
        if compares:
            self.counter = PatternStepCounter(*ends, self._skipped, self._caught_up)
        else:
            self.counter = StepCounter(*ends)

    def _ended(self):
        self.told.append((self.counter.step, dict(self.counter.counters)))
        self.is_on = self.sampling.wants(self.counter.step + 1)
        self.is_idle = not self.is_on

    def _skipped(self):
        return 0 if self.is_on else self.sampling.skipped(self.counter.step)

    def _caught_up(self, found):
        assert not self.is_on
        assert found.times_ns == sorted(found.times_ns)
        zeros = dict.fromkeys(self.counter.counters, 0)
        for step in range(found.first, found.first + len(found.times_ns)):
            self.told.append((step, {**zeros, **found.counters}))
        self._signal()

    def _signal(self):
        self.is_idle = not self.is_on and not self.counter.is_between

    def _compares(self, token):
        expected = self.counter.expects()
        if expected is None:
            return False
        if expected == token:
            return True
        self.counter.catch_up(unmatched=1)
        return False

    def _sign(self, token, count, *given):
        if not self._compares(token):
            self.counted += 1
            count(*given, token)

    def enter(self, name):
        if self._compares(name):
            self.counter.tick(len(self.told))
        else:
            self.counted += 1
            self.counter.enter_optimizer(name, name)

    def leave(self, name):
        expected = self.counter.expects()
        if expected is LAST:
            self.is_idle = False
        elif expected is not LEFT:
            if expected is not None:
                self.counter.catch_up(unmatched=1)
            self.counted += 1
            self.counter.exit_optimizer(name)
            if not self.is_on:
                self._signal()

    def _mark(self):
        self.counter.catch_up()
        self.counter.manual = True
        self.counter.end()

    def _make(self):
        self.alive.add("opt1")
        self.counter.created("opt1")

    def _forward(self):
        if not self.is_idle:
            self.counter.forward()

    def play(self, signals, *, is_last=True):
        counter, sign = self.counter, self._sign
        hooks = {
            "b": lambda: sign("loader0", counter.batch),
            "f": self._forward,
            "w": lambda: sign("thread", counter.backward),
            "z": lambda: sign("-opt0", counter.zero_grad, "opt0"),
            "Z": lambda: sign("-opt1", counter.zero_grad, "opt1"),
            "m": lambda: sign("-model", counter.zero_grad, None),
            "s": lambda: (self.enter("opt0"), self.leave("opt0")),
            "S": lambda: (self.enter("opt1"), self.leave("opt1")),
            "(": lambda: self.enter("opt0"),
            ")": lambda: self.leave("opt0"),
            "x": lambda: counter.scaler_step("opt0"),
            "k": lambda: (self.enter("opt0"), self.leave("opt0"), counter.scaler_step("opt0")),
            "n": self._make,
            "!": self._mark,
            ".": lambda: None,
        }
        for signal in signals:
            hooks[signal]()
            if self.is_on:
                self.heard.append((signal, counter.step, counter.applied))
        if is_last:
            counter.catch_up()
        return self


def without_forwards(told):
    """Forwards of steps that are not recorded are seen at their boundary alone, where any is."""
    return [(step, {**counters, "forward": 0}) for step, counters in told]


def _last(loop):
    return without_forwards([(loop.counter.step, loop.counter.counters)])


def both(optimizers, signals, every):
    compared = Loop(optimizers, every, compares=True).play(signals)
    counted = Loop(optimizers, every, compares=False).play(signals)
    return compared, counted


@pytest.mark.parametrize("every", [3, 7, 50])
@pytest.mark.parametrize("name", [name for name in LOOPS if not name.startswith("marked")])
def test_each_loop_is_told_as_if_all_were_counted(name, every):
    optimizers, loop, _ = LOOPS[name]
    compared, counted = both(optimizers, loop.replace(" ", "") * 12, every)
    assert without_forwards(compared.told) == without_forwards(counted.told)
    assert compared.heard == counted.heard
    assert _last(compared) == _last(counted)


@pytest.mark.parametrize(
    ("optimizers", "step", "share"),
    [
        pytest.param(("opt0",), "bzfws", 0.3, id="plain"),
        pytest.param(("opt0",), "zbfwbfws", 0.3, id="zero_grad before the batches"),
        pytest.param(("opt0",), "bmfws", 0.3, id="model.zero_grad"),
        pytest.param(("opt0",), "bfwbfwbfwsz", 0.3, id="accumulation"),
        pytest.param(("opt0", "opt1"), "bZfwSzfws", 0.3, id="GAN"),
        pytest.param(("opt0",), "bz(fw)", 0.3, id="closure"),
        pytest.param(("opt0",), "zfws", 1.0, id="without a loader: as before"),
        pytest.param(("opt0",), "bzfwk", 1.0, id="GradScaler: as before"),
    ],
)
def test_few_signs_are_counted(optimizers, step, share):
    compared, counted = both(optimizers, step * 100, every=25)
    assert len(compared.told) > 90
    found = compared.counted / counted.counted
    assert found <= share if share < 1 else found == 1


STEPS = st.sampled_from(["bzfws", "bfws", "zbfwbfws", "bZfwSzfws", "bzZfwsS", "bz(zfw)", "bfwz"])


@given(
    step=STEPS,
    times=st.integers(2, 30),
    odd=st.lists(
        st.tuples(st.integers(0, 200), st.sampled_from("bzwsZSm()n."), st.booleans()), max_size=4
    ),
    every=st.integers(2, 12),
)
@settings(max_examples=300, deadline=None)
def test_no_change_of_the_loop_is_missed(step, times, odd, every):
    """Signs come in addition, or are left out, anywhere.

    But forwards, which nobody looks for between steps that are compared, and batches: without one,
    forwards matter.
    """
    signals = list(step * times)
    for place, signal, adds in sorted(odd, reverse=True):
        if adds:
            signals.insert(place % (len(signals) + 1), signal)
        elif signals and signals[place % len(signals)] not in "fb":
            del signals[place % len(signals)]
    depth = 0
    whole = []
    for signal in signals:  # an optimizer that is left was entered, and the other way round
        depth += (signal == "(") - (signal == ")")
        if depth in (0, 1):
            whole.append(signal)
        depth = min(max(depth, 0), 1)
    whole += ")" * depth
    compared, counted = both(("opt0", "opt1"), whole, every)
    assert without_forwards(compared.told) == without_forwards(counted.told)
    assert _last(compared) == _last(counted)


# -- in real training


def make(size=16, workers=0):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    data = TensorDataset(torch.randn(8 * size, 3), torch.randn(8 * size, 2))
    loader = DataLoader(data, batch_size=size, shuffle=True, num_workers=workers)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()


def plain(epochs=3, workers=0):
    model, optimizer, loader = make(workers=workers)
    for _ in range(epochs):
        for x, y in loader:
            train_step(model, optimizer, x, y)


def with_evaluation():
    model, optimizer, loader = make()
    for _ in range(4):
        model.train()
        for step, (x, y) in enumerate(loader):
            train_step(model, optimizer, x, y)
            if step == 2:
                model.eval()
                with torch.no_grad():
                    for other, _ in make()[2]:
                        model(other)


def with_workers():
    plain(workers=2)


def with_another_optimizer():
    plain(2)
    plain(2)


def with_a_failing_step():
    class Fails(torch.optim.SGD):
        calls = 0

        @torch.no_grad()
        def step(self, closure=None):
            self.calls += 1
            if self.calls % 5 == 0:
                raise ArithmeticError("now and then")
            return super().step(closure)

    model, _, loader = make()
    optimizer = Fails(model.parameters(), lr=0.1)
    for _ in range(3):
        for x, y in loader:
            try:
                train_step(model, optimizer, x, y)
            except ArithmeticError:
                optimizer.zero_grad()


def with_a_closure_at_times():
    model, optimizer, loader = make()

    def closure():
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        return loss

    for step, (x, y) in enumerate(batch for _ in range(3) for batch in loader):
        if step % 7 == 6:
            optimizer.step(closure)
        else:
            train_step(model, optimizer, x, y)


def with_two_optimizers():
    model, optimizer, loader = make()
    other = torch.optim.Adam(torch.nn.Linear(3, 2).parameters())
    for x, y in (batch for _ in range(3) for batch in loader):
        train_step(model, optimizer, x, y)
        other.zero_grad()
        other.param_groups[0]["params"][0].sum().backward()
        other.step()


def without_an_update_at_times():
    model, optimizer, loader = make()
    for step, (x, _) in enumerate(batch for _ in range(3) for batch in loader):
        if step % 6 == 5:
            continue
        model.zero_grad()
        model(x).sum().backward()
        if step % 11 != 10:
            optimizer.step()


def ended_in_between():
    model, optimizer, loader = make()
    for x, y in list(loader)[:7]:
        train_step(model, optimizer, x, y)
    optimizer.zero_grad()
    model(x).sum().backward()


PROGRAMS = [
    plain,
    with_evaluation,
    with_workers,
    with_another_optimizer,
    with_a_failing_step,
    with_a_closure_at_times,
    with_two_optimizers,
    without_an_update_at_times,
    ended_in_between,
]


def told(run):
    return [(e.step, e.stage, e.recorded, e.complete, dict(e.counters)) for e in run.of("step")]


def other_kinds(run):
    return Counter(
        (e.kind, e.step, getattr(e, "text", ""))
        for e in run.events
        if e.kind not in ("step", "rng")
    )


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_are_told_as_if_all_were_counted(tmp_path, monkeypatch, program):
    with recording(tmp_path / "compared", every=6) as compared:
        program()
    monkeypatch.setattr(step_boundary, "PatternStepCounter", lambda *ends: StepCounter(*ends[:2]))
    with recording(tmp_path / "counted", every=6) as counted:
        program()
    assert told(compared) == told(counted)
    assert other_kinds(compared) == other_kinds(counted)
    for run in (compared, counted):
        times = [e.time_ns for e in run.events if e.kind == "step"]
        assert times == sorted(times)


def test_batches_keep_their_numbers_and_indices(tmp_path):
    with recording(tmp_path, every=3) as run:
        plain(epochs=2)
    batches = [(e.step, e.epoch, e.index) for e in run.of("batch")]
    assert [b for b in batches if b[0]] == [(3, 0, 3), (6, 0, 6), (9, 1, 1), (12, 1, 4), (15, 1, 7)]
    indices = {e.step: e.indices for e in run.of("batch")}
    assert len(set(indices[3]) | set(indices[6])) == 32  # of one epoch: none comes twice


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["no workers", "workers", "workers that stay"],
)
def test_batches_tell_the_rows_that_were_fetched_for_them(tmp_path, options):
    """However many batches were fetched, by workers ahead of time, and not recorded."""
    data = TensorDataset(torch.arange(96.0).reshape(96, 1))
    fetched = []
    with recording(tmp_path, every=5) as run:
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        loader = DataLoader(data, 4, shuffle=True, **options)
        for _ in range(2):
            for (x,) in loader:
                train_step(model, optimizer, x, x)
                fetched.append(x.flatten().tolist())
    batches = [e for e in run.of("batch") if e.step]
    assert [e.step for e in batches] == list(range(5, 48, 5))
    assert [list(e.indices) for e in batches] == [fetched[e.step] for e in batches]
    assert [(e.epoch, e.index) for e in batches] == [divmod(e.step, 24) for e in batches]


def test_a_child_that_is_forked_in_between_tells_of_its_own_steps(tmp_path):
    with recording(tmp_path, every=50) as run:
        model, optimizer, loader = make()
        batches = [batch for _ in range(3) for batch in loader]
        for x, y in batches[:20]:
            train_step(model, optimizer, x, y)
        child = os.fork()
        if not child:
            try:
                train_step(model, optimizer, x, y)
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        for x, y in batches[20:]:
            train_step(model, optimizer, x, y)
    streams = {e.stream for e in run.of("step")}
    assert len(streams) == 2
    ours = [e for e in run.of("step") if e.stream == run.events[0].stream]
    found = sorted([[e.step for e in run.of("step") if e.stream == s] for s in streams], key=len)
    assert found[1] == list(range(24))
    assert len(found[0]) <= 1
    assert ours


def test_what_is_compared_is_not_kept_alive(tmp_path):
    import gc
    import weakref

    with recording(tmp_path, every=50):
        model, optimizer, loader = make()
        for x, y in loader:
            train_step(model, optimizer, x, y)
        refs = [weakref.ref(thing) for thing in (model, optimizer, loader)]
        del model, optimizer, loader, x, y
        gc.collect()
        assert [ref() for ref in refs] == [None] * 3


def test_steps_are_told_in_time(monkeypatch):
    """A follower waits for some steps, not for all that are not recorded."""
    now = [0]
    monkeypatch.setattr(pattern_counter, "_LONGEST_NS", 100)
    monkeypatch.setattr(pattern_counter, "monotonic_ns", lambda: now[0])
    lags = {}
    for step_ns in (1, 20, 60):
        loop = Loop(("opt0",), 1000, compares=True)
        behind = []
        for step in range(400):
            now[0] += step_ns
            loop.play("bzfws", is_last=False)
            behind.append(step - len(loop.told))
        lags[step_ns] = max(behind)
    assert lags == {1: 99, 20: 4, 60: 0}
