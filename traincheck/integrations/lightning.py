"""A callback for Lightning: `fit` is watched from the setup to the teardown.

It only begins and ends the watch. What is seen are the calls, so batches and gradients are seen
before Lightning clears them, whatever the moments of callbacks are.
"""

from __future__ import annotations

import logging
from typing import Any

from traincheck.integrations._missing import load
from traincheck.integrations.watching import Options, Watch

_Callback: Any = load("lightning.pytorch", "pytorch_lightning", extra="lightning").Callback
_logger = logging.getLogger("traincheck")


class TraincheckCallback(_Callback):  # type: ignore[misc]  # a base of whichever package is there
    """Check training: ``Trainer(callbacks=[TraincheckCallback()])``.

    Args:
        halt: end training at the first finding of severity error.
        **options: those of ``traincheck.watch``.

    Attributes:
        run: the watch, with ``findings`` and ``report()``.
    """

    def __init__(self, *, halt: bool = False, **options: Any) -> None:
        super().__init__()
        self._options = Options.of(options)
        self._halt = halt
        self.run = Watch((), self._options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.run.stop()
            # Before the optimizers are made: they are seen when that happens.
            self.run = Watch((pl_module,), self._options, seeks=False)
            self.run.start()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.run.add(*trainer.optimizers)

    def on_train_batch_start(self, trainer: Any, *_: Any, **__: Any) -> None:
        if self._halt and self.run.has_error:
            _logger.warning("traincheck: training ends at a finding of severity error")
            trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.run.stop()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.run.stop()
