"""Records for the comparison of runs, beside calls and variables, and checksums.

In the view "diff" only: states of generators at moments of the loop, gradients as optimizers see
them, and the digests of a step. Where the settings ask for checksums: the content of everything
that an optimizer step reads, right before its update, in the steps of their schedule.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import torch

from traincheck.collect.context import Recorder
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.instruments.data import leaves_of, quoted_path
from traincheck.collect.moments.updates import Update
from traincheck.collect.templates import GENERATOR_MOMENT, KEPT_STATE
from traincheck.collect.tensors.devices import KIND
from traincheck.collect.tensors.generator_states import generator_states
from traincheck.collect.tensors.reading import tensors_in
from traincheck.collect.tensors.step_checksums import StepChecksums
from traincheck.collect.tensors.summarize import dumps
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded, quietly
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.collect.tracking.tracked_tensor import GRADIENT
from traincheck.collect.tracking.tracker import known_contents
from traincheck.schema.checksums import parse_schedule
from traincheck.schema.comparison.generator_states import fingerprint

# The most moments of each kind at which whole states are kept: 5 kB for each generator.
_KEPT = {"start": 1, "loader": 4, "forward": 4, "step": 2, "load": 3, "save": 2}


class Comparison(Instrument):
    """Replaces nothing: it uses hooks of the session, which other instruments call."""

    name = "comparison"

    def is_wanted(self) -> bool:
        """In the view "diff", also when everything is recorded."""
        return self.session.compared is not None

    def install(self) -> None:
        self._kept: Counter[str] = Counter()
        self._forward_step: int | None = -1  # in which a forward has begun
        # Written with the first other moment: a process that does not train leaves no trace
        self._start = list(generator_states())
        hooks = self.session.hooks
        self.listen(hooks.before_loader, self._before_loader)
        self.listen(hooks.before_forward, self._before_forward)
        self.listen(hooks.before_optimizer, self._before_update)
        self.listen(hooks.after_state, self._moment)
        self.listen(hooks.at_step_end, self._end)

    # -- generators

    def _before_loader(self, em: Emitter) -> None:
        """An iteration begins: its sampler and its workers are not seeded yet."""
        self._moment(em, "loader")

    def _before_forward(self, em: Emitter) -> None:
        step = self.session.clock.step
        if step != self._forward_step and not self.session.is_worker:
            self._forward_step = step
            self._moment(em, "forward")

    def _moment(self, em: Emitter, moment: str) -> None:
        """Record the states of all generators at a moment of the loop."""
        if self._start:
            start, self._start = self._start, []
            self._write(em, "start", start)
        self._write(em, moment, list(generator_states()))

    def _write(self, em: Emitter, moment: str, states: list[tuple[str, bytes]]) -> None:
        self._kept[moment] += 1
        is_kept = self._kept[moment] <= _KEPT[moment]
        compared = self.session.compared
        for source, state in states:
            found = fingerprint(source, state)
            body = GENERATOR_MOMENT % (source.encode(), found.encode(), moment.encode())
            if is_kept or source.startswith(KIND):  # 16 bytes
                body += KEPT_STATE % b64encode(state)
            em.write_json("rng", body)
            is_same = compared is not None and source.partition(":")[0] in compared.seeded
            if compared is not None and moment != "start" and is_same:
                name = f"{source}@{moment}"
                compared.digests.add("rng", f"{name}#{compared.digests.number(name)}", found)

    # -- variables

    def _before_update(self, em: Emitter, owner: str) -> None:
        """An optimizer is about to use the gradients: reduced, accumulated, unscaled, clipped."""
        tracker = self.session.tracker
        if self.session.recording.scans:
            after = em.next_span if em.top is None else em.top  # the step
            tracker.scans.scan_gradients(em, after)
            tracker.detector.pending.then(self._take_gradients)

    def _take_gradients(self) -> None:
        compared = self.session.compared
        if compared is not None:
            found = known_contents(self.session.tracker)
            compared.digests.add_all(
                "gradient", [(n, d) for role, n, d in found if role == GRADIENT]
            )

    def _end(self, em: Emitter) -> None:
        """A recorded step ends."""
        compared = self.session.compared
        if compared is None or self.session.is_worker:
            return
        self._moment(em, "step")
        for role, name, digest in known_contents(self.session.tracker):
            if role != GRADIENT and digest is not None:
                compared.digests.add(role, name, digest)
        compared.close_step()


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
