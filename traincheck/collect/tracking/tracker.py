"""Find the parameters, gradients, buffers and optimizer state of a process, and name them.

When the instruments say so, look at them; what a look tells is the business of variables.py.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from collections.abc import Set as AbstractSet
from threading import get_ident
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from traincheck.collect.stats.tensor_stats import Numbers
from traincheck.collect.tensors.norms import norms_of
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.tracking.change_detector import Looker
from traincheck.collect.tracking.idle_models import NO_ROOTS, Rest, due
from traincheck.collect.tracking.model_structure import structure
from traincheck.collect.tracking.naming import (
    Identities,
    LiveModules,
    Parts,
    RootNames,
    class_of,
    is_lent,
    is_there,
    members,
    table,
    unwrap,
)
from traincheck.collect.tracking.optimizer_state_index import Plan
from traincheck.collect.tracking.staggered_scan import Turns
from traincheck.collect.tracking.tracked_model import Root, Slot, still_there, this_thread
from traincheck.collect.tracking.tracked_tensor import BUFFER, GRADIENT, PARAMETER, Variable
from traincheck.schema.apis import Marks, is_loose
from traincheck.schema.claims import Needs

_FEW_MODULES = 512  # known ones, dead or alive


class Tracker:
    """All variables of one process.

    Args:
        needs: of which variables changes are wanted, and how exactly; None for all.
        numbers: which norms are taken.
    """

    def __init__(self, needs: Needs | None, *, numbers: Numbers | None = None) -> None:
        self._numbers = numbers
        self._first_gradient: tuple[weakref.ref[torch.Tensor], int] | None = None
        self.identities = Identities()
        self.looker = Looker(exact=needs is None or needs.exact)
        self._turns = Turns()
        self.roots: dict[str, Root] = {}
        self.created = LiveModules()
        self._needs = needs
        self._names = RootNames()
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], str, Root]] = {}
        self._by_parameter: dict[int, tuple[weakref.ref[torch.Tensor], str, str | None]] = {}
        self._most_modules = _FEW_MODULES
        self._trainers: set[int] = set()  # threads that compute gradients or update
        self._optimizer_state: dict[str, dict[str, Variable]] = {}
        self._plans: dict[str, Plan] = {}
        self.on_death: Callable[[Root], None] | None = None  # told of a model that is about to go
        self.maps = 0  # how often modules were given their paths
        self.names_version = 0  # another number when a parameter got another name
        # Ids of special tokens that configurations of models name; None where they differ.
        self.special_ids: dict[str, int | None] = {}

    def wants(self, role: str, moment: str) -> bool:
        """Whether this view records changes of ``role`` at ``moment``."""
        needs = self._needs
        return needs is None or needs.looks(f"{role}@{moment}") or needs.looks(f"{role}@*")

    def live_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and object of every parameter that is followed."""
        for root in self._live_roots():
            for holder, key, variable, _ in root.parameters.values():
                tensor = holder.get(key)
                if tensor is not None:
                    yield variable.name, tensor

    def compare_ranks(self) -> None:
        """Other ranks train the same model: take exact fingerprints of parameters if asked to."""
        if self.wants("parameter", "ranks"):
            self.looker.compares_ranks = True
            for root in self._live_roots():
                for _, _, parameter, _ in root.parameters.values() if not root.is_loose else ():
                    parameter.exact_only = True

    # -- modules

    def find(self, module: torch.nn.Module) -> tuple[str, Root]:
        """Path and root of a module that is being called; one not seen before is a new root."""
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1], found[2]
        inner = unwrap(module)
        if inner is not module:
            path, root = self.find(inner)
            self._modules[id(module)] = (weakref.ref(module), path, root)
            return path, root
        parents = self._parents()
        root, _ = self._new(self._top(module, parents), parents)
        return self._modules[id(module)][1], root

    def _new(self, top: torch.nn.Module, parents: dict[int, torch.nn.Module]) -> tuple[Root, Parts]:
        root = Root(top, self._name(top, parents), on_death=self._died)
        parts = Parts(top, root.name)
        self._map(root, parts)
        return root, parts

    def _parents(self) -> dict[int, torch.nn.Module]:
        live = list(self.created)
        return {id(child): m for m in live for child in m._modules.values() if child is not None}

    def _name(self, top: torch.nn.Module, parents: dict[int, torch.nn.Module]) -> str:
        """The name of a root. Of one class, the one made first has the first name.

        Whichever is met first: a model that an optimizer forgets does not give its name away.
        """
        for other in self.created:
            if type(other) is type(top) and id(other) not in parents:
                self._names.name(other)
        return self._names.name(top)

    def _top(self, module: torch.nn.Module, parents: dict[int, torch.nn.Module]) -> torch.nn.Module:
        """The outermost live module around this one: a part may be called before the whole."""
        seen = {id(module)}
        while id(module) in parents and id(parents[id(module)]) not in seen:
            module = parents[id(module)]
            seen.add(id(module))
        return unwrap(module)

    def child(
        self, module: torch.nn.Module, root: Root | None, caller: torch.nn.Module | None = None
    ) -> str | None:
        """Path of a module called inside ``root``; None when it hangs nowhere below it.

        caller: the module whose forward calls it. Not all of the root is searched for each of many
        modules that are made where they are called.
        """
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1]
        top = root.ref() if root is not None else None
        if root is None or top is None:
            return None
        if root.checks:
            root.checks -= 1
        elif caller is None or not any(part is module for part in caller._modules.values()):
            return None
        if not root.is_current():
            self._map(root, Parts(top, root.name))
            root.is_tracked = False  # the next track must see what is new
            found = self._modules.get(id(module))
            if found is not None and found[0]() is module:
                return found[1]
        return None

    def _map(self, root: Root, parts: Parts) -> None:
        self.maps += 1
        if len(self._modules) > self._most_modules:  # let go of those that are dead
            self._modules = {i: m for i, m in self._modules.items() if m[0]() is not None}
            self._most_modules = max(_FEW_MODULES, 2 * len(self._modules))
        holders, modules = list[Any](), self._modules
        for name, module in parts:
            known = modules.get(id(module))
            if known is None or known[0]() is not module or known[2] is root:
                modules[id(module)] = (weakref.ref(module), name, root)
            holders += (table(module._modules), table(module._parameters))
        root.holders = holders
        root.seen = root.look()

    # -- variables

    def track(self, em: Emitter, root: Root, parts: Parts | None = None) -> None:
        """Begin to follow the variables of ``root``, or find out what changed in its structure.

        parts: what was mapped just now.
        """
        top = root.ref()
        root.thread = this_thread() or root.thread
        is_current = top is None or parts is not None or root.is_current()
        if top is None or (root.is_tracked and is_current):
            root.is_lent = False
            return
        parts = parts or Parts(top, root.name)
        root.is_lent = is_lent(parts)
        if root.is_lent:
            return
        if not is_current:  # a new root was mapped when it was found
            self._map(root, parts)
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
            ):  # lazy ones get shape and data in the first forward: look again
                root.is_tracked &= tensor is None or not is_lazy(tensor)
            elif is_buffer:
                variable = self._follow(em, name, BUFFER, slot, cls, old_buffers.get(name))
                root.buffers[name] = (*slot, variable)
            else:
                known = old_parameters.get(name)
                root.parameters[name] = self._follow_parameter(em, name, slot, cls, known)
        root.size = sum(h[key].numel() for h, key, _, _ in root.parameters.values())
        self._gone(em, old_parameters, root.parameters)
        self._gone(em, old_buffers, root.buffers)
        facts = structure(top, root.name, parts)
        for key, value in facts["tokens"].items():  # models that differ say nothing
            self.special_ids[key] = value if self.special_ids.get(key, value) == value else None
        em.event("mark", {"text": Marks.MODEL, "data": facts})

    def _follow_parameter(
        self, em: Emitter, name: str, slot: Slot, cls: str | None, known: Any
    ) -> tuple[MutableMapping[str, Any], str, Variable, Variable]:
        """A parameter, and its gradient: another one where another object has the name."""
        variable = self._follow(em, name, PARAMETER, slot, cls, known)
        is_same = known is not None and variable is known[2]
        return (*slot, variable, known[3] if is_same else Variable(name, GRADIENT, cls))

    def _follow(
        self, em: Emitter, name: str, role: str, slot: Slot, cls: str | None, known: Any
    ) -> Variable:
        tensor = slot[0][slot[1]]
        identity = self.identities.of(tensor)
        self._turns.meet(tensor)
        if role == PARAMETER and not (is_loose(name) and self.name_of(tensor)):
            if self.name_of(tensor) != name:
                self.names_version += 1
            self._by_parameter[id(tensor)] = (weakref.ref(tensor), name, cls)
        if known is not None and known[2].identity == identity:
            variable: Variable = known[2]
            return variable
        variable = Variable(name, role, cls)
        variable.bind(identity, tensor)
        numbers = self._numbers
        if numbers is not None and numbers.parameter and role == PARAMETER:
            variable.stats = numbers.of_parameter(em, tensor)
        self.looker.first(em, variable, tensor, "new" if known is None else "replaced")
        return variable

    def _gone(self, em: Emitter, old: dict[str, Any], now: dict[str, Any]) -> None:
        for name in sorted(set(old) - set(now)):
            self.looker.write(em, old[name][2], "gone", None)

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name under which a parameter was found."""
        found = self._by_parameter.get(id(parameter))
        return found[1] if found is not None and found[0]() is parameter else None

    def held(
        self, owner: str, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and parameter of all that an optimizer holds."""
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield self.name_of(parameter) or f"{owner}[{group_index}].{index}", parameter

    def adopt(self, em: Emitter, parameters: Iterable[torch.Tensor]) -> None:
        """Name the parameters that an optimizer was given, by the live modules that own them."""
        unknown = {id(p) for p in parameters if self.name_of(p) is None}
        if not unknown:
            return
        parents = self._parents()
        roots: dict[int, torch.nn.Module] = {}
        for module in list(self.created):
            own = module._parameters
            if own and not unknown.isdisjoint(map(id, own.values())):
                top = self._top(module, parents)
                roots[id(top)] = top
        for top in sorted(roots.values(), key=lambda m: class_of(m).__name__):
            known = self._modules.get(id(top))
            if known is not None and known[0]() is top:
                self.track(em, known[2])
            else:
                self.track(em, *self._new(top, parents))

    def hold(self, em: Emitter, owner: str, optimizer: torch.optim.Optimizer) -> None:
        """Follow what an optimizer holds and no module owns, as a root for each group."""
        for index, group in enumerate(optimizer.param_groups):
            name = f"{owner}[{index}]"
            loose = {
                f"{name}.{place}": tensor
                for place, tensor in enumerate(group["params"])
                if is_loose(self.name_of(tensor) or f"{name}.{place}") and not is_lazy(tensor)
            }
            root = self.roots.get(name)
            if root is None and loose:
                root = self.roots[name] = Root(optimizer, name, is_loose=True)
            if root is not None and (loose or root.parameters):
                self._hold(em, root, loose)

    def _hold(self, em: Emitter, root: Root, loose: dict[str, torch.Tensor]) -> None:
        old, root.parameters = root.parameters, {}
        slots: MutableMapping[str, Any] = weakref.WeakValueDictionary(loose)
        for name in loose:
            found = self._follow_parameter(em, name, (slots, name), None, old.get(name))
            root.parameters[name] = found
        root.holders = [{}, slots]
        root.size = sum(tensor.numel() for tensor in loose.values())
        self._gone(em, old, root.parameters)

    # -- looks

    def before_update(self, em: Emitter, names: AbstractSet[str]) -> None:
        """An optimizer is about to step. names: of the roots that it trains."""
        numbers = self._numbers
        if numbers is not None:
            numbers.before_update(
                tensor
                for root in due(em, self._live_roots(), Rest.keeps_parameters, names)
                for holder, key, _, _ in root.parameters.values()
                if (tensor := holder.get(key)) is not None
            )

    def look_parameters(self, em: Emitter, after: int, names: AbstractSet[str]) -> None:
        """Find the parameters of tracked roots that differ from the last look.

        names: of the roots that an optimizer which has stepped trains.
        """
        numbers, live = self._numbers, self._live_roots()
        roots = due(em, live, Rest.keeps_parameters, names)
        found = [
            (variable, tensor)
            for root in roots
            for holder, key, variable, _ in root.parameters.values()
            if (tensor := holder.get(key)) is not None
        ]
        found = self._turns.due(em.clock.step, found)
        self.looker.still.clear()
        size = sum(root.size for root in live)
        if numbers is not None and numbers.parameter and numbers.takes_parameters(size):
            self._look_with_norms(em, found, after)
        else:
            self.looker.look_all(em, found, after)
        if self.looker.still:
            self._explain_still(em, after, roots)
        if len(live) > 1:
            for root in roots:
                if root.name in names:
                    root.rest.trained()
                root.rest.saw_parameters(em.clock.step, root.holders)

    def _died(self, root: Root) -> None:
        if self.on_death is not None and self.roots.get(root.name) is root:
            self.on_death(root)

    def look_last(self, em: Emitter, after: int, root: Root) -> None:
        """Look at the parameters of a model that is about to go, but for those on a device."""
        slots = [(v, holder.get(key)) for holder, key, v, _ in root.parameters.values()]
        self.looker.look_all(em, [(v, t) for v, t in slots if t is not None and t.is_cpu], after)

    def _explain_still(self, em: Emitter, after: int, roots: list[Root]) -> None:
        still = self.looker.still
        for root in roots:
            for holder, key, parameter, gradient in root.parameters.values():
                tensor = holder.get(key)  # None: the model has died meanwhile
                if tensor is not None and id(parameter) in still and gradient.identity:
                    self.looker.explain(em, gradient, tensor.grad, after)

    def _look_with_norms(
        self, em: Emitter, found: list[tuple[Variable, torch.Tensor]], after: int
    ) -> None:
        if self._numbers is not None:
            holds = self.looker.holds  # unused or frozen: most of some models
            found = [
                (v, tensor)
                for v, tensor in found
                if tensor.grad is not None or not holds(v, tensor)
            ]
            norms = norms_of([tensor for _, tensor in found])
            moves = self._numbers.moves
            for (variable, tensor), norm in zip(found, norms):
                variable.stats = moves.added(norm, tensor) if moves.has_any else norm
            try:
                self.looker.look_all(em, found, after)
            finally:
                for variable, _ in found:
                    variable.stats = b""

    def look_flags(self, em: Emitter, root: Root) -> None:
        """Find parameters that were frozen or unfrozen, in a step in which no look is due."""
        for holder, key, parameter, _ in root.parameters.values():
            tensor = holder.get(key)
            if tensor is not None and tensor.requires_grad is not parameter.requires_grad:
                self.looker.flags(em, parameter, tensor, None)

    def look_gradients(
        self,
        em: Emitter,
        after: int,
        names: AbstractSet[str] = NO_ROOTS,
        *,
        norms: bool = False,
    ) -> None:
        """Find gradients that appeared, vanished or changed, and parameters frozen or unfrozen.

        names: of roots whose gradients were cleared.
        """
        live = self._live_roots()
        roots = due(em, live, Rest.keeps_gradients, names)
        if norms and self._numbers is not None and self._numbers.gradient:
            self._take_norms(roots)
        found: list[tuple[Variable, torch.Tensor | None]] = []
        for root in roots:
            root.first_gradient = None
            for holder, key, parameter, gradient in root.parameters.values():
                tensor = holder.get(key)
                if tensor is None:
                    continue
                if tensor.requires_grad is not parameter.requires_grad:
                    self.looker.flags(em, parameter, tensor, after)
                grad = tensor.grad
                if grad is not None and root.first_gradient is None:
                    root.first_gradient = weakref.ref(tensor), id(grad)
                found.append((gradient, grad))
        self.looker.look_all(em, found, after)
        for gradient, _ in found:
            gradient.stats = b""
        self._first_gradient = next((r.first_gradient for r in live if r.first_gradient), None)
        if len(live) > 1:
            for root in roots:
                root.rest.saw_gradients(em.clock.step, root.holders)

    def has_other_gradients(self) -> bool:
        """Whether a gradient is another tensor than at the last look: the program made its own."""
        if self._first_gradient is None:
            return False
        parameter, known = self._first_gradient[0](), self._first_gradient[1]
        grad = None if parameter is None else parameter.grad
        return grad is not None and id(grad) != known

    def _take_norms(self, roots: list[Root]) -> None:
        """Of all gradients at once: the next look at each records them."""
        found = [
            (gradient, tensor.grad)
            for root in roots
            for holder, key, _, gradient in root.parameters.values()
            if (tensor := holder.get(key)) is not None and tensor.grad is not None
        ]
        for (gradient, _), norm in zip(found, norms_of([g for _, g in found])):
            gradient.stats = norm

    def glance_gradients(
        self, em: Emitter, after: int
    ) -> list[tuple[Variable, torch.Tensor | None]]:
        """Look at gradients that were cleared or written to by hand, before a backward pass.

        The version counter is no hint: ``grad.data.zero_()`` leaves it as it was.
        """
        found: list[tuple[Variable, torch.Tensor | None]] = [
            (gradient, None if (tensor := holder.get(key)) is None else tensor.grad)
            for root in due(em, self._live_roots(), Rest.keeps_gradients, NO_ROOTS)
            for holder, key, _, gradient in root.parameters.values()
            if gradient.identity
        ]
        if found:
            self.looker.glance(em, found, after)
        return found

    def look_buffers(self, em: Emitter, after: int, root: Root) -> None:
        """Find the buffers of ``root`` that differ; one assigned anew is the same variable."""
        found = [
            (variable, tensor)
            for holder, key, variable in root.buffers.values()
            if (tensor := holder.get(key)) is not None
        ]
        self.looker.look_all(em, self._turns.due(em.clock.step, found), after)

    def look_optimizer(
        self, em: Emitter, after: int, owner: str, optimizer: torch.optim.Optimizer
    ) -> None:
        """Find the state tensors of an optimizer that appeared or changed."""
        states = optimizer.state
        plan = self._plans.get(owner)
        if plan is None or not plan.fits(states, self.names_version):
            plan = self._plans[owner] = self._plan(em, after, owner, optimizer)
        found = [
            (variable, tensor)
            for state, tensors in zip(states.values(), plan.tensors)
            for key, variable in tensors
            if isinstance(tensor := state.get(key), torch.Tensor)  # LBFGS keeps a number at times
        ]
        self.looker.look_all(em, found, after)

    def _plan(self, em: Emitter, after: int, owner: str, optimizer: torch.optim.Optimizer) -> Plan:
        known = self._optimizer_state.setdefault(owner, {})
        names = {id(parameter): name for name, parameter in self.held(owner, optimizer)}
        plan = Plan(self.names_version, [], [], [])
        for parameter, state in optimizer.state.items():
            tensors: list[tuple[str, Variable]] = []
            name = names.get(id(parameter))
            for key, value in state.items() if name is not None else ():
                # A counter for each parameter says no more of change than its moments do
                skipped = key == "step" and not self.looker.exact
                if isinstance(value, torch.Tensor) and not skipped:
                    label = f"{name}/{key}"
                    variable = known.get(label)
                    if variable is None:
                        found = self._by_parameter.get(id(parameter))
                        cls = found[2] if found else None
                        variable = known[label] = Variable(label, "optimizer_state", cls, owner)
                        variable.bind(self.identities.of(value), value)
                        self.looker.first(em, variable, value, "new", after)
                    tensors.append((key, variable))
            plan.held.append(id(parameter))
            plan.sizes.append(len(state) if isinstance(state, dict) else 0)
            plan.tensors.append(tensors)
        return plan

    def rebaseline(self, optimizers: Iterable[tuple[str, torch.optim.Optimizer]]) -> None:
        """After steps without looks: later looks compare with what is there now."""
        self._first_gradient = None
        rests = self._turns.rests
        self.looker.baseline_all(pair for pair in self._followed(optimizers) if not rests(*pair))

    def _followed(
        self, optimizers: Iterable[tuple[str, torch.optim.Optimizer]]
    ) -> Iterator[tuple[Variable, torch.Tensor]]:
        """All variables that have a tensor now. Of gradients nothing is known but what is there."""
        for root in self._live_roots():
            root.first_gradient = None
            for holder, key, parameter, gradient in root.parameters.values():
                tensor = holder.get(key)
                if tensor is None or not (root.is_loose or isinstance(tensor, torch.nn.Parameter)):
                    continue  # torch.func has put another in its place for a call
                yield parameter, tensor
                gradient.identity = 0 if tensor.grad is None else id(tensor.grad)
                if tensor.grad is not None:
                    yield gradient, tensor.grad
            for holder, key, buffer in root.buffers.values():
                if (tensor := holder.get(key)) is not None:
                    yield buffer, tensor
        for owner, optimizer in optimizers:
            known = self._optimizer_state.get(owner, {})
            for name, held in self.held(owner, optimizer) if known else ():
                for key, value in optimizer.state.get(held, {}).items():
                    variable = known.get(f"{name}/{key}")
                    if variable is not None and isinstance(value, torch.Tensor):
                        yield variable, value

    def forget_optimizer(self, em: Emitter, owner: str) -> None:
        """An optimizer is dead; what it alone held belongs to whichever holds it now."""
        self._optimizer_state.pop(owner, None)
        self._plans.pop(owner, None)
        loose = [name for name in self.roots if name.startswith(f"{owner}[")]
        if loose:
            names = {k: v for name in loose for k, v in self.roots.pop(name).parameters.items()}
            self._gone(em, names, {})
            self._by_parameter = {i: p for i, p in self._by_parameter.items() if p[1] not in names}
            self.names_version += 1

    def _live_roots(self) -> list[Root]:
        """Those that this thread may look at: not while another computes gradients for them.

        Autograd writes gradients without the interpreter's lock; to read one meanwhile is a crash.
        """
        live = [root for root in list(self.roots.values()) if root.ref() is not None]
        if not self.computes() or (here := this_thread()) is None:
            return live
        others = self._trainers
        return [root for root in live if root.thread == here or root.thread not in others]

    def computes(self) -> bool:
        """This thread computes gradients or updates, or is about to: whether others do so, too."""
        if get_ident() not in self._trainers and (here := this_thread()) is not None:
            self._trainers = still_there(self._trainers) | {here}
        return len(self._trainers) > 1

    def updates(self, optimizer: torch.optim.Optimizer) -> None:
        """This thread updates parameters: whichever computed their gradients is done with them."""
        if not self.computes() or (here := this_thread()) is None:
            return
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for root in list(self.roots.values()):
            if any(id(holder.get(key)) in held for holder, key, *_ in root.parameters.values()):
                root.thread = here
