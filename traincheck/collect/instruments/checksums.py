"""Checksums: the content of everything that an optimizer step reads, right before its update.

Installed only when the settings ask for it. In other steps than those of its schedule it does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson
import torch

from traincheck.collect.context import Recorder
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.instruments.data import leaves_of, quoted_path
from traincheck.collect.moments.updates import Update
from traincheck.collect.tensors.reading import tensors_in
from traincheck.collect.tensors.step_checksums import StepChecksums
from traincheck.collect.tensors.summarize import dumps
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded, quietly
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.schema.checksums import parse_schedule


class Checksums(Instrument):
    """Takes checksums in the steps that `Settings.checksums` chooses."""

    name = "checksums"

    def is_wanted(self) -> bool:
        return bool(self.session.settings.checksums)

    def install(self) -> None:
        self._schedule = parse_schedule(self.session.settings.checksums)
        self._current: StepChecksums | None = None
        ddp = getattr(torch.nn.parallel, "DistributedDataParallel", None)
        if ddp is not None:
            self.replace(ddp, "forward", self._wrap_forward)
        update = Update(lambda _: self._is_due(), self._before_update)
        self.listen(self.session.moments.updates, update)
        hooks = self.session.hooks
        self.listen(hooks.after_batch, self._add_batch)
        self.listen(hooks.at_step_end, self._end)
        self.listen(hooks.at_close, self._end)

    def remove(self) -> None:
        super().remove()
        self._drop()

    def _is_due(self) -> bool:
        session = self.session
        return (
            session.recording.on
            and not session.is_worker
            and self._schedule.includes(session.clock.step, session.rank)
            and not is_traced()
        )

    def _now(self) -> StepChecksums:
        """The checksums of the present step."""
        if self._current is None:
            self._current = StepChecksums(_Tracked(self.session))
        return self._current

    def _add_batch(self, iterator: Any, batch: Any) -> None:
        """A batch of the training loop; the caller catches what fails."""
        if self._is_due():
            loader = getattr(iterator, "_traincheck", ("loader",))[0]
            leaves = {orjson.loads(quoted_path(p)): leaf for p, leaf in leaves_of(batch).items()}
            self._now().add_batch(loader, iterator._num_yielded - 1, leaves)

    # -- gradients before they are reduced

    def _wrap_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._is_due() and torch.is_grad_enabled():
                guarded(self.session.local.em or self.session.emitter(), self._watch, module)
            return original(module, *args, **kwargs)

        return hidden(forward)

    def _watch(self, module: torch.nn.Module) -> None:
        own = {id(parameter) for parameter in tensors_in(module)}
        named = _Tracked(self.session).parameters()
        self._now().watch_local_gradients(
            [(name, parameter) for name, parameter in named if id(parameter) in own], self._in_hook
        )

    def _in_hook(self, action: Callable[..., None]) -> Callable[..., None]:
        """A hook, which may run in a thread of autograd: such a thread gets no emitter."""
        session = self.session

        def accumulated(parameter: torch.Tensor) -> None:
            quietly(session, action, parameter)

        return hidden(accumulated)

    # -- optimizers

    def _before_update(self, optimizer: torch.optim.Optimizer) -> None:
        guarded(self.session.local.em or self.session.emitter(), self._take, optimizer)

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        self._now().before_update(optimizer)

    # -- the end of a step

    def _end(self, em: Emitter) -> None:
        """Add what no update has added, and write everything."""
        if self._is_due():
            for record in self._now().finish():
                em.write_json("checksum", dumps(record)[1:-1])
        self._drop()

    def _drop(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.unwatch()


class _Tracked:
    """The tracked variables and optimizers of a recording, as `Subjects`."""

    def __init__(self, session: Recorder) -> None:
        self._session = session

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return self._session.tracker.live_parameters()

    def buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        for root in self._session.tracker.live_roots():
            for variable, buffer in root.buffers_now():
                yield variable.name, buffer

    def optimizers(self) -> list[tuple[str, torch.optim.Optimizer]]:
        return self._session.live.live_optimizers()
