"""Averages of weights: models that no optimizer holds, and that follow a trained one.

In the first steps after such a model was loaded: when it changes, and whether it then equals the
trained model. And how fast it follows, its decay. Three states show that: the average at the ends
of two steps, and the trained model at the second. A few pairs of steps are observed.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch

from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.origins.embedding_rows import sample
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.fingerprint import fingerprint, is_at_hand
from traincheck.collect.tensors.reading import (
    is_lazy,
    modules_in,
    named_tensors,
    table_of,
    tensors_in,
)
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.loads import AverageDecay, LoadedAverage
from traincheck.schema.words import AVERAGE_CLASS

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_ENDS = 4  # of steps: that of the load may be over, and an average is recognized in three
_MOST = 8  # models at a time

_Tensors = dict[str, torch.Tensor]


@dataclass(slots=True)
class _Loaded:
    """A model since its load.

    pairs: its names and those of the trained model, once known; stepped: digests of the trained
    model after an optimizer step.
    """

    ref: weakref.ref[torch.nn.Module]
    path: str
    digests: dict[str, str | None]
    pairs: dict[str, str] = field(default_factory=dict)
    stepped: list[str | None] = field(default_factory=list)
    ends: int = 0


class LoadedAverageObserver(Observer):
    """Observes models for a few steps after each load, which limits the cost."""

    produces: ClassVar = (LoadedAverage,)
    hook: ClassVar = Hook.LOAD

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._loaded: list[_Loaded] = []

    def install(self, patcher: Patcher) -> None:
        """Observe after optimizer steps and at the ends of steps."""
        if self.is_wanted:
            self.listen(self._session.hooks.after_optimizer, self.stepped)
            self.listen(self._session.hooks.at_step_end, self.look)

    def follow(self, module: torch.nn.Module, path: str, digests: Mapping[str, str | None]) -> None:
        """Remember the loaded model. digests: of all its tensors."""
        if not self.is_wanted:
            return
        parameters = dict(named_tensors(module))
        if not parameters or not all(map(is_at_hand, parameters.values())):
            return
        others = [entry for entry in self._loaded if entry.ref() is not module]
        self._loaded = others[-(_MOST - 1) :]
        known = {name: digests.get(name) for name in parameters}
        self._loaded.append(_Loaded(weakref.ref(module), path, known))

    def stepped(self) -> None:
        """After an update: remember the trained models."""
        loaded, self._loaded = self._loaded, []  # none is left after a failure
        for entry in loaded:
            entry.stepped = [fingerprint(theirs) for _, theirs in self._tensors(entry)]
        self._loaded = loaded

    def look(self, em: Emitter) -> None:
        """At the end of a step: record which of them changed."""
        loaded, self._loaded = self._loaded, []  # none is left after a failure
        if loaded:
            self._loaded = [entry for entry in loaded if self._goes_on(em, entry)]

    def _goes_on(self, em: Emitter, entry: _Loaded) -> bool:
        tensors = self._tensors(entry)
        if not tensors:
            return False
        digests = dict(zip(entry.digests, [fingerprint(mine) for mine, _ in tensors]))
        if digests != entry.digests:
            entry.digests = digests
            first, other = next(iter(entry.pairs.items()))
            equal: bool | None = all(torch.equal(mine, theirs) for mine, theirs in tensors)
            if equal and entry.stepped != [fingerprint(theirs) for _, theirs in tensors]:
                equal = None  # the average may have been copied into the trained model
            trained = other[: -len(_common_tail(first, other))].rstrip(".")
            write(em, LoadedAverage(entry.path, trained, len(tensors), equal))
        entry.ends += 1
        return entry.ends < _ENDS

    def _tensors(self, entry: _Loaded) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Its parameters and those of the trained model, in the order of its names."""
        module = entry.ref()
        mine: _Tensors = {} if module is None else dict(named_tensors(module))
        if module is None or list(mine) != list(entry.digests) or _counts(module):
            return []
        held = self._session.live.optimized_ids()
        if any(id(p) in held or not is_at_hand(p) for p in mine.values()):
            return []
        trained = dict(self._session.tracker.live_parameters())
        if not entry.pairs:
            entry.pairs = _pairs(mine, trained, held)
        found = [
            (mine[name], trained[other])
            for name, other in entry.pairs.items()
            if other in trained and _is_like(mine[name], trained[other])
        ]
        return found if len(found) == len(mine) else []


def _pairs(mine: _Tensors, trained: _Tensors, held: set[int]) -> dict[str, str]:
    """Names of a model -> names of the trained model with the same structure; empty if none."""
    first = next(iter(mine))
    for name in trained:
        tail = _common_tail(first, name)
        if not tail:
            continue
        here, there = first[: -len(tail)], name[: -len(tail)]
        found = {n: there + n[len(here) :] for n in mine if n.startswith(here)}
        others = {n: trained[t] for n, t in found.items() if t in trained}
        if (
            len(others) == len(mine)
            and all(_is_like(mine[n], other) for n, other in others.items())
            and any(id(other) in held for other in others.values())
        ):
            return found
    return {}


def _is_like(mine: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether it may be a copy of another tensor."""
    return (
        mine is not other
        and is_at_hand(other)
        and mine.shape == other.shape
        and mine.dtype is other.dtype
    )


def _common_tail(first: str, other: str) -> str:
    """The last parts that two dotted names share."""
    shared = []
    for mine, theirs in zip(reversed(first.split(".")), reversed(other.split("."))):
        if mine != theirs:
            break
        shared.append(mine)
    return ".".join(reversed(shared))


def _counts(module: torch.nn.Module) -> bool:
    """Whether a single number is saved with a model, such as a counter of its updates."""
    return any(
        buffer is not None
        and not is_lazy(buffer)
        and buffer.numel() == 1
        and name != "num_batches_tracked"
        and name not in part._non_persistent_buffers_set
        for part in modules_in(module)
        for name, buffer in table_of(part, "_buffers").items()
    )


_EVERY, _OFTEN, _LATER = 12, 240, 10  # steps; until which; then every _LATER-th of these
_MOST_FOLLOWED = 4  # averages at a time
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
            values = _values(module) if of is not None and len(found) < _MOST_FOLLOWED else []
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
