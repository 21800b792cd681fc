"""The interface of a recording, as observers and instruments see it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

from traincheck.collect.listeners import Listeners
from traincheck.collect.moments.moment import Args, Named
from traincheck.collect.moments.moments import Moments
from traincheck.collect.stats.compared import Compared
from traincheck.collect.stats.tensor_stats import TensorStats
from traincheck.collect.steps.sampling import EveryNth
from traincheck.collect.steps.step_counter import StepCounter
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.guard import Threads
from traincheck.collect.trace_writer.marks import ProcessEnd
from traincheck.collect.tracking.live_objects import LiveObjects
from traincheck.collect.tracking.tracker import Tracker
from traincheck.schema.claims import Needs


@dataclass(slots=True)
class Hooks:
    """Listeners at moments of a step.

    Attributes:
        at_step_end: before a recorded step is written.
        at_close: before the last step of the run is written, if that is recorded.
        before_loader: before the iteration of a loader begins, in a recorded step.
        after_batch: after a batch of training was fetched in a recorded step, with its iterator.
        before_forward: before an outermost forward with grad, in a recorded step.
        before_backward: before any backward pass begins, with its arguments.
        before_optimizer: within the step of an optimizer, right before its update: after the first
            call of its closure, if it has one.
        after_optimizer: within the step, after its update.
        after_step: after a step is written completely.
        before_save: before a checkpoint is written.
        after_state: after state was saved, with "save", or loaded, with "load".
        before_clip: before gradients are clipped, with the parameters as the program gives them.
        after_scaler: after a GradScaler has stepped an optimizer, or skipped it.
        around: api -> wraps a function below the wrapper that records its calls.
        around_modules: the same for calls of modules.
        is_last_over: whether the last step of the run is complete, if no call shows it.
    """

    at_step_end: Listeners[Callable[[Emitter], None]] = field(default_factory=Listeners)
    at_close: Listeners[Callable[[Emitter], None]] = field(default_factory=Listeners)
    before_loader: Listeners[Callable[[Emitter], None]] = field(default_factory=Listeners)
    after_batch: Listeners[Callable[[Any, Any], None]] = field(default_factory=Listeners)
    before_forward: Listeners[Callable[[Emitter], None]] = field(default_factory=Listeners)
    before_backward: Listeners[Callable[[Args, Named], None]] = field(default_factory=Listeners)
    before_optimizer: Listeners[Callable[[Emitter, str], None]] = field(default_factory=Listeners)
    after_state: Listeners[Callable[[Emitter, str], None]] = field(default_factory=Listeners)
    after_optimizer: Listeners[Callable[[], None]] = field(default_factory=Listeners)
    after_step: Listeners[Callable[[], None]] = field(default_factory=Listeners)
    before_save: Listeners[Callable[[], None]] = field(default_factory=Listeners)
    before_clip: Listeners[Callable[[Any], None]] = field(default_factory=Listeners)
    after_scaler: Listeners[Callable[[Any], None]] = field(default_factory=Listeners)
    around: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = field(
        default_factory=dict
    )
    around_modules: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    is_last_over: Callable[[Emitter], bool] = lambda _: False


class Recorder(Threads, Protocol):
    """One recording in one process, as the packages below the session see it.

    Attributes:
        needs: the requested records; None for everything.
        secret: hex digits, the key of the fingerprints of rows.
        live: optimizers and root models of the process.
        applied: optimizers that stepped since the last backward pass, in a recorded step that
            follows an unrecorded one.
        installed: the installed instruments.
        moments: the functions of torch that several parts of it listen to.
        compared: records tensors for the comparison of runs; None in other views.
        instruments: the state of each instrument by name.
        is_rng_set: whether a generator was seeded or set in this step.
        is_worker: whether the process is a loader worker, which has no steps.
        ending: how the process ends.
    """

    needs: Needs | None
    secret: str
    stats: TensorStats
    compared: Compared | None
    tracker: Tracker
    live: LiveObjects
    hooks: Hooks
    moments: Moments
    applied: AbstractSet[str]
    installed: list[Any]
    instruments: dict[str, str]
    ending: ProcessEnd
    is_rng_set: bool
    is_worker: bool

    @property
    def steps(self) -> StepCounter:
        """Counts the steps of the loop."""

    @property
    def sampling(self) -> EveryNth:
        """Which steps are recorded."""

    def stage(self, em: Emitter, stage: str) -> None:
        """Enter a stage."""

    def is_evaluating(self) -> bool:
        """Whether all live models are in eval mode, and no training is about to begin."""

    def set_rank(self, rank: int) -> None:
        """The process group has set the rank."""

    def become_worker(self) -> None:
        """Declare this process a loader worker."""

    def prepare_for_exec(self) -> None:
        """Write everything that is buffered: `exec` may replace this process."""

    def close(self) -> None:
        """Write the last step and all that is buffered."""


def watch_for_boundary(recorder: Recorder) -> None:
    """After an optimizer step: let unrecorded steps watch for the boundary, if it may be near."""
    recorder.recording.idle = not recorder.recording.on and not recorder.steps.is_between


def diverged(recorder: Recorder) -> None:
    """Another sign has come than the one that `StepCounter.expects` has just given."""
    try:
        recorder.steps.catch_up(unmatched=1)
    except Exception as error:  # training must go on whatever we got wrong
        recorder.fault(diverged, error)
