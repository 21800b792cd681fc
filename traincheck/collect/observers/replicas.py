"""How parameters are placed on ranks, and the values of those that several ranks hold.

At the ends of few steps, and only where ranks are. Nothing is communicated: the ranks are compared
when the trace is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.distributed as dist

from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.reading import (
    FLOATS,
    has_memory,
    layout_of,
    local_of,
    tensors_in,
    unseen,
)
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.processes import (
    Layout,
    LocalValues,
    ParameterPlacement,
    ReductionGroup,
    ReplicaValues,
)

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_SCHEDULE = Schedule(first=4, every=100)
_MOST = 64  # tensors of a step
_ELEMENTS = 1 << 20  # of a tensor that are read
_SUMS = 16  # the first group of a sketch
_GROUP_SCALE = 2.0  # a sketch has four groups, each of which is scaled by a half
_WRAPPERS = ("FullyShardedDataParallel", "DistributedDataParallel")
_FULL, _HYBRID = _WRAPPERS[0], "HYBRID"


class ReplicaObserver(Observer):
    """Writes at the ends of the first steps, and of few others."""

    produces: ClassVar = (ParameterPlacement, ReplicaValues)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._use = UseSchedule(1, _SCHEDULE)
        self._sketcher = Sketcher()
        self._told: ParameterPlacement | None = None

    def install(self, patcher: Patcher) -> None:
        """Write at the ends of steps."""
        self.listen(self._session.hooks.at_step_end, self._tell)

    def _tell(self, em: Emitter) -> None:
        """A step ends: devices have finished its work."""
        if not (dist.is_available() and dist.is_initialized()):
            return
        if not self._use.is_due(self._session.clock.step) or dist.get_world_size() == 1:
            return
        with unseen():
            self._write(em)

    def _write(self, em: Emitter) -> None:
        tracker = self._session.tracker
        # A part may have been tracked before the model that it belongs to: the last name counts
        found_names = tracker.live_parameters()
        parameters = [(name, p) for name, p in found_names if tracker.name_of(p) == name]
        groups = list(self._groups())
        layouts: dict[Layout, int] = {}
        placed: dict[str, int] = {}
        alone, others = [], 0
        reducing: dict[int, int] = {}  # id -> the most ranks over which its gradient is reduced
        for group, reduced in groups:
            for parameter in reduced:
                reducing[id(parameter)] = max(reducing.get(id(parameter), 0), len(group.ranks))
        for name, parameter in parameters:
            layout = None if local_of(parameter) is None else layout_of(parameter)
            if layout is not None:
                placed[name] = layouts.setdefault(layout, len(layouts))
            if parameter.requires_grad:
                # The ranks on which parts of a distributed tensor are
                known = reducing.get(id(parameter)) or (0 if layout is None else prod(layout.sizes))
                alone += [name] if known == 1 else []
                others += known != 1
        found = ParameterPlacement(
            dist.get_world_size(),
            tuple(layouts),
            placed,
            tuple(dict.fromkeys(group for group, _ in groups)),
            tuple(alone),
            others,
        )
        if not placed and not groups:
            return
        if found != self._told:
            self._told = found
            write(em, found)
        shared = {name for name, i in placed.items() if len(found.layouts[i].replicas) > 1}
        chosen = [pair for pair in parameters if pair[0] in shared or pair[0] in found.alone]
        values = self._values(chosen)
        if values:
            write(em, ReplicaValues(tuple(values)))

    def _groups(self) -> Iterator[tuple[ReductionGroup, list[torch.Tensor]]]:
        """The wrappers that reduce gradients, and the parameters of each."""
        tracker = self._session.tracker
        for module in list(tracker.modules.created):
            names = (cls.__name__ for cls in type(module).__mro__)
            kind = next((name for name in names if name in _WRAPPERS), "")
            ranks = _reduced_over(module, kind) if kind else ()
            parameters: list[torch.Tensor] = list(tensors_in(module)) if ranks else []
            name = next(filter(None, map(tracker.name_of, parameters)), None)
            if name is not None:
                strategy = getattr(getattr(module, "sharding_strategy", None), "name", "")
                model = name.partition(".")[0]
                yield ReductionGroup(model, kind, str(strategy), ranks), parameters

    def _values(self, named: Sequence[tuple[str, torch.Tensor]]) -> list[LocalValues]:
        heads: list[tuple[str, str, str]] = []
        numbers: list[torch.Tensor] = []
        for role in ("parameter", "gradient"):
            for name, parameter in named:
                tensor = parameter if role == "parameter" else parameter.grad
                found = None if tensor is None else self._numbers(tensor)
                if tensor is not None and found is not None and len(numbers) < _MOST:
                    heads.append((name, role, str(tensor.dtype).removeprefix("torch.")))
                    numbers.append(found)
        if not numbers:
            return []
        home = numbers[0].device
        rows = host(torch.stack([one.to(home) for one in numbers])).tolist()
        return [
            LocalValues(*head, row[-1] ** 0.5, tuple(s * _GROUP_SCALE for s in row[:_SUMS]))
            for head, row in zip(heads, rows)
            if all(number - number == 0 for number in row)
        ]

    def _numbers(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The sketch of this rank's part, in float64 on its device; None if it cannot be read."""
        part = local_of(tensor)
        part = (tensor if part is None else part).detach()
        if part.dtype not in FLOATS or part.layout is not torch.strided or not part.numel():
            return None
        if not part.is_contiguous() or not has_memory(part):
            return None
        return self._sketcher.numbers(part.view(-1)[:_ELEMENTS])


def _reduced_over(module: Any, kind: str) -> tuple[int, ...]:
    """The ranks over which a wrapper reduces gradients; empty if it has no group here."""
    groups = [getattr(module, "process_group", None)]
    strategy = getattr(getattr(module, "sharding_strategy", None), "name", "")
    if kind == _FULL and _HYBRID in strategy:
        groups.append(getattr(module, "_inter_node_pg", None))
    ranks = [dist.get_process_group_ranks(group) for group in groups if group is not None]
    return tuple(sorted({rank for some in ranks for rank in some}))
