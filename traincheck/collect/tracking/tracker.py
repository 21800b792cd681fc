"""Find the parameters, gradients, buffers and optimizer state of a process, and name them.

Scans of these variables are in scans.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from traincheck.collect.stats.tensor_stats import TensorStats
from traincheck.collect.tensors.reading import as_plain, groups_of, is_lazy
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.change_detector import ChangeDetector
from traincheck.collect.tracking.live_objects import TrainerThreads, parameters_of
from traincheck.collect.tracking.model_structure import structure
from traincheck.collect.tracking.naming import (
    ByObject,
    Identities,
    Parts,
    Slot,
    class_of,
    is_lent,
    is_readable,
    is_there,
    members,
    table,
)
from traincheck.collect.tracking.scans import Scans
from traincheck.collect.tracking.staggered_scan import StaggeredScan
from traincheck.collect.tracking.tracked_model import ModuleMap, Slots, TrackedModel, this_thread
from traincheck.collect.tracking.tracked_tensor import BUFFER, GRADIENT, PARAMETER, TrackedTensor
from traincheck.schema.claims import Needs
from traincheck.schema.words import is_unowned


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
        self._by_parameter = ByObject[tuple[weakref.ref[torch.Tensor], str, str | None]]()
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
            for tensor, (variable, _) in root.parameters:
                if tensor is not None:
                    yield variable.name, tensor

    def compare_ranks(self) -> None:
        """Other ranks train the same model: take exact fingerprints of parameters if needed."""
        if self.wants("parameter", "ranks"):
            self.detector.compares_ranks = True
            for root in self.live_roots():
                if not root.is_unowned:
                    for parameter, _ in root.parameters.variables.values():
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
        of_previous = previous or root
        old_parameters = {**of_previous.parameters.variables, **root.parameters.variables}
        old_buffers = {**of_previous.buffers.variables, **root.buffers.variables}
        self.roots[root.name] = root
        parameters, buffers, size = {}, {}, 0
        for name, slot, tensor, cls, is_buffer in members(parts):
            if not is_there(tensor):
                # Lazy ones get shape and data in the first forward: repeat the scan
                root.is_tracked &= not is_lazy(tensor)
            elif is_buffer:
                variable = self._follow(em, name, BUFFER, tensor, cls, old_buffers.get(name))
                buffers[name] = slot, variable
            else:
                known = old_parameters.get(name)
                parameters[name] = slot, self._follow_parameter(em, name, tensor, cls, known)
                size += as_plain(tensor).numel()
        root.size = size
        root.parameters = Slots("_parameters", parameters)
        root.buffers = Slots("_buffers", buffers)
        self._record_removed(em, old_parameters, parameters)
        self._record_removed(em, old_buffers, buffers)
        facts = structure(top, root.name, parts)
        for key, value in facts.tokens.items():  # models that differ are ignored
            self.special_ids[key] = value if self.special_ids.get(key, value) == value else None
        write(em, facts)

    def _follow_parameter(
        self,
        em: Emitter,
        name: str,
        tensor: torch.Tensor,
        cls: str | None,
        known: tuple[TrackedTensor, TrackedTensor] | None,
    ) -> tuple[TrackedTensor, TrackedTensor]:
        """Track a parameter and its gradient; a new object under the name is a new variable."""
        variable = self._follow(em, name, PARAMETER, tensor, cls, known[0] if known else None)
        is_same = known is not None and variable is known[0]
        return variable, known[1] if known and is_same else TrackedTensor(name, GRADIENT, cls)

    def _follow(
        self,
        em: Emitter,
        name: str,
        role: str,
        tensor: torch.Tensor,
        cls: str | None,
        known: TrackedTensor | None,
    ) -> TrackedTensor:
        identity = self.identities.of(tensor)
        self._staggered.register(tensor)
        if role == PARAMETER and not (is_unowned(name) and self.name_of(tensor)):
            if self.name_of(tensor) != name:
                self.names_version += 1
            self._by_parameter.keep(tensor, (weakref.ref(tensor), name, cls))
        if known is not None and known.identity == identity:
            return known
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
            gone = old[name]
            variable = gone[0] if isinstance(gone, tuple) else gone
            self.detector.write(em, variable, "gone", None)

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
        for group_index, group in enumerate(groups_of(optimizer)):
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
            held = table(module, "_parameters")
            if held and not unknown.isdisjoint(map(id, held.values())):
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
        for index, group in enumerate(groups_of(optimizer)):
            name = f"{owner}[{index}]"
            unowned = {
                f"{name}.{place}": tensor
                for place, tensor in enumerate(group["params"])
                if is_unowned(self.name_of(tensor) or f"{name}.{place}")
                and is_readable(tensor)
                and not is_lazy(tensor)
            }
            root = self.roots.get(name)
            if root is None and unowned:
                root = self.roots[name] = TrackedModel(optimizer, name, is_unowned=True)
            if root is not None and (unowned or root.parameters.variables):
                old, now = root.parameters.variables, {}
                for path, tensor in unowned.items():
                    slot: Slot = weakref.ref(tensor), None
                    now[path] = slot, self._follow_parameter(em, path, tensor, None, old.get(path))
                root.parameters = Slots("_parameters", now)
                root.size = sum(as_plain(tensor).numel() for tensor in unowned.values())
                self._record_removed(em, old, now)

    def _died(self, root: TrackedModel) -> None:
        if self.on_death is not None and self.roots.get(root.name) is root:
            self.on_death(root)

    def forget_optimizer(self, em: Emitter, owner: str) -> None:
        """An optimizer is dead. Its tensors belong to the next optimizer that holds them."""
        self.scans.forget_optimizer(owner)
        unowned = [name for name in self.roots if name.startswith(f"{owner}[")]
        if unowned:
            names = {
                k: v
                for name in unowned
                for k, v in self.roots.pop(name).parameters.variables.items()
            }
            self._record_removed(em, names, {})
            for key, known in list(self._by_parameter.table.items()):
                if known[1] in names:
                    self._by_parameter.table.pop(key, None)
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
        held = set(map(id, parameters_of(optimizer)))
        for root in list(self.roots.values()):
            if not held.isdisjoint(map(id, root.parameters.tensors())):
                root.thread = here


def known_contents(tracker: Tracker) -> Iterator[tuple[str, str, str | None]]:
    """Role, name and fingerprint of each variable; None if it is not known.

    Variables of models that are gone stay: the garbage collector decides when a model is freed, and
    two runs of one program may differ in that. The name of a state of an optimizer begins with that
    of the optimizer.
    """
    for root in list(tracker.roots.values()):
        for parameter, gradient in root.parameters.variables.values():
            yield PARAMETER, parameter.name, parameter.digest
            yield GRADIENT, gradient.name, gradient.digest if gradient.identity else None
        for buffer in root.buffers.variables.values():
            yield BUFFER, buffer.name, buffer.digest
    for owner, states in tracker.scans.optimizer_states.items():
        for name, state in states.items():
            yield state.role, f"{owner}:{name}", state.digest
