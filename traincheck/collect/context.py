"""What observers and instruments may ask of the recording that they are part of."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any, Protocol

import torch

from traincheck.collect.stats.tensor_stats import Numbers
from traincheck.collect.steps.sampling import EveryNth
from traincheck.collect.steps.step_counter import StepCounter
from traincheck.collect.trace_writer.emitter import Emitter, Writer
from traincheck.collect.trace_writer.process_end import Ending
from traincheck.collect.trace_writer.thread_state import Local
from traincheck.collect.tracking.tracker import Tracker
from traincheck.schema.claims import Needs


class Recorder(Writer, Protocol):
    """One recording in one process, as what is below the session sees it.

    needs: what is recorded; None for everything. optimizers, modes: those that are alive, and root
    models that were called, by id. used_rates, called_modes: of this step, rates when the
    optimizers stepped and modes of models when they were called. applied: optimizers that stepped
    since the last backward pass, in a recorded step that follows one that was not.
    at_step_end: called before a recorded step is written. after_optimizer: within the step, after
    its update. after_step: when all of a step is written. before_save: a checkpoint is written
    next. is_last_over: whether the last step of the run is complete, where no call tells it.
    is_rng_set: a generator was seeded or set in this step. is_worker: the process serves another
    one's loop, and has no steps. installed, instruments: those that are in place, and the state of
    each by name. ending: how the process ends.
    """

    needs: Needs | None
    local: Local
    steps: StepCounter
    sampling: EveryNth
    numbers: Numbers
    tracker: Tracker
    optimizers: dict[str, weakref.ref[torch.optim.Optimizer]]
    modes: dict[str, weakref.ref[torch.nn.Module]]
    used_rates: dict[str, list[float]]
    called_modes: dict[str, bool]
    applied: AbstractSet[str]
    at_step_end: list[Callable[[Emitter], None]]
    after_optimizer: list[Callable[[], None]]
    after_step: list[Callable[[], None]]
    before_save: list[Callable[[], None]]
    is_last_over: Callable[[Emitter], bool]
    installed: list[Any]
    instruments: dict[str, str]
    ending: Ending
    is_rng_set: bool
    is_worker: bool

    def emitter(self) -> Emitter:
        """The emitter of the running thread, made at its first record."""

    def stage(self, em: Emitter, stage: str) -> None:
        """Enter a stage."""

    def signal(self) -> None:
        """After a step of an optimizer: whether skipped steps must watch for the boundary."""

    def differs(self) -> None:
        """Another sign has come than the one that `StepCounter.expects` has just given."""

    def held(self) -> set[int]:
        """Identities of all parameters that some optimizer holds."""

    def live_optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        """Id and object of every optimizer that is alive."""

    def rates_of(self, optimizer: torch.optim.Optimizer) -> list[float]:
        """The learning rate of each group; none where one of them is no number."""

    def is_evaluating(self) -> bool:
        """Whether every live model with parameters that was called is in eval mode."""

    def set_rank(self, rank: int) -> None:
        """The process group told the rank."""

    def become_worker(self) -> None:
        """This process serves another one's loop."""

    def prepare_for_exec(self) -> None:
        """Write all that there is: this process may be replaced."""

    def close(self) -> None:
        """Write the last step and all that is buffered."""
