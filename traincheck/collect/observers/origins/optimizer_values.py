"""The state of optimizers by name of the parameter, taken to be saved or loaded."""

from __future__ import annotations

import functools
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.origins.embedding_rows import read_short, sketch
from traincheck.collect.tensors.reading import as_plain, is_a, state_of, states_of
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.naming import ByObject
from traincheck.collect.tracking.optimizer_groups import owner_of
from traincheck.schema.observations.loads import OptimizerValues

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_MOST_PARAMETERS = 256
_CALLS, _EVERY = 32, 10  # calls of one optimizer: the first, then some, as a loop may keep states

_Found = dict[tuple[str, str], torch.Tensor]


class _Taken(NamedTuple):
    """Sketches that are read when the step ends."""

    moment: str
    owner: str
    where: str | None
    numbers: _Found


class OptimizerValueObserver(Observer):
    """Listens to `Optimizer.state_dict` and `Optimizer.load_state_dict`."""

    produces: ClassVar = (OptimizerValues,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._sketcher = Sketcher()
        self._taken: list[_Taken] = []
        self._calls = ByObject[tuple[weakref.ref[torch.optim.Optimizer], int]]()

    def install(self, patcher: Patcher) -> None:
        """Listen to the methods, and write at the ends of steps."""
        moments, optimizer = self._session.moments, torch.optim.Optimizer
        for name, word in (("state_dict", "saved"), ("load_state_dict", "loaded")):
            take = functools.partial(self._take, word)
            self.listen(moments.at(optimizer, name), Around(after=take))
        hooks = self._session.hooks
        for moment in (hooks.at_step_end, hooks.at_close):
            self.listen(moment, self._tell)

    def _take(self, moment: str, _: None, args: Args, kwargs: Named, result: Any) -> None:
        session = self._session
        if not args:
            return
        optimizer = args[0]
        owner = owner_of(session.live.live_optimizers(), optimizer)
        if owner is None or not states_of(optimizer):
            return
        known = self._calls.get(id(optimizer))
        count = known[1] + 1 if known is not None and known[0]() is optimizer else 1
        self._calls.keep(optimizer, (weakref.ref(optimizer), count))
        if moment == "saved" and count > _CALLS and count % _EVERY:
            return
        numbers: _Found = {}
        named = list(session.tracker.named_parameters(owner, optimizer))[:_MOST_PARAMETERS]
        for name, parameter in named:
            state = state_of(optimizer, parameter)
            for key, value in state.items() if isinstance(state, dict) else ():
                if is_a(value, torch.Tensor) and as_plain(value).dim() and isinstance(key, str):
                    found = sketch(self._sketcher, value)
                    if found is not None:
                        numbers[name, key] = found
        if numbers:
            self._taken.append(_Taken(moment, owner, where(), numbers))

    def _tell(self, em: Emitter) -> None:
        """A step ends."""
        taken, self._taken = self._taken, []
        if not taken:
            return
        for each in taken:
            values: dict[str, dict[str, tuple[float, ...]]] = {}
            for (name, key), row in zip(each.numbers, read_short([*each.numbers.values()])):
                values.setdefault(name, {})[key] = row
            write(em, OptimizerValues(each.moment, each.owner, each.where, values))
