"""A callback for Lightning: `fit` is watched from the setup to the teardown.

It only begins and ends the watch. The watch records the calls, so it has batches, and gradients
before Lightning clears them, regardless of the moments of callbacks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from traincheck.integrations._logged import LoggedCounts
from traincheck.integrations._sending import load
from traincheck.integrations.watching import Options, Watch

_lightning: Any = load("lightning.pytorch", "pytorch_lightning", extra="lightning")
_Callback: Any = _lightning.Callback
_Checkpoint: Any = _lightning.callbacks.Checkpoint
_logger = logging.getLogger("traincheck")


class TraincheckCallback(_Callback):  # type: ignore[misc]  # a base of whichever package is there
    """Check training: ``Trainer(callbacks=[TraincheckCallback()])``.

    The loggers of the Trainer get the numbers of findings, as ``traincheck/error`` and so on, when
    they change.

    Args:
        halt: end training at the end of the step that shows the first finding of severity error.
            Checkpoint callbacks, such as ModelCheckpoint, are removed from the Trainer until
            ``fit()`` returns, so that none writes after that step. Several processes agree on the
            end, which takes one exchange per step.
        **options: those of ``traincheck.watch``.

    Attributes:
        run: the watch, with ``findings`` and ``report()``.
    """

    def __init__(self, *, halt: bool = False, **options: Any) -> None:
        super().__init__()
        self._options = Options.of(options)
        self._halt = halt
        self._undo: Callable[[], None] | None = None  # restores the removed callbacks
        self._counts = LoggedCounts()
        self.run = Watch((), self._options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self._put_back()  # a training that was halted, and then failed
            self.run.stop()
            # Before the optimizers are created, which is recorded.
            self.run = Watch((pl_module,), self._options, seeks=False)
            self._counts = LoggedCounts()
            self.run.start()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.run.add(*trainer.optimizers)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Before any checkpoint callback: Lightning calls those last."""
        self._log(trainer)
        if not self._halt or self._undo is not None:
            return
        is_error = self.run.settle()
        if trainer.world_size > 1:  # one process that stopped alone would leave the others waiting
            is_error = trainer.strategy.reduce_boolean_decision(is_error, all=False)
        if is_error:
            _logger.warning(
                "traincheck: training ends at a finding of severity error; nothing is saved"
            )
            self._stop(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.run.stop()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.run.stop()
            self._log(trainer)
            self._put_back()  # Lightning then tears these down

    def _log(self, trainer: Any) -> None:
        """Log changed numbers of findings with the loggers of the Trainer."""

        def write(numbers: dict[str, float]) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

        self._counts.log(self.run, write)

    def _put_back(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def _stop(self, trainer: Any) -> None:
        """End ``fit()`` as early stopping does, at once and without checkpoint callbacks."""
        loop, callbacks = trainer.fit_loop, trainer.callbacks
        least, savers = (loop.min_epochs, loop.epoch_loop.min_steps), trainer.checkpoint_callbacks

        def undo() -> None:
            loop.min_epochs, loop.epoch_loop.min_steps = least
            callbacks.extend(savers)

        self._undo = undo
        loop.min_epochs = loop.epoch_loop.min_steps = None
        trainer.should_stop = True
        # In place, because Lightning is iterating over this list. They come after this callback.
        callbacks[:] = [callback for callback in callbacks if callback not in savers]
