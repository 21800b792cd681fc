"""Experiments: what one is given and returns, and the copies of the process in which it is made."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader
from xxhash import xxh3_64_hexdigest

from traincheck.collect.probes.fork import Child, Outcome, forked
from traincheck.collect.tensors.reading import unseen
from traincheck.schema.probes.names import Status

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

CHILD_LIMIT_S = 20.0  # of CPU
RUN_LIMIT_S = 60.0  # of all copies of a process
_TRIES = 6  # copies for one that found a lock closed
_HOOK = -2  # key among the hooks of optimizers, which torch counts from 0


@dataclass(frozen=True, slots=True)
class Root:
    """The beginning of a backward pass.

    Attributes:
        tensors: the roots, usually one scalar.
        weights: what each is multiplied with; None for 1.
        run: makes the backward pass.
    """

    tensors: tuple[torch.Tensor, ...]
    weights: tuple[torch.Tensor | None, ...]
    run: Callable[[], None]

    @property
    def value(self) -> float:
        """The number whose gradient is computed."""
        total = 0.0
        for tensor, weight in zip(self.tensors, self.weights):
            values = tensor.detach().double()
            total += float((values if weight is None else values * weight.detach()).sum())
        return total

    @property
    def digest(self) -> str:
        """Equal for equal bits of the roots."""
        parts = [tensor.detach().contiguous().view(-1) for tensor in self.tensors]
        return xxh3_64_hexdigest(
            b"".join(part.view(torch.uint8).numpy().tobytes() for part in parts)
        )


def watch(child: Child, read: Callable[[Root], Mapping[str, Any]]) -> None:
    """Let this copy end at its first backward pass, or at what would reach further than that."""
    original = torch.autograd.backward

    def backward(
        tensors: Any,
        grad_tensors: Any = None,
        *rest: Any,
        grad_variables: Any = None,
        **options: Any,
    ) -> NoReturn:
        torch.autograd.backward = original  # some functions call it in their own backward
        try:
            with unseen():
                weights = grad_tensors if grad_tensors is not None else grad_variables
                roots = _tuple(tensors)
                given = _tuple(weights) or (None,) * len(roots)
                root = Root(roots, given, lambda: original(tensors, weights, *rest, **options))
                child.tell(loss=root.value, digest=root.digest)
                child.tell(**read(root))
        except BaseException as error:
            child.fault(error)
        child.end()

    torch.autograd.backward = backward
    optimizers._global_optimizer_pre_hooks[_HOOK] = lambda *_: child.fail(
        "an optimizer steps before the first backward pass"
    )
    iterator: Any = dataloader._MultiProcessingDataLoaderIter
    iterator._next_data = lambda *_: child.fail("a batch is fetched before the backward pass")


def _tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


@dataclass(frozen=True, slots=True)
class Call:
    """The call of an outermost module at which the process is copied.

    Attributes:
        module: that is called.
        name: of its model, ``Net``.
        args, kwargs: of the call.
        parameters: the live parameters of the process, each once, in a fixed order.
        path: the path of a module, as variables of it are named.
        name_of: the name of a parameter.
        held: identities of the parameters that a live optimizer holds.
        are_samples: there is evidence that the rows of its inputs are samples.
    """

    module: torch.nn.Module
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    parameters: tuple[torch.nn.Parameter, ...]
    path: Callable[[torch.nn.Module], str]
    name_of: Callable[[torch.Tensor], str]
    held: frozenset[int]
    are_samples: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The finding of an experiment; the fields are those of a `ProbeEvent`."""

    status: str = Status.HELD
    reason: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    where: str = ""
    place: str = ""
    detail: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields that differ from their default. Numbers that are not finite are left out."""
        numbers = {k: float(v) for k, v in self.numbers.items() if isfinite(v)}
        found = {
            "status": self.status,
            "reason": self.reason,
            "numbers": numbers,
            "where": self.where,
            "place": self.place,
            "detail": {k: v for k, v in self.detail.items() if v},
        }
        return {key: value for key, value in found.items() if value and value != Status.HELD}


def unobservable(reason: str) -> Result:
    """The result of an experiment that cannot be made or shows nothing. reason: a clause."""
    return Result(status=Status.NOT_OBSERVABLE, reason=reason)


def result_of(
    outcome: Outcome, tolerance: float, numbers: Sequence[str], detail: Sequence[str]
) -> Result:
    """The result of a comparison in a copy, by what it told.

    Args:
        outcome: told "change", by how much results moved; "where" and "place"; and what follows.
        tolerance: the largest change that is none.
        numbers: names of the numbers that are reported.
        detail: names of texts that are reported of a change, if they were told.
    """
    if outcome.reason:
        return unobservable(outcome.reason)
    told = outcome.told
    known = {name: told[name] for name in numbers}
    if told["change"] <= tolerance:
        return Result(numbers=known)
    return Result(
        status=Status.MOVED,
        numbers=known,
        where=told.get("where", ""),
        place=told.get("place", ""),
        detail={name: told.get(name, "") for name in detail},
    )


class FailedError(Exception):
    """Code of traincheck raised an exception in a copy; the message says which, and where."""


class GoOnError(BaseException):
    """In a copy of the process: go on as the program."""

    def __init__(self, child: Child) -> None:
        super().__init__()
        self.child = child


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


class Laboratory:
    """Makes copies of this process for an experiment. Its methods raise `FailedError`.

    Attributes:
        loss: the value of the loss in a copy without a change.
        facts: what that copy has told besides.
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
        """Run ``body`` in a copy that does nothing else, and return what it told."""

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
        """Let a copy go on as the program, to its backward pass.

        Args:
            change: changes something in the copy.
            read: what is reported of the loss besides its value.
            kept: descriptors that the copy may use.
        """

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


class Experiment(ABC):
    """One experiment. Subclasses live in experiments/, and are listed in registry.py.

    Attributes:
        name: one of `Experiments`.
        is_of_module: it is made once for each model, not for each pass of the program.
    """

    name: ClassVar[str]
    is_of_module: ClassVar[bool] = False

    @abstractmethod
    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        """Make it. None: what it is about does not occur here."""
