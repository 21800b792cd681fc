"""Makes the copies for the experiments of one call, within a limit of time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from traincheck.collect.probes import loss as losses
from traincheck.collect.probes.base import FailedError, GoOnError
from traincheck.collect.probes.fork import Child, Outcome, forked
from traincheck.collect.probes.loss import Root

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
            losses.watch(child, read if read is not None else lambda root: {})
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
