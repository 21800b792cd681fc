"""Copies for the experiments of one call: made within a limit of time, run and trained."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from traincheck.collect.active_session import CURRENT
from traincheck.collect.probes.base import FailedError, GoOnError, Root, watch
from traincheck.collect.probes.batch import GIVEN, leaves, mapped
from traincheck.collect.probes.fork import Child, Outcome, forked
from traincheck.collect.tensors.devices import KIND, MODULE
from traincheck.collect.tensors.reading import tensors_in
from traincheck.errors import UsageError
from traincheck.handlers import give_back

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

CHILD_LIMIT_S = 20.0  # of CPU
RUN_LIMIT_S = 60.0  # of all copies of a process
_TRIES = 6  # copies for one that found a lock closed


class Budget:
    """The time that probes of this process may take.

    Attributes:
        left_s: seconds that are left, of CPU and of waiting.
    """

    def __init__(self, limit_s: float = RUN_LIMIT_S, child_limit_s: float = CHILD_LIMIT_S) -> None:
        self.left_s = limit_s
        self._child_limit_s = child_limit_s

    @property
    def for_child(self) -> float:
        """Seconds of CPU that the next copy may take."""
        return max(0.1, min(self._child_limit_s, self.left_s))

    def take(self, outcome: Outcome) -> None:
        """A copy has ended. After one that was too slow, there are no more."""
        self.left_s = 0.0 if outcome.is_slow else self.left_s - outcome.cpu_s - outcome.asleep_s

    @property
    def is_spent(self) -> bool:
        """Whether no more copies are made."""
        return self.left_s <= 0


class ForkLaboratory:
    """`Laboratory` by fork.

    Attributes:
        loss, facts: see `Laboratory`.
        children: copies that were made.
        cpu_s, wall_s: seconds that they took.
    """

    def __init__(self, session: Recorder, budget: Budget) -> None:
        self.loss = 0.0
        self.facts: dict[str, Any] = {}
        self.children = 0
        self.cpu_s = self.wall_s = 0.0
        self._session = session
        self._budget = budget

    def measure(self, body: Callable[[], Mapping[str, Any]]) -> Outcome:
        """See `Laboratory`."""

        def run(child: Child) -> None:
            silence(self._session)
            child.tell(**body())
            child.end()

        return self._copy(run, ())

    def replay(
        self,
        change: Callable[[], None],
        read: Callable[[Root], Mapping[str, Any]] | None = None,
        kept: Collection[int] = (),
    ) -> Outcome:
        """See `Laboratory`."""

        def run(child: Child) -> None:
            silence(self._session)
            watch(child, read if read is not None else lambda root: {})
            change()

        return self._copy(run, kept)

    def _copy(self, run: Callable[[Child], None], kept: Collection[int]) -> Outcome:
        outcome: Outcome | Child = Outcome(reason="the time for probes is over")
        for _ in range(_TRIES):
            if self._budget.is_spent:
                break
            outcome = forked(run, self._budget.for_child, kept)
            if isinstance(outcome, Child):
                raise GoOnError(outcome)
            self.children += 1
            self.cpu_s += outcome.cpu_s
            self.wall_s += outcome.wall_s
            self._budget.take(outcome)
            if not outcome.is_stuck:
                break
        if outcome.fault:
            raise FailedError(outcome.fault)
        return outcome


def silence(session: Recorder) -> None:
    """In a copy: record nothing, and end no step."""
    recording = session.recording
    recording.on = recording.scans = recording.inner_calls = False
    recording.idle = recording.muted = True
    session.is_worker = session.steps.manual = True
    session.steps.expects = lambda: None
    for actions in (session.hooks.after_step, session.hooks.at_step_end, session.hooks.at_close):
        actions.clear()


Model: TypeAlias = torch.nn.Module
Loss: TypeAlias = Callable[[Any], torch.Tensor]
_STEPS = 3  # experiments are made in the third step in which a model is called


def copied(model: torch.nn.Module, batch: Any, inputs: Any) -> tuple[torch.nn.Module, Any, Any]:
    """The model in training mode and the inputs, as copies."""
    try:
        ours = copy.deepcopy(model)
    except Exception as error:
        give_back(error)
        raise UsageError(
            f"the model cannot be copied: {type(error).__name__}: {error}",
            fix="probe the training script instead: traincheck probe train.py",
        ) from error
    given, named = mapped((batch, inputs), lambda tensor: tensor.detach().clone())
    ours.zero_grad()
    vars(ours)[GIVEN] = True
    return ours.train(), given, named


def train(model: torch.nn.Module, batch: Any, inputs: Any, loss: Loss | None) -> None:
    """Steps without an update: the copy keeps its weights."""
    _end_step()
    for _ in range(_STEPS):
        result = model(*batch, **inputs)
        value = getattr(result, "loss", result) if loss is None else loss(result)
        if isinstance(value, torch.Tensor) and value.numel() == 1 and value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        elif loss is not None:
            raise UsageError(
                f"the loss returned {type(value).__name__}, which is no scalar with a gradient",
                fix="probe(model, x, loss=lambda out: torch.nn.functional.cross_entropy(out, y))",
            )
        model.zero_grad()
        _end_step()


def _end_step() -> None:
    session: Any = CURRENT.session
    if session is not None:
        session.user_marks.mark_step()


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put the generators of torch, Python and numpy back at the end."""
    numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
    ours, theirs = random.getstate(), numpy.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(range(MODULE.device_count()), device_type=KIND):
            yield
    finally:
        random.setstate(ours)
        if numpy is not None:
            numpy.set_state(theirs)


class Bench:
    """A model in eval mode. Each forward begins with the same buffers and random states."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.eval()
        torch.set_grad_enabled(True)  # without gradients, some layers take another path
        self._buffers = [
            (buffer, buffer.detach().clone()) for buffer in tensors_in(module, "_buffers")
        ]
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy: Any = getattr(numpy, "random", None)
        self._numpy_state = self._numpy.get_state() if self._numpy is not None else None

    def forward(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """The result of the model for other inputs."""
        self.reset()
        args, kwargs = given
        return self.module(*args, **kwargs)

    @property
    def draws(self) -> bool:
        """Whether the last forward drew random numbers."""
        if not bool(torch.equal(torch.get_rng_state(), self._torch)):
            return True
        states: Any = () if self._numpy is None else (self._numpy.get_state(), self._numpy_state)
        return random.getstate() != self._python or any(
            bool((a != b).any()) if hasattr(a, "any") else bool(a != b) for a, b in zip(*states)
        )

    def reset(self) -> None:
        """Put buffers and random states back."""
        with torch.no_grad():
            for buffer, value in self._buffers:
                if buffer.shape != value.shape or not bool(torch.equal(buffer, value)):
                    buffer.copy_(value)
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            self._numpy.set_state(self._numpy_state)


def rows(result: Any, size: int) -> list[torch.Tensor]:
    """The parts of a result that have one row for each sample: no scalars, no pairs of samples."""
    return [
        tensor.detach()
        for tensor in leaves(result)
        if tensor.dim() and tensor.shape[0] == size and tensor.is_floating_point()
        and tensor.layout is torch.strided
        and not (tensor.dim() == 2 and tensor.shape[1] == size)
    ]  # fmt: skip


def distance(first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    """The largest difference of two tensors, in units of the largest value.

    scale: whose largest value; None for the first tensor. NaN in both is no difference.
    """
    if first.shape != second.shape:
        return float("inf")
    if not first.numel():
        return 0.0
    mine, theirs = first.double(), second.double()
    largest = (mine if scale is None else scale.double()).abs().nan_to_num(0, 0, 0).max()
    apart = (mine - theirs).abs()
    apart = torch.where((mine == theirs) | (mine.isnan() & theirs.isnan()), 0.0, apart)
    return float(apart.nan_to_num(float("inf")).max() / largest.clamp_min(1e-12))
