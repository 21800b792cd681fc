"""The functions of torch that several parts of a recording listen to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import dataloader

from traincheck.collect.listeners import Listeners
from traincheck.collect.moments.calls import Calls, ModuleCalls
from traincheck.collect.moments.moment import Moment
from traincheck.collect.moments.updates import Updates
from traincheck.collect.trace_writer.guard import Threads


class Moments:
    """All of them, of one recording.

    Attributes:
        modules: calls of modules.
        engine: of the engine of autograd, with the roots of a backward pass.
        draws: of the function that draws the indices of a batch.
        fetches: of the iterators of loaders, which the instrument of data replaces.
        updates: steps of optimizers.
        transforms: are called before TorchScript, fx or export read code.
    """

    def __init__(self, session: Threads) -> None:
        self._session = session
        self._known: dict[tuple[int, str], Moment] = {}
        self.modules = ModuleCalls((torch.nn.Module, "_call_impl"))
        self.engine = Calls((torch.autograd, "_engine_run_backward"))
        self.draws = Calls((dataloader._BaseDataLoaderIter, "_next_index"))
        self.fetches = Calls()
        self.updates = Updates(session.fault)
        self.transforms = Listeners[Callable[[], None]]()

    def at(self, holder: Any, attribute: str) -> Moment:
        """The calls of another function, which outlives the recording."""
        key = id(holder), attribute
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Moment(self._session, (holder, attribute))
        return known
