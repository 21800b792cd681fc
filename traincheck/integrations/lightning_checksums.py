"""A Lightning callback that reports checksums: options and layout of fkat's ``Introspection``.

The reports are those of ``traincheck trace checksums``. No trace is written.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from traincheck.collect.instruments.data import leaves_of
from traincheck.collect.launch.run_manifest import ENVIRONMENT
from traincheck.collect.moments.updates import Update, Updates
from traincheck.collect.tensors.reading import unseen
from traincheck.collect.tensors.step_checksums import StepChecksums
from traincheck.errors import OutputError
from traincheck.handlers import give_back
from traincheck.integrations._sending import load
from traincheck.integrations.step_schedules import Never, Schedule
from traincheck.schema.checksums import (
    BATCH,
    BUFFER,
    GENERATOR,
    GRADIENT,
    LOCAL_GRADIENT,
    PARAMETER,
    SETTINGS,
    STATE,
)
from traincheck.schema.events import ChecksumEvent
from traincheck.schema.values import tensor_summary
from traincheck.store.checksum_layout import (
    CHECKSUMS,
    STATISTICS,
    ChecksumReport,
    check_names,
    save_text,
    to_layout,
    to_yaml,
)

_lightning: Any = load("lightning.pytorch", "pytorch_lightning", extra="lightning")
_Callback: Any = _lightning.Callback
_logger = logging.getLogger("traincheck")
_FOLDER = "introspection"
# What each option takes
_GROUPS = {
    "params": (PARAMETER,),
    "grads": (PARAMETER, GRADIENT, LOCAL_GRADIENT),
    "buffers": (BUFFER,),
    "rngs": (GENERATOR,),
    "optimizers": (SETTINGS, STATE),
    "batch": (BATCH,),
}
_NO_NUMBERS = frozenset({"shape", "dtype", "hash"})


class Introspection(_Callback):  # type: ignore[misc]  # a base of whichever package is there
    """Report checksums of training: ``Trainer(callbacks=[Introspection({"params"}, ...)])``.

    Writes ``introspection/<stage>/step=N/rankR.yaml``, where N counts the updates before this one.
    The state is that which the optimizer finds: gradients are reduced over ranks, accumulated,
    unscaled and clipped. A failure of the callback is logged and ends the reports, never training.

    Args:
        checksums: what is reported: "params", "grads", "buffers", "rngs", "optimizers", "batch".
            None for nothing.
        tensor_stats: the statistics of each tensor: names of
            `traincheck.store.checksum_layout.STATISTICS`. None for the hash alone.
        env_vars: whether ``env_vars.yaml`` is written: environment variables that change how
            training computes. No others, which may be secrets.
        pip_freeze: whether ``pip_freeze.yaml`` is written: the versions of all packages.
        output_path_prefix: the folder of the reports; None for the ``log_dir`` of the trainer.
        schedule: when reports are made, asked when a training batch begins; None for never.

    Raises:
        UsageError: a name is unknown.
    """

    def __init__(
        self,
        checksums: Collection[str] | None = None,
        tensor_stats: Collection[str] | None = None,
        env_vars: bool = False,
        pip_freeze: bool = False,
        output_path_prefix: str | Path | None = None,
        schedule: Schedule | None = None,
    ) -> None:
        super().__init__()
        check_names(checksums or (), CHECKSUMS, "group of checksums")
        check_names(tensor_stats or (), STATISTICS, "statistic")
        self.checksums = frozenset(checksums or ())
        self.tensor_stats = frozenset(tensor_stats or {"hash"})
        self.env_vars = env_vars
        self.pip_freeze = pip_freeze
        self.output_path_prefix = output_path_prefix
        self.schedule = schedule or Never()
        self._current: StepChecksums | None = None
        self._step = 0
        self._updates = Updates(self._fail)
        self._is_failed = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the facts of the environment."""
        self._is_failed = False
        folder = self._folder(trainer)
        if self.env_vars:
            found = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
            self._guarded(lambda: save_text(folder / "env_vars.yaml", to_yaml(found)))
        if self.pip_freeze:
            versions = {one.metadata["Name"]: one.version for one in distributions()}
            text = to_yaml(dict(sorted(versions.items())))
            self._guarded(lambda: save_text(folder / "pip_freeze.yaml", text))

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin a report, or add another micro-batch to it."""
        if self._is_failed or not self.checksums:
            return
        if self._current is None:
            step = trainer.global_step
            if not self.schedule.check(
                stage="train", batch_idx=batch_idx, step=step, trainer=trainer
            ):
                return
            self._step = step
            self._guarded(lambda: self._begin(trainer, pl_module))
        self._guarded(lambda: self._add_batch(batch, batch_idx))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        """Write the report, if the update is done."""
        if self._current is not None and trainer.global_step != self._step:
            self._guarded(lambda: self._write(trainer))
            self._drop()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the report of gradients that were accumulated for no update."""
        if self._current is not None:
            self._guarded(lambda: self._write(trainer))
        self._drop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove the hooks."""
        self._drop()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Remove the hooks."""
        self._drop()

    # -- a report

    def _begin(self, trainer: Any, pl_module: Any) -> None:
        groups = {group for name in self.checksums for group in _GROUPS[name]}
        current = self._current = StepChecksums(
            _Module(trainer, pl_module),
            groups=groups,
            has_numbers=not self.tensor_stats <= _NO_NUMBERS,
        )
        self._updates.add(Update(before=self._before_update))
        if trainer.world_size > 1:
            current.watch_local_gradients(pl_module.named_parameters(), self._in_hook)

    def _add_batch(self, batch: Any, index: int) -> None:
        if self._current is not None:
            self._current.add_batch("train", index, leaves_of(batch))

    def _before_update(self, optimizer: Any) -> None:
        current = self._current
        if current is not None:
            self._guarded(lambda: current.before_update(optimizer))

    def _write(self, trainer: Any) -> None:
        if self._current is None:
            return
        header = (0, 0, self._step, "train", trainer.global_rank, "")
        # A record as the event that a trace would have.
        events = [
            ChecksumEvent(*header, **{**record, "summary": tensor_summary(record.get("summary"))})
            for record in self._current.finish()
        ]
        report = ChecksumReport(step=self._step, rank=trainer.global_rank, events=tuple(events))
        layout = to_layout(report, statistics=self.tensor_stats, checksums=self.checksums)
        stage = getattr(trainer.state.fn, "value", "fit")
        name = f"{stage}/step={self._step}/rank{trainer.global_rank}.yaml"
        save_text(self._folder(trainer) / name, to_yaml(layout))

    def _drop(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.unwatch()
        self._updates.clear()

    def _folder(self, trainer: Any) -> Path:
        prefix = self.output_path_prefix or trainer.log_dir or trainer.default_root_dir
        return Path(prefix) / _FOLDER

    def _in_hook(self, action: Callable[..., None]) -> Callable[..., None]:
        return lambda parameter: self._guarded(lambda: action(parameter))

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run code of traincheck; a failure ends the reports, never training."""
        if self._is_failed:
            return
        try:
            with unseen():
                action()
        except Exception as error:
            give_back(error)
            self._fail(action, error)

    def _fail(self, source: Any, error: BaseException) -> None:
        give_back(error)
        self._is_failed = True
        reason = error.message if isinstance(error, OutputError) else repr(error)
        _logger.warning("traincheck: no more reports of checksums: %s", reason)


class _Module:
    """The module and the optimizers of a trainer, as `Subjects`."""

    def __init__(self, trainer: Any, pl_module: Any) -> None:
        self._trainer, self._module = trainer, pl_module
        self._root = type(pl_module).__name__

    def parameters(self) -> Iterator[tuple[str, Any]]:
        for name, parameter in self._module.named_parameters():
            yield f"{self._root}.{name}", parameter

    def buffers(self) -> Iterator[tuple[str, Any]]:
        for name, buffer in self._module.named_buffers():
            yield f"{self._root}.{name}", buffer

    def optimizers(self) -> list[tuple[str, Any]]:
        return [(f"opt{number}", one) for number, one in enumerate(self._trainer.optimizers)]
