"""States of random generators in loaded files, up to the end of the first update after the load.

A state is restored if a function is given exactly its bytes, or if a generator has them at a moment
at which programs have not drawn yet: a load of state, the start of a loader, a forward pass.
"""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from inspect import CO_OPTIMIZED
from itertools import islice
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch.utils.data import DataLoader

from traincheck.collect import masking
from traincheck.collect.moments.generators import seeders, setters
from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.worker_rng import generators
from traincheck.collect.tensors.devices import KIND
from traincheck.collect.tensors.generator_states import (
    generator_states,
    state_of,
    torch_bytes,
    twister_bytes,
)
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.observations.loads import LoadedGenerator, LoadedGenerators

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_TORCH_BYTES, _PHILOX_BYTES = 5056, 16
_MAX_DEPTH = 5
_MAX_ITEMS = 4096  # of one dict or sequence
_MAX_VISITED = 20_000
_MAX_STATES = 64  # of one file
_MAX_FILES = 8
_MAX_FRAMES, _MAX_VALUES = 11, 256  # where generators of the program are looked for
_KINDS = frozenset({"torch", "python", "numpy", KIND})
# A function with one of these may keep the dict of its local variables, which reading them changes.
_READS_LOCALS = frozenset({"locals", "vars", "eval", "exec", "f_locals"})

_Function = Callable[..., Any]
_Place = tuple[str, str]  # key and kind of generator


@dataclass(slots=True)
class _File:
    """One load.

    Attributes:
        states: by place, those of all ranks.
        before: states of the global generators at the load.
        restored: places whose state a generator got.
        overwritten: those of them that were seeded since.
        seeded: kinds of generators that were seeded.
    """

    where: str | None
    states: dict[_Place, set[bytes]]
    before: dict[str, bytes]
    restored: set[_Place] = field(default_factory=set)
    overwritten: set[_Place] = field(default_factory=set)
    seeded: set[str] = field(default_factory=set)


class LoadedGeneratorObserver(Observer):
    """Follows the files with such states that were loaded since the last update: none as a rule."""

    produces: ClassVar = (LoadedGenerators,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._files: list[_File] = []

    def install(self, patcher: Patcher) -> None:
        """Listen to loads, and to the functions that set or seed a generator."""
        moments = self._session.moments
        self.listen(moments.at(torch, "load"), Around(after=self._loaded))
        for holder, name in setters():
            self.listen(moments.at(holder, name), Around(after=self._given, always=True))
        for holder, name, kind in seeders():
            seeded = functools.partial(self._seeded, kind)
            self.listen(moments.at(holder, name), Around(after=seeded, always=True))
        begins = Around(lambda args, _: self._compare(*args), always=True)
        self.listen(moments.at(DataLoader, "__iter__"), begins)
        self.listen(self._session.hooks.after_state, self._at_state)
        self.listen(self._session.hooks.at_step_end, self._tell)

    def remove(self) -> None:
        """Stop following."""
        self._follow([])

    def _follow(self, files: list[_File]) -> None:
        """Set the files that are followed. Without any, nothing is called before a forward."""
        self._files = files[-_MAX_FILES:]
        hooks = self._session.hooks.before_forward
        hooks.leave(self._at_forward)
        if files:
            hooks.add(self._at_forward)

    # -- the functions

    def _loaded(self, _: None, args: Args, kwargs: Named, result: Any) -> None:
        known = {
            (place, state) for f in self._files for place, of in f.states.items() for state in of
        }
        states: dict[_Place, set[bytes]] = {}
        for place, state in islice(held_states(result), _MAX_STATES):
            if (place, state) not in known:
                states.setdefault(place, set()).add(state)
        if states:
            self._follow([*self._files, _File(where(), states, dict(generator_states()))])

    # -- what becomes of the states

    def _given(self, _: None, args: Args, kwargs: Named, result: Any) -> None:
        """A function has set a generator to a state, or those of several GPUs."""
        if not self._files:
            return
        args = *args, *kwargs.values()
        several = [one for each in args if type(each) in (list, tuple) for one in each]
        given = [one for each in (*args, *several) for one in _states_at(KIND, each)]
        kinds, found = {kind for kind, _ in given}, {state for _, state in given}
        for file in self._files:
            # A state that follows a seed may be that before the seed: the end of `fork_rng`.
            back = {place for place in file.overwritten if place[1] in kinds}
            file.overwritten -= back
            file.restored |= back
            file.restored |= {place for place, states in file.states.items() if states & found}
            file.seeded -= kinds

    def _seeded(self, kind: str, _: None, args: Args, kwargs: Named, result: Any) -> None:
        for file in self._files:
            of_kind = {p for p in file.states if p[1] == kind or (kind, p[1]) == ("torch", KIND)}
            file.overwritten |= file.restored & of_kind
            file.restored -= of_kind
            file.seeded |= {place[1] for place in of_kind}

    def _compare(self, loader: Any = None) -> None:
        """Do generators have the states now: global ones, and those of a loader?"""
        if not self._files:
            return
        found = {state for _, state in generator_states()}
        found |= {state for _, one in generators(loader) if (state := state_of(one)) is not None}
        for file in self._files:
            file.restored |= {place for place, states in file.states.items() if states & found}

    def _at_state(self, em: Emitter, moment: str) -> None:
        if self._files and moment == "load":
            self._compare()

    def _at_forward(self, em: Emitter) -> None:
        self._compare()

    def _tell(self, em: Emitter) -> None:
        """A step ends."""
        if self._files and self._session.steps.counters["optimizer_step"]:
            try:
                self._write(em)
            finally:
                self._follow([])

    def _write(self, em: Emitter) -> None:
        now, owned = dict(generator_states()), _kinds_of_program(sys._getframe(1))
        for file in self._files:
            states = [
                LoadedGenerator(
                    key,
                    kind,
                    (key, kind) in file.restored,
                    kind in file.seeded,
                    any(file.before.get(n) != s for n, s in now.items() if n.startswith(kind)),
                    kind in owned,
                )
                for key, kind in file.states
            ]
            write(em, LoadedGenerators(file.where, tuple(states)))


def held_states(value: Any) -> Iterator[tuple[_Place, bytes]]:
    """Place and bytes of each state of a generator in a loaded object. Runs none of its code."""
    waiting: list[tuple[str, Any, int]] = [("", value, 0)]
    visited = 0
    while waiting and visited < _MAX_VISITED:
        path, item, depth = waiting.pop(0)
        visited += 1
        found = list(_states_at(path, item))
        for kind, state in found:
            yield (path, kind), state
        if found or depth >= _MAX_DEPTH:
            continue
        if isinstance(item, dict):
            waiting += [
                (_below(path, key), each, depth + 1)
                for key, each in islice(dict.items(item), _MAX_ITEMS)
                if isinstance(each, (dict, list, tuple)) or _is_bytes(each)
            ]
        elif type(item) in (list, tuple):
            waiting += [
                (f"{path}[]", each, depth + 1)
                for each in item[:_MAX_ITEMS]
                if isinstance(each, (dict, list, tuple)) or _is_bytes(each)
            ]


def _below(path: str, key: Any) -> str:
    if type(key) is not str:
        return f"{path}[]"
    return f"{path}.{masking.key(key)}" if path else masking.key(key)


def _is_bytes(value: Any) -> bool:
    return type(value) is torch.Tensor and value.dtype is torch.uint8


def _states_at(path: str, value: Any) -> Iterator[tuple[str, bytes]]:
    """The state that a value is, as `generator_states` writes it."""
    if type(value) is torch.Tensor:
        if not (_is_bytes(value) and value.is_cpu and value.dim() == 1 and value.is_contiguous()):
            return
        if value.numel() == _TORCH_BYTES:
            yield "torch", torch_bytes(value)
        elif value.numel() == _PHILOX_BYTES and any(
            word in path.lower() for word in ("rng", "random", KIND)
        ):
            yield KIND, torch_bytes(value)
    elif type(value) in (list, tuple):
        state = twister_bytes(value)
        if state is not None:
            yield state


def _kinds_of_program(frame: FrameType | None) -> Set[str]:
    """Kinds of the generators that the functions being run hold beside the global ones.

    All, if one of them may not be looked into.
    """
    roots: list[Any] = []
    for _ in range(_MAX_FRAMES):
        if frame is None:
            break
        if not frame.f_globals.get("__name__", "").startswith(("torch.", "traincheck.")):
            if not _READS_LOCALS.isdisjoint(frame.f_code.co_names):
                return _KINDS
            roots += [*_locals(frame), *islice(frame.f_globals.values(), _MAX_VALUES)]
        frame = frame.f_back
    known = {id(root): root for root in roots if not isinstance(root, (ModuleType, Mapping))}
    return {
        _kind(one) for root in known.values() for _, one in generators(root) if not _is_global(one)
    }


def _locals(frame: FrameType) -> list[Any]:
    """Some local variables of a function. Leaves no references in its frame."""
    if not frame.f_code.co_flags & CO_OPTIMIZED:  # a module or class, which has a real dict
        return []
    variables = frame.f_locals
    found = list(islice(variables.values(), _MAX_VALUES))
    if type(variables) is dict:  # a copy, before Python 3.13: it would keep tensors alive
        variables.clear()
    return found


def _kind(generator: Any) -> str:
    if isinstance(generator, torch.Generator):
        return "torch" if generator.device.type == "cpu" else KIND
    return "python" if isinstance(generator, random.Random) else "numpy"


def _is_global(generator: Any) -> bool:
    if generator is torch.default_generator or generator is getattr(random, "_inst", None):
        return True
    numpy = sys.modules.get("numpy.random.mtrand")
    return numpy is not None and generator is getattr(numpy, "_rand", None)
