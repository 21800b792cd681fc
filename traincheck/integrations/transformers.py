"""A callback for the Trainer of Transformers: `train` is watched from its begin to its end.

It only begins and ends the watch. What is seen are the calls, so batches and gradients are seen
before the Trainer clears them, whatever the moments of callbacks are.
"""

from __future__ import annotations

import logging
from typing import Any

from traincheck.collect.current import CURRENT
from traincheck.integrations._missing import load
from traincheck.integrations.watching import Options, Watch

_TrainerCallback: Any = load("transformers", extra="transformers").TrainerCallback
_logger = logging.getLogger("traincheck")


class _TrainerWatch(Watch):
    """Begun by a callback, which is not told when training fails."""


class TraincheckCallback(_TrainerCallback):  # type: ignore[misc]  # it may not be installed
    """Check training: ``Trainer(..., callbacks=[TraincheckCallback()])``.

    The Trainer tells callbacks nothing when training fails: then the watch goes on until
    ``run.stop()`` is called or the next training begins.

    Args:
        halt: end training at the first finding of severity error.
        **options: those of ``traincheck.watch``.

    Attributes:
        run: the watch, with ``findings`` and ``report()``.
    """

    def __init__(self, *, halt: bool = False, **options: Any) -> None:
        self._options = Options.of(options)
        self._halt = halt
        self.run = Watch((), self._options)

    def on_train_begin(
        self,
        args: Any,
        state: Any,
        control: Any,
        model: Any = None,
        optimizer: Any = None,
        **_: Any,
    ) -> None:
        if isinstance(CURRENT.watch, _TrainerWatch):
            CURRENT.watch.stop()  # left over from a training that failed
        self.run = _TrainerWatch((model, optimizer), self._options)
        self.run.start()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._halt and self.run.has_error:
            _logger.warning("traincheck: training ends at a finding of severity error")
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.run.stop()
