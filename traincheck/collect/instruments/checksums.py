"""Checksums: the content of everything that an optimizer step reads, right before that step.

Installed only when the settings ask for it. In other steps than those of its schedule it does
nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import torch
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

from traincheck.collect.instruments.base import Instrument
from traincheck.collect.instruments.data import leaves_of, quoted_path
from traincheck.collect.tensors.checksum_snapshot import ChecksumSnapshot
from traincheck.collect.tensors.reading import unseen
from traincheck.collect.tensors.summarize import dumps
from traincheck.collect.tensors.training_checksums import add_generators, add_optimizer
from traincheck.collect.trace_writer.compile_state import is_traced
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.schema.checksums import (
    BATCH,
    BUFFER,
    GRADIENT,
    LOCAL_GRADIENT,
    PARAMETER,
    parse_schedule,
)


class Checksums(Instrument):
    """Takes checksums in the steps that `Settings.checksums` chooses.

    A parameter, its gradient and its state are taken before the step of the optimizer that holds
    them. Parameters of no optimizer, buffers and generators are taken before the first step of an
    optimizer in the iteration. The rest, such as parameters whose optimizer did not step, is taken
    when the iteration ends.
    """

    name = "checksums"

    def is_wanted(self) -> bool:
        return bool(self.session.settings.checksums)

    def install(self) -> None:
        self._schedule = parse_schedule(self.session.settings.checksums)
        self._snapshot = ChecksumSnapshot()
        self._taken: set[int] = set()  # ids of the parameters
        self._stepped: set[str] = set()
        self._local: dict[str, ChecksumSnapshot] = {}
        self._handles: list[Any] = []  # of hooks on parameters, in this step
        ddp = getattr(torch.nn.parallel, "DistributedDataParallel", None)
        if ddp is not None:
            self.replace(ddp, "forward", self._wrap_forward)
        self.replace(dataloader._BaseDataLoaderIter, "__next__", self._wrap_next)
        self._pre_hook = optimizers.register_optimizer_step_pre_hook(self._before_step)
        self.session.hooks.at_step_end.append(self._end)
        self.session.hooks.at_close.append(self._end)

    def remove(self) -> None:
        super().remove()
        self._pre_hook.remove()
        self._unhook()
        for hooks in (self.session.hooks.at_step_end, self.session.hooks.at_close):
            if self._end in hooks:
                hooks.remove(self._end)

    def _is_due(self) -> bool:
        session = self.session
        return (
            session.recording.on
            and not session.is_worker
            and self._schedule.includes(session.clock.step, session.rank)
            and not is_traced()
        )

    def _guarded(self, action: Callable[..., None], *rest: Any) -> None:
        """Run code of traincheck in this thread; its failure is only counted."""
        session = self.session
        em = session.local.em or session.emitter()
        busy, em.busy = em.busy, True
        try:
            with unseen():
                action(*rest)
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(action, error)
        finally:
            em.busy = busy

    # -- batches

    def _wrap_next(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __next__(iterator: Any) -> Any:
            batch = original(iterator)
            if self._is_due() and torch.is_grad_enabled():
                em = self.session.local.em
                if em is None or not em.busy:
                    self._guarded(self._add_batch, iterator, batch)
            return batch

        return hidden(__next__)

    def _add_batch(self, iterator: Any, batch: Any) -> None:
        """A batch of the training loop; as in data.py, others come while models evaluate."""
        if self.session.is_evaluating():
            return
        loader = getattr(iterator, "_traincheck", ("loader",))[0]
        data = {"index": iterator._num_yielded - 1}
        for path, leaf in leaves_of(batch).items():
            name = orjson.loads(quoted_path(path))
            self._snapshot.add(BATCH, name, leaf, owner=loader, data=data)

    # -- gradients before they are reduced

    def _wrap_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def forward(module: Any, /, *args: Any, **kwargs: Any) -> Any:
            if self._is_due() and torch.is_grad_enabled() and not self._handles:
                self._guarded(self._hook, module)
            return original(module, *args, **kwargs)

        return hidden(forward)

    def _hook(self, module: torch.nn.Module) -> None:
        """Read each gradient when it is accumulated: DDP reduces it after that."""
        tracker = self.session.tracker
        for parameter in module.parameters():
            name = tracker.name_of(parameter)
            if name is not None and parameter.requires_grad and parameter.is_leaf:
                hook = self._on_accumulated(name)
                self._handles.append(parameter.register_post_accumulate_grad_hook(hook))

    def _on_accumulated(self, name: str) -> Callable[[torch.Tensor], None]:
        local, session = self._local, self.session

        def accumulated(parameter: torch.Tensor) -> None:
            em = session.local.em  # a thread of autograd may have none, and needs none
            busy = em is not None and em.busy
            if em is not None:
                em.busy = True
            try:
                with unseen():
                    if parameter.grad is not None:
                        snapshot = ChecksumSnapshot()
                        snapshot.add(LOCAL_GRADIENT, name, parameter.grad)
                        local[name] = snapshot
            except Exception as error:  # training must go on whatever we got wrong
                session.fault(accumulated, error)
            finally:
                if em is not None:
                    em.busy = busy

        return hidden(accumulated)

    def _unhook(self) -> None:
        while self._handles:
            self._handles.pop().remove()

    # -- optimizers

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._is_due():
            self._guarded(self._take, optimizer)

    def _take(self, optimizer: torch.optim.Optimizer) -> None:
        session = self.session
        live = dict(session.live.live_optimizers())
        owner = next((name for name, one in live.items() if one is optimizer), None)
        if owner is None or owner in self._stepped:  # one that another wraps; a second update
            return
        is_first = not self._stepped
        self._stepped.add(owner)
        self._unhook()
        others = {
            id(p)
            for name, one in live.items()
            if name not in self._stepped
            for group in one.param_groups
            for p in group["params"]
        }
        self._add_parameters(skipped=others)
        if is_first:
            self._add_buffers()
            add_generators(self._snapshot)
        self._add_optimizer(owner, optimizer)

    def _add_parameters(self, skipped: set[int]) -> None:
        """Add all parameters that were not added yet; tied ones once."""
        for name, parameter in self.session.tracker.live_parameters():
            if id(parameter) not in self._taken and id(parameter) not in skipped:
                self._taken.add(id(parameter))
                self._snapshot.add(PARAMETER, name, parameter)
                if parameter.grad is not None:
                    self._snapshot.add(GRADIENT, name, parameter.grad)

    def _add_buffers(self) -> None:
        seen: set[int] = set()
        for root in self.session.tracker.live_roots():
            for holder, key, variable in root.buffers.values():
                buffer = holder.get(key)
                if buffer is not None and id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._snapshot.add(BUFFER, variable.name, buffer)

    def _add_optimizer(self, owner: str, optimizer: torch.optim.Optimizer) -> None:
        named = self.session.tracker.named_parameters(owner, optimizer)
        names = {id(parameter): name for name, parameter in named}
        add_optimizer(self._snapshot, owner, optimizer, lambda p: names[id(p)])

    # -- the end of a step

    def _end(self, em: Emitter) -> None:
        """Add what no step of an optimizer has added, and write everything."""
        if self._is_due():
            self._unhook()
            live = self.session.live.live_optimizers()
            self._add_parameters(skipped=set())
            if not self._stepped:
                self._add_buffers()
                add_generators(self._snapshot)
            for owner, optimizer in live:
                if owner not in self._stepped:
                    self._add_optimizer(owner, optimizer)
            records = self._snapshot.finish()
            for snapshot in self._local.values():
                records += snapshot.finish()
            for record in records:
                em.write_json("checksum", dumps(record)[1:-1])
        self._unhook()
        self._taken.clear()
        self._stepped.clear()
        self._local.clear()
        self._snapshot = ChecksumSnapshot()
