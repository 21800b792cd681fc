"""Find the parameters, gradients, buffers and optimizer state of a process, and name them.

Scans of these variables are in scans.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from traincheck.collect.stats.tensor_stats import TensorStats
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.change_detector import ChangeDetector
from traincheck.collect.tracking.model_structure import structure
from traincheck.collect.tracking.module_map import ModuleMap
from traincheck.collect.tracking.naming import (
    Identities,
    Parts,
    class_of,
    is_lent,
    is_there,
    members,
)
from traincheck.collect.tracking.scans import Scans
from traincheck.collect.tracking.staggered_scan import StaggeredScan
from traincheck.collect.tracking.tracked_model import Slot, TrackedModel, this_thread
from traincheck.collect.tracking.tracked_tensor import BUFFER, GRADIENT, PARAMETER, TrackedTensor
from traincheck.collect.tracking.trainer_threads import TrainerThreads
from traincheck.schema.claims import Needs
from traincheck.schema.parameter_names import is_unowned


class Tracker:
    """All variables of one process.

    Args:
        needs: of which variables changes are wanted, and how exactly; None for all.
        stats: which norms are taken.
    """

    def __init__(self, needs: Needs | None, *, stats: TensorStats | None = None) -> None:
        self._stats = stats
        self.identities = Identities()
        self.detector = ChangeDetector(exact=needs is None or needs.exact)
        self._staggered = StaggeredScan()
        self.modules = ModuleMap(self._died)
        self.scans = Scans(self, self.detector, self._staggered, stats)
        self.roots: dict[str, TrackedModel] = {}
        self._needs = needs
        self._by_parameter: dict[int, tuple[weakref.ref[torch.Tensor], str, str | None]] = {}
        self.trainers = TrainerThreads()
        self.on_death: Callable[[TrackedModel], None] | None = (
            None  # called with a model that is about to be freed
        )
        self.names_version = 0  # changes when a name changes
        # Ids of special tokens that configurations of models name; None where they differ.
        self.special_ids: dict[str, int | None] = {}

    def wants(self, role: str, moment: str) -> bool:
        """Whether this view records changes of ``role`` at ``moment``."""
        needs = self._needs
        return needs is None or needs.scans(f"{role}@{moment}") or needs.scans(f"{role}@*")

    def live_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and object of every tracked parameter."""
        for root in self.live_roots():
            for holder, key, variable, _ in root.parameters.values():
                tensor = holder.get(key)
                if tensor is not None:
                    yield variable.name, tensor

    def compare_ranks(self) -> None:
        """Other ranks train the same model: take exact fingerprints of parameters if needed."""
        if self.wants("parameter", "ranks"):
            self.detector.compares_ranks = True
            for root in self.live_roots():
                for _, _, parameter, _ in root.parameters.values() if not root.is_unowned else ():
                    parameter.exact_only = True

    def track(self, em: Emitter, root: TrackedModel, parts: Parts | None = None) -> None:
        """Begin to track the variables of ``root``, or update them after a change of structure.

        parts: the parts that were just mapped.
        """
        top = root.ref()
        root.thread = this_thread() or root.thread
        is_current = top is None or parts is not None or root.is_current()
        if top is None or (root.is_tracked and is_current):
            root.has_functional_params = False
            return
        parts = parts or Parts(top, root.name)
        root.has_functional_params = is_lent(parts)
        if root.has_functional_params:
            return
        if not is_current:  # a new root was mapped when it was found
            self.modules.map(root, parts)
        root.is_tracked = True
        previous = self.roots.get(root.name)
        old_parameters = {**(previous.parameters if previous else {}), **root.parameters}
        old_buffers = {**(previous.buffers if previous else {}), **root.buffers}
        self.roots[root.name] = root
        root.parameters, root.buffers = {}, {}
        for name, slot, cls, is_buffer in members(parts):
            tensor = slot[0].get(slot[1])
            if not is_there(
                tensor
            ):  # lazy ones get shape and data in the first forward: repeat the scan
                root.is_tracked &= tensor is None or not is_lazy(tensor)
            elif is_buffer:
                variable = self._follow(em, name, BUFFER, slot, cls, old_buffers.get(name))
                root.buffers[name] = (*slot, variable)
            else:
                known = old_parameters.get(name)
                root.parameters[name] = self._follow_parameter(em, name, slot, cls, known)
        root.size = sum(h[key].numel() for h, key, _, _ in root.parameters.values())
        self._record_removed(em, old_parameters, root.parameters)
        self._record_removed(em, old_buffers, root.buffers)
        facts = structure(top, root.name, parts)
        for key, value in facts.tokens.items():  # models that differ are ignored
            self.special_ids[key] = value if self.special_ids.get(key, value) == value else None
        write(em, facts)

    def _follow_parameter(
        self, em: Emitter, name: str, slot: Slot, cls: str | None, known: Any
    ) -> tuple[MutableMapping[str, Any], str, TrackedTensor, TrackedTensor]:
        """Track a parameter and its gradient; a new object under the name is a new variable."""
        variable = self._follow(em, name, PARAMETER, slot, cls, known)
        is_same = known is not None and variable is known[2]
        return (*slot, variable, known[3] if is_same else TrackedTensor(name, GRADIENT, cls))

    def _follow(
        self, em: Emitter, name: str, role: str, slot: Slot, cls: str | None, known: Any
    ) -> TrackedTensor:
        tensor = slot[0][slot[1]]
        identity = self.identities.of(tensor)
        self._staggered.register(tensor)
        if role == PARAMETER and not (is_unowned(name) and self.name_of(tensor)):
            if self.name_of(tensor) != name:
                self.names_version += 1
            self._by_parameter[id(tensor)] = (weakref.ref(tensor), name, cls)
        if known is not None and known[2].identity == identity:
            variable: TrackedTensor = known[2]
            return variable
        variable = TrackedTensor(name, role, cls)
        variable.bind(identity, tensor)
        stats = self._stats
        if stats is not None and stats.parameter and role == PARAMETER:
            variable.stats = stats.for_parameter(em, tensor)
        if self.scans.sketches is not None:
            self.scans.sketches.of_new(variable, tensor)
        self.detector.start(em, variable, tensor, "new" if known is None else "replaced")
        return variable

    def _record_removed(self, em: Emitter, old: dict[str, Any], now: dict[str, Any]) -> None:
        for name in sorted(set(old) - set(now)):
            self.detector.write(em, old[name][2], "gone", None)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name of a parameter."""
        found = self._by_parameter.get(id(parameter))
        return found[1] if found is not None and found[0]() is parameter else None

    def class_of(self, parameter: torch.Tensor) -> str | None:
        """The class of the module that owns a parameter."""
        found = self._by_parameter.get(id(parameter))
        return found[2] if found is not None else None

    def named_parameters(
        self, owner: str, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and parameter of everything that an optimizer holds."""
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield self.name_of(parameter) or f"{owner}[{group_index}].{index}", parameter

    def name_parameters(self, em: Emitter, parameters: Iterable[torch.Tensor]) -> None:
        """Name the parameters that an optimizer was given, by the live modules that own them."""
        unknown = {id(p) for p in parameters if self.name_of(p) is None}
        if not unknown:
            return
        parents = self.modules.parents()
        roots: dict[int, torch.nn.Module] = {}
        for module in list(self.modules.created):
            own = module._parameters
            if own and not unknown.isdisjoint(map(id, own.values())):
                top = self.modules.top(module, parents)
                roots[id(top)] = top
        for top in sorted(roots.values(), key=lambda m: class_of(m).__name__):
            known = self.modules.root_of(top)
            if known is not None:
                self.track(em, known)
            else:
                self.track(em, *self.modules.new(top, parents))

    def track_unowned(self, em: Emitter, owner: str, optimizer: torch.optim.Optimizer) -> None:
        """Follow what an optimizer holds and no module owns, as a root for each group."""
        for index, group in enumerate(optimizer.param_groups):
            name = f"{owner}[{index}]"
            unowned = {
                f"{name}.{place}": tensor
                for place, tensor in enumerate(group["params"])
                if is_unowned(self.name_of(tensor) or f"{name}.{place}") and not is_lazy(tensor)
            }
            root = self.roots.get(name)
            if root is None and unowned:
                root = self.roots[name] = TrackedModel(optimizer, name, is_unowned=True)
            if root is not None and (unowned or root.parameters):
                self._track_unowned(em, root, unowned)

    def _track_unowned(
        self, em: Emitter, root: TrackedModel, unowned: dict[str, torch.Tensor]
    ) -> None:
        old, root.parameters = root.parameters, {}
        slots: MutableMapping[str, Any] = weakref.WeakValueDictionary(unowned)
        for name in unowned:
            found = self._follow_parameter(em, name, (slots, name), None, old.get(name))
            root.parameters[name] = found
        root.holders = [{}, slots]
        root.size = sum(tensor.numel() for tensor in unowned.values())
        self._record_removed(em, old, root.parameters)

    def _died(self, root: TrackedModel) -> None:
        if self.on_death is not None and self.roots.get(root.name) is root:
            self.on_death(root)

    def forget_optimizer(self, em: Emitter, owner: str) -> None:
        """An optimizer is dead. Its tensors belong to the next optimizer that holds them."""
        self.scans.forget_optimizer(owner)
        unowned = [name for name in self.roots if name.startswith(f"{owner}[")]
        if unowned:
            names = {k: v for name in unowned for k, v in self.roots.pop(name).parameters.items()}
            self._record_removed(em, names, {})
            self._by_parameter = {i: p for i, p in self._by_parameter.items() if p[1] not in names}
            self.names_version += 1

    def live_roots(self) -> list[TrackedModel]:
        """The roots that this thread may scan: not those for which another one computes gradients.

        Autograd writes gradients without the interpreter lock; reading one meanwhile crashes.
        """
        live = [root for root in list(self.roots.values()) if root.ref() is not None]
        if not self.trainers.register() or (here := this_thread()) is None:
            return live
        others = self.trainers
        return [root for root in live if root.thread == here or root.thread not in others]

    def note_update(self, optimizer: torch.optim.Optimizer) -> None:
        """This thread updates parameters: whichever computed their gradients is done with them."""
        if not self.trainers.register() or (here := this_thread()) is None:
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for root in list(self.roots.values()):
            if any(id(holder.get(key)) in held for holder, key, *_ in root.parameters.values()):
                root.thread = here
