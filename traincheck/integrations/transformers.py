"""A callback for the Trainer of Transformers: `train` is watched from begin to end.

It only begins and ends the watch. The watch records the calls, so it has batches, and gradients
before the Trainer clears them, regardless of the moments of callbacks.
"""

from __future__ import annotations

import logging
from typing import Any

from traincheck.collect.active_session import CURRENT
from traincheck.integrations._logged import LoggedCounts
from traincheck.integrations._sending import load
from traincheck.integrations.watching import Options, Watch

_transformers: Any = load("transformers", extra="transformers")
_TrainerCallback: Any = _transformers.TrainerCallback
_TrainerControl: Any = _transformers.TrainerControl
_logger = logging.getLogger("traincheck")


class _TrainerWatch(Watch):
    """Begun by a callback, which is not called when training fails."""


class _HaltedControl(_TrainerControl):  # type: ignore[misc]  # it may not be installed
    """Ends training, and neither evaluates nor saves, whatever another callback requests."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("should_save", "should_evaluate"):
            value = False
        elif name == "should_training_stop":
            value = True
        super().__setattr__(name, value)


class TraincheckCallback(_TrainerCallback):  # type: ignore[misc]  # it may not be installed
    """Check training: ``Trainer(..., callbacks=[TraincheckCallback()])``.

    The Trainer does not call callbacks when training fails. The watch then continues until
    ``run.stop()`` is called or the next training begins.

    Args:
        halt: end training at the end of the step that shows the first finding of severity error.
            The Trainer writes no checkpoint and runs no evaluation after that step; ``train()``
            returns. Several processes agree on the end, which takes one exchange per step.
        **options: those of ``traincheck.watch``.

    Once there is a finding, each log of the Trainer also has the numbers of findings:
    ``traincheck/error`` and so on. See `log_first`.

    Attributes:
        run: the watch, with ``findings`` and ``report()``.
    """

    def __init__(self, *, halt: bool = False, **options: Any) -> None:
        self._options = Options.of(options)
        self._halt = halt
        self._control: Any = None  # that of the Trainer, once training was halted
        self._counts = LoggedCounts()
        self.run = Watch((), self._options)

    def log_first(self, trainer: Any) -> None:
        """Put this callback before those of ``report_to``, so that they log findings, too.

        Args:
            trainer: has this callback already. It puts the callbacks of ``report_to`` first.
        """
        callbacks = trainer.callback_handler.callbacks
        callbacks.remove(self)
        callbacks.insert(0, self)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Add the numbers of findings to a log, which later callbacks and the history get."""

        def add(numbers: dict[str, float]) -> None:
            logs.update(numbers)
            state.log_history[-1].update(numbers)

        if logs is not None:
            self._counts.log(self.run, add, always=True)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> Any:
        if isinstance(CURRENT.watch, _TrainerWatch):
            CURRENT.watch.stop()  # left over from a training that failed
        self.run = _TrainerWatch((model, optimizer), self._options)
        self.run.start()
        return self._given_back()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """The Trainer decides after this whether to evaluate and to save."""
        if not self._halt or self._control is not None:
            return None
        if not _any_process(self.run.settle(), args.world_size):
            return None
        _logger.warning(
            "traincheck: training ends at a finding of severity error; nothing is saved"
        )
        self._control = control
        return _HaltedControl(should_log=control.should_log)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        self.run.stop()
        return self._given_back()

    def _given_back(self) -> Any:
        """The Trainer's original control, if it was replaced; training is over."""
        control, self._control = self._control, None
        if control is not None:
            control.should_training_stop = control.should_save = control.should_evaluate = False
        return control


def _any_process(is_true: bool, num_processes: int) -> bool:
    """Whether it is true in any process. One that stopped alone would leave the others waiting."""
    if num_processes <= 1:
        return is_true
    accelerate = load("accelerate.utils", extra="accelerate")  # the Trainer needs it, too
    return any(accelerate.gather_object([is_true]))
