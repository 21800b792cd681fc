"""How fast models that no optimizer holds follow a trained model: the decay of averages.

Three states show it: the average at the ends of two steps, and the trained model at the second. A
few pairs of steps are observed.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.origins.embedding_rows import sample
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.reading import is_lazy, tensors_in
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.loads import AverageDecay
from traincheck.schema.words import AVERAGE_CLASS

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_EVERY, _OFTEN, _LATER = 12, 240, 10  # steps; until which; then every _LATER-th of these
_MOST = 4  # averages at a time
_PARAMETERS = 8  # sampled ones of a model
_TINY = 1e-12  # of the square of the distance: the average is not moved, or there is nothing to do

_Shapes = list[torch.Size]


class _Pair(NamedTuple):
    """An average at the end of a step."""

    average: weakref.ref[torch.nn.Module]
    trained: weakref.ref[torch.nn.Module]
    names: tuple[str, str]
    values: list[torch.Tensor]


class AverageDecayObserver(Observer):
    """Samples averages at the ends of two steps in a row."""

    produces: ClassVar = (AverageDecay,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._open: list[_Pair] = []
        self._step = -1

    def install(self, patcher: Patcher) -> None:
        """Sample at the ends of steps."""
        self.listen(self._session.hooks.at_step_end, self._ended)

    def _ended(self, em: Emitter) -> None:
        step = self._session.clock.step or 0
        opened, self._open = self._open, []
        if not opened and not _is_due(step):
            return
        if step == self._step + 1:
            for pair in opened:
                self._measure(em, pair)
        if _is_due(step):
            self._open, self._step = self._pairs(), step

    def _pairs(self) -> list[_Pair]:
        """Averages and trained models of the same structure."""
        session = self._session
        held = session.live.optimized_ids()
        live = {name: m for name, ref in session.live.models.items() if (m := ref()) is not None}
        trained = {name: m for name, m in live.items() if _is_held(m, held)}
        if not trained:
            return []
        others = {name: m for name, m in live.items() if name not in trained}
        for module in session.tracker.modules.created:
            if AVERAGE_CLASS.search(type(module).__name__) and not _is_held(module, held):
                others.setdefault(session.tracker.modules.find(module)[0], module)
        shapes = {name: _shapes(module) for name, module in trained.items()}
        found: list[_Pair] = []
        for name, module in others.items():
            mine = _shapes(module)
            of = next((one for one, theirs in shapes.items() if mine and theirs == mine), None)
            values = _values(module) if of is not None and len(found) < _MOST else []
            if of is not None and values:
                refs = weakref.ref(module), weakref.ref(trained[of])
                found.append(_Pair(*refs, (name, of), values))
        return found

    def _measure(self, em: Emitter, pair: _Pair) -> None:
        average, trained = pair.average(), pair.trained()
        if average is None or trained is None:
            return
        now, target = _values(average), _values(trained)
        if (
            not [v.shape for v in now]
            == [v.shape for v in target]
            == [v.shape for v in pair.values]
        ):
            return
        sums = torch.zeros(3, dtype=torch.float64, device=now[0].device)
        for before, after, to in zip(pair.values, now, target):
            move, way = after.double() - before.double(), to.double() - before.double()
            sums += torch.stack([move.dot(move), move.dot(way), way.dot(way)]).to(sums.device)
        moved, along, far = host(sums).tolist()
        if not far > 0 or not _TINY * far < moved < float("inf"):
            return
        rate = along / far
        rest = max(0.0, moved - rate * along)
        name, of = pair.names
        cls = dotted(type(average))
        write(em, AverageDecay(name, cls, of, 1 - rate, (rest / moved) ** 0.5))


def _is_due(step: int) -> bool:
    return step > 0 and step % (_EVERY if step <= _OFTEN else _EVERY * _LATER) == 0


def _parameters(module: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter for parameter in tensors_in(module) if not is_lazy(parameter)]


def _is_held(module: torch.nn.Module, held: set[int]) -> bool:
    return any(id(parameter) in held for parameter in tensors_in(module))


def _shapes(module: torch.nn.Module) -> _Shapes:
    return [parameter.shape for parameter in _parameters(module)]


def _values(module: torch.nn.Module) -> list[torch.Tensor]:
    """Samples of the largest parameters; empty if one cannot be read."""
    parameters = _parameters(module)
    places = sorted(range(len(parameters)), key=lambda place: -parameters[place].numel())
    found = [sample(parameters[place]) for place in places[:_PARAMETERS]]
    known = [part for part in found if part is not None]
    return known if len(known) == len(found) else []
