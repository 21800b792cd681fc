"""Parameters that a load left out: whether another load sets them, or an optimizer trains them."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.observers.origins.embedding_rows import sample
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.reading import is_lazy, named_modules, named_tensors
from traincheck.collect.trace_writer.call_site import where
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.naming import ByObject
from traincheck.schema.observations.loads import PartNotLoaded

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_MOST = 8  # loads at a time
_MOST_NAMES = 32
_UPDATES = 2  # steps with an update, after which a load is judged

_Ref = weakref.ref[torch.Tensor]


class _Partial(NamedTuple):
    """A load that left parameters out, by name."""

    path: str
    where: str | None
    loaded: int
    missing: dict[str, _Ref]


class LoadedParameterObserver(Observer):
    """Listens to `Module.load_state_dict`, and judges partial loads after two updates."""

    produces: ClassVar = (PartNotLoaded,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._loaded = ByObject[tuple[_Ref]]()
        self._open: list[_Partial] = []
        self._updates = 0  # steps with an update since the last load

    def install(self, patcher: Patcher) -> None:
        """Note loads, and write at the ends of steps."""
        load = self._session.moments.at(torch.nn.Module, "load_state_dict")
        self.listen(load, Around(after=self._note))
        self.listen(self._session.hooks.at_step_end, self._ended)

    def _note(self, _: None, args: Args, kwargs: Named, result: Any) -> None:
        state = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not args or not isinstance(state, Mapping):
            return
        module = args[0]
        own = dict(named_tensors(module, again=True))
        given = {id(parameter) for name, parameter in own.items() if name in state}
        for name, parameter in own.items():
            if name in state:
                self._loaded.keep(parameter, (weakref.ref(parameter),))
        missing: dict[str, _Ref] = {
            name: weakref.ref(p) for name, p in own.items() if id(p) not in given
        }
        if missing and len(given) >= len(missing):  # else it is an adapter
            path = self._session.tracker.modules.find(module)[0]
            self._open = [
                *self._open[-(_MOST - 1) :],
                _Partial(path, where(), len(given), missing),
            ]
        self._updates = 0

    def _ended(self, em: Emitter) -> None:
        """A step ends."""
        if not self._open or not self._session.steps.counters["optimizer_step"]:
            return
        self._updates += 1
        if self._updates < _UPDATES:
            return
        opened, self._open = self._open, []
        held = self._session.live.optimized_ids()
        for load in opened:
            names = list(self._left(load, held))
            if names:
                some = tuple(names[:_MOST_NAMES])
                write(em, PartNotLoaded(load.path, load.where, load.loaded, some, len(names)))

    def _left(self, load: _Partial, held: set[int]) -> Iterator[str]:
        """Names of parameters that nothing has set since, and that nothing trains."""
        libraries = self._of_libraries(load.path)
        for name, ref in load.missing.items():
            parameter = ref()
            if parameter is None or is_lazy(parameter) or parameter.requires_grad:
                continue
            known = self._loaded.get(id(parameter))
            is_loaded = known is not None and known[0]() is parameter
            full = f"{load.path}.{name}"
            if is_loaded or id(parameter) in held or full.startswith(libraries):
                continue
            if _is_random(parameter):
                yield full

    def _of_libraries(self, path: str) -> tuple[str, ...]:
        """Beginnings of names of parts that a library has loaded, which leaves its name."""
        root = self._session.tracker.roots.get(path.partition(".")[0])
        top = None if root is None else root.ref()
        if root is None or not isinstance(top, torch.nn.Module):
            return ()
        return tuple(
            f"{root.name}.{part}." if part else f"{root.name}."
            for part, module in named_modules(top)
            if getattr(module.__dict__.get("config"), "_name_or_path", "")
        )


def _is_random(parameter: torch.Tensor) -> bool:
    """Whether the elements differ: zeros and ones are values that a program may mean."""
    part = sample(parameter)
    if part is None or part.numel() < 2:  # noqa: PLR2004
        return False
    return bool(host((part != part[0]).any()))
