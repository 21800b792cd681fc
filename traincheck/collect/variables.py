"""Track parameters, gradients, buffers and optimizer state: find them, name them, tell when they changed.

Looking costs one fingerprint a tensor. In the exact view every look takes the exact one. In the selective view, which only asks
"did it change", a probe of three slices proves most changes; only where the probe is equal is the exact fingerprint taken, and where there is
nothing exact to compare it with, the answer is "unknown", not a guess (docs/adr/0005).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from time import monotonic_ns
from typing import Any

import orjson
import torch

from traincheck.collect.emit import Emitter
from traincheck.collect.fingerprint import (
    components,
    fingerprint,
    finish_device,
    is_plain_cpu,
    probe,
    start_device,
    zero_fingerprint,
)
from traincheck.collect.naming import Identities, RootNames, class_of, unwrap, walk
from traincheck.collect.summarize import dotted

UNKNOWN = "unknown"


class Variable:
    """One named tensor and what was last seen of it."""

    __slots__ = (
        "digest", "exact_only", "fixed", "head", "identity", "is_new", "module_class", "name", "owner", "probe", "requires_grad",
        "role", "shape", "storage", "zero", "zero_digest",
    )  # fmt: skip

    def __init__(
        self, name: str, role: str, module_class: str | None, owner: str | None = None
    ) -> None:
        self.name = name
        self.role = role
        self.module_class = module_class
        self.owner = owner
        self.digest: str | None = None  # exact fingerprint last seen; None when it is not known
        self.probe: str | None = None
        self.exact_only = (
            False  # a probe missed a change once: written in few places, like an embedding
        )
        self.identity = 0
        self.storage = 0
        self.requires_grad = False
        self.is_new = True
        self.head = b""  # serialized dtype, shape and device
        self.fixed = b""  # serialized name, role, identity ...
        self.shape: torch.Size | None = None
        self.zero: bool | None = None
        self.zero_digest: str | None = None


class Root:
    """An outermost module with the variables below it. Holds no strong reference to any of the user's objects but dicts of modules."""

    def __init__(self, module: torch.nn.Module, name: str) -> None:
        self.ref = weakref.ref(module)
        self.name = name
        self.is_tracked = False
        self.slots: list[tuple[dict[str, Any], str, int]] = []
        self.sizes: list[tuple[dict[str, Any], int]] = []
        self.parameters: dict[str, tuple[dict[str, Any], str, Variable, Variable]] = {}
        self.buffers: dict[str, tuple[dict[str, Any], str, Variable]] = {}

    def is_current(self) -> bool:
        """Whether modules and parameters are still the objects that were found; about 60 ns for each."""
        for holder, key, identity in self.slots:
            if id(holder.get(key)) != identity:
                return False
        return all(len(holder) == size for holder, size in self.sizes)


class Tracker:
    """All variables of one process.

    Args:
        states: ``role@moment`` wanted, or None for all.
        exact: whether every look takes exact fingerprints.
    """

    def __init__(self, states: frozenset[str] | None, *, exact: bool) -> None:
        self.identities = Identities()
        self.exact = exact
        self._states = states
        self._names = RootNames()
        self.roots: dict[str, Root] = {}
        self._modules: dict[int, tuple[weakref.ref[torch.nn.Module], str, Root]] = {}
        self._by_parameter: dict[int, tuple[weakref.ref[torch.Tensor], str, str | None]] = {}
        self._optimizer_state: dict[tuple[str, str], Variable] = {}
        self.created: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._pending: list[tuple[Variable, torch.Tensor, torch.Tensor, int | None]] = []

    def wants(self, role: str, moment: str) -> bool:
        """Whether this view records changes of ``role`` at ``moment``."""
        states = self._states
        return states is None or f"{role}@{moment}" in states or f"{role}@*" in states

    # -- discovery

    def find(self, module: torch.nn.Module) -> tuple[str, Root]:
        """Path and root of a module that is being called; a module not seen before is a new root."""
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1], found[2]
        inner = unwrap(module)
        if inner is not module:
            path, root = self.find(inner)
            self._modules[id(module)] = (weakref.ref(module), path, root)
            return path, root
        root = Root(module, self._names.name(module))
        self._map(root, module)
        return root.name, root

    def child(self, module: torch.nn.Module, root: Root | None) -> str | None:
        """Path of a module called inside ``root``; None when it hangs nowhere below it."""
        found = self._modules.get(id(module))
        if found is not None and found[0]() is module:
            return found[1]
        top = root.ref() if root is not None else None
        if root is not None and top is not None and not root.is_current():
            self._map(root, top)
            found = self._modules.get(id(module))
            if found is not None and found[0]() is module:
                return found[1]
        self._modules[id(module)] = (
            weakref.ref(module),
            dotted(class_of(module)),
            root or Root(module, ""),
        )
        return None

    def _map(self, root: Root, top: torch.nn.Module) -> None:
        root.slots, root.sizes = [], []
        for path, module in walk(top):
            name = f"{root.name}.{path}" if path else root.name
            known = self._modules.get(id(module))
            if known is None or known[0]() is not module or known[2] is root:
                self._modules[id(module)] = (weakref.ref(module), name, root)
            root.sizes += [
                (module._modules, len(module._modules)),
                (module._parameters, len(module._parameters)),
            ]
            root.slots += [
                (module._modules, key, id(child)) for key, child in module._modules.items()
            ]
            root.slots += [
                (module._parameters, key, id(p)) for key, p in module._parameters.items()
            ]

    def track(self, em: Emitter, root: Root) -> None:
        """Begin to follow the variables of ``root``, or find out what changed in its structure."""
        top = root.ref()
        if top is None or (root.is_tracked and root.is_current()):
            return
        self._map(root, top)
        root.is_tracked = True
        previous = self.roots.get(root.name)
        old = {**(previous.parameters if previous else {}), **root.parameters}
        old_buffers = {**(previous.buffers if previous else {}), **root.buffers}
        self.roots[root.name] = root
        root.parameters, root.buffers = {}, {}
        for path, module in walk(top):
            prefix = f"{root.name}.{path}" if path else root.name
            owner_class = dotted(class_of(module))
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    self._add_parameter(
                        em, root, f"{prefix}.{key}", (module._parameters, key), owner_class, old
                    )
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    self._add_buffer(
                        em,
                        root,
                        f"{prefix}.{key}",
                        (module._buffers, key),
                        owner_class,
                        old_buffers,
                    )
        for name in sorted(set(old) - set(root.parameters)):
            self._write(em, old[name][2], "gone", None, None)
        for name in sorted(set(old_buffers) - set(root.buffers)):
            self._write(em, old_buffers[name][2], "gone", None, None)

    def _add_parameter(
        self,
        em: Emitter,
        root: Root,
        name: str,
        slot: tuple[dict[str, Any], str],
        owner_class: str,
        old: dict[str, Any],
    ) -> None:
        parameter = slot[0][slot[1]]
        known = old.get(name)
        identity = self.identities.of(parameter)
        self._by_parameter[id(parameter)] = (weakref.ref(parameter), name, owner_class)
        if known is not None and known[2].identity == identity:
            root.parameters[name] = (*slot, known[2], known[3])
            return
        variable = Variable(name, "parameter", owner_class)
        gradient = Variable(name, "gradient", owner_class)
        root.parameters[name] = (*slot, variable, gradient)
        self._first(em, variable, parameter, "new" if known is None else "replaced")

    def _add_buffer(
        self,
        em: Emitter,
        root: Root,
        name: str,
        slot: tuple[dict[str, Any], str],
        owner_class: str,
        old: dict[str, Any],
    ) -> None:
        buffer = slot[0][slot[1]]
        known = old.get(name)
        if known is not None and known[2].identity == self.identities.of(buffer):
            root.buffers[name] = (*slot, known[2])
            return
        variable = Variable(name, "buffer", owner_class)
        root.buffers[name] = (*slot, variable)
        self._first(em, variable, buffer, "new" if known is None else "replaced")

    def _first(
        self,
        em: Emitter,
        variable: Variable,
        tensor: torch.Tensor,
        change: str,
        after: int | None = None,
    ) -> None:
        variable.identity = self.identities.of(tensor)
        variable.storage = _storage(tensor)
        variable.requires_grad = tensor.requires_grad
        self.baseline(variable, tensor)
        self._write(em, variable, change, tensor, variable.digest, after)

    def baseline(self, variable: Variable, tensor: torch.Tensor) -> None:
        """Remember what ``tensor`` holds without recording anything."""
        variable.is_new = False
        if is_plain_cpu(tensor):
            variable.digest = fingerprint(tensor)
            variable.probe = None if self.exact else probe(tensor)
            variable.zero_digest = zero_fingerprint(tensor) if variable.role == "gradient" else None
        elif tensor.is_cpu:
            variable.digest = fingerprint(tensor)
            variable.exact_only = True
        else:
            variable.digest = fingerprint(tensor)
            variable.exact_only = True

    def name_of(self, parameter: torch.Tensor) -> str | None:
        """The name under which a parameter was found."""
        found = self._by_parameter.get(id(parameter))
        return found[1] if found is not None and found[0]() is parameter else None

    def adopt(self, em: Emitter, parameters: Iterable[torch.Tensor]) -> None:
        """Name the parameters that an optimizer was given, by looking for the live modules that own them."""
        unknown = {id(p) for p in parameters if self.name_of(p) is None}
        if not unknown:
            return
        live = list(self.created)
        parents = {
            id(child): module
            for module in live
            for child in module._modules.values()
            if child is not None
        }
        owners = [m for m in live if any(id(p) in unknown for p in m._parameters.values())]
        roots: dict[int, torch.nn.Module] = {}
        for module in owners:
            top, seen = module, {id(module)}
            while id(top) in parents and id(parents[id(top)]) not in seen:
                top = parents[id(top)]
                seen.add(id(top))
            roots[id(unwrap(top))] = unwrap(top)
        for top in sorted(
            roots.values(), key=lambda m: (class_of(m).__name__, self.identities.of(m))
        ):
            self.track(em, self.find(top)[1])

    # -- looks

    def look_parameters(self, em: Emitter, after: int) -> None:
        """Find the parameters of all tracked roots that differ from the last look."""
        for root in self._live_roots():
            for holder, key, variable, _ in root.parameters.values():
                tensor = holder.get(key)
                if tensor is not None:
                    self._look(em, variable, tensor, after)

    def look_gradients(self, em: Emitter, after: int) -> None:
        """Find the gradients that appeared, vanished or changed."""
        for root in self._live_roots():
            for holder, key, parameter, variable in root.parameters.values():
                tensor = holder.get(key)
                if tensor is None:
                    continue
                if tensor.requires_grad is not parameter.requires_grad:
                    self._flags(em, parameter, tensor, after)
                self._look_gradient(em, variable, tensor.grad, after)

    def _look_gradient(
        self, em: Emitter, variable: Variable, gradient: torch.Tensor | None, after: int
    ) -> None:
        if gradient is None:
            if variable.identity:
                variable.identity, variable.digest, variable.zero = 0, None, None
                self._write(em, variable, "cleared", None, None, after)
        elif variable.identity:
            if variable.identity != id(gradient):
                variable.identity, variable.digest = id(gradient), None
            self._look(em, variable, gradient, after)
        else:
            variable.identity = id(gradient)
            self._appeared(em, variable, gradient, after)

    def _appeared(
        self, em: Emitter, variable: Variable, gradient: torch.Tensor, after: int
    ) -> None:
        if is_plain_cpu(gradient):
            if variable.zero_digest is None or variable.shape != gradient.shape:
                variable.zero_digest = zero_fingerprint(gradient)
            if self.exact or variable.exact_only:
                variable.digest = found = fingerprint(gradient)
            else:
                variable.probe = found = probe(gradient)
                variable.digest = None
                if found == _zero_probe(gradient):
                    variable.digest = found = fingerprint(gradient)
            variable.zero = found == variable.zero_digest
            self._write(em, variable, "set", gradient, found, after)
        elif gradient.is_cpu:
            variable.digest, variable.exact_only = fingerprint(gradient), True
            variable.zero = not bool(torch.count_nonzero(_values(gradient)))
            self._write(em, variable, "set", gradient, variable.digest, after)
        else:
            self._defer(variable, gradient, after)

    def look_buffers(self, em: Emitter, after: int, root: Root) -> None:
        """Find the buffers of ``root`` that differ; a buffer that was assigned anew is the same variable."""
        for holder, key, variable in root.buffers.values():
            tensor = holder.get(key)
            if tensor is not None:
                self._look(em, variable, tensor, after)

    def look_optimizer(
        self, em: Emitter, after: int, owner: str, optimizer: torch.optim.Optimizer
    ) -> None:
        """Find the state tensors of an optimizer that appeared or changed."""
        for name, parameter in self.held(owner, optimizer):
            for key, value in optimizer.state.get(parameter, {}).items():
                if not isinstance(value, torch.Tensor):
                    continue
                variable = self._optimizer_state.get((owner, label := f"{name}/{key}"))
                if variable is None:
                    known = self._by_parameter.get(id(parameter))
                    variable = Variable(
                        label, "optimizer_state", known[2] if known else None, owner
                    )
                    self._optimizer_state[owner, label] = variable
                    self._first(em, variable, value, "new", after)
                else:
                    self._look(em, variable, value, after)

    def held(
        self, owner: str, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and parameter of all that an optimizer holds."""
        for group_index, group in enumerate(optimizer.param_groups):
            for index, parameter in enumerate(group["params"]):
                yield self.name_of(parameter) or f"{owner}[{group_index}].{index}", parameter

    def rebaseline(self, optimizers: Iterable[tuple[str, torch.optim.Optimizer]]) -> None:
        """After steps that were not recorded: what is there now is what later looks compare with."""
        for root in self._live_roots():
            for holder, key, parameter, gradient in root.parameters.values():
                tensor = holder.get(key)
                if tensor is None:
                    continue
                self.baseline(parameter, tensor)
                gradient.identity = 0 if tensor.grad is None else id(tensor.grad)
                if tensor.grad is not None:
                    self.baseline(gradient, tensor.grad)
            for holder, key, buffer in root.buffers.values():
                if holder.get(key) is not None:
                    self.baseline(buffer, holder[key])
        for owner, optimizer in optimizers:
            for name, held in self.held(owner, optimizer):
                for key, value in optimizer.state.get(held, {}).items():
                    variable = self._optimizer_state.get((owner, f"{name}/{key}"))
                    if variable is not None and isinstance(value, torch.Tensor):
                        self.baseline(variable, value)

    def _live_roots(self) -> list[Root]:
        return [root for root in self.roots.values() if root.ref() is not None]

    def _look(self, em: Emitter, variable: Variable, tensor: torch.Tensor, after: int) -> None:
        if not is_plain_cpu(tensor):
            if tensor.is_cpu:
                self._compare(em, variable, tensor, fingerprint(tensor), after)
            else:
                self._defer(variable, tensor, after)
            return
        if self.exact or variable.exact_only:
            self._compare(em, variable, tensor, fingerprint(tensor), after)
            return
        found = probe(tensor)
        if found != variable.probe:
            variable.probe, variable.digest = found, None
            if variable.role == "gradient":
                if found == _zero_probe(tensor):
                    variable.digest = found = fingerprint(tensor) or found
                variable.zero = found == variable.zero_digest
            self._write(em, variable, "content", tensor, found, after)
            return
        digest = fingerprint(tensor)
        if variable.digest is None:
            variable.digest, variable.exact_only = digest, True
            self._write(em, variable, UNKNOWN, tensor, digest, after)
        else:
            variable.exact_only = digest != variable.digest
            self._compare(em, variable, tensor, digest, after)

    def _compare(
        self,
        em: Emitter,
        variable: Variable,
        tensor: torch.Tensor,
        digest: str | None,
        after: int | None,
    ) -> None:
        if digest != variable.digest:
            variable.digest = digest
            if variable.role == "gradient":
                variable.zero = digest == variable.zero_digest
            self._write(em, variable, "content", tensor, digest, after)
        elif variable.role != "gradient" and tensor.requires_grad is not variable.requires_grad:
            self._flags(em, variable, tensor, after)

    def _flags(
        self, em: Emitter, variable: Variable, tensor: torch.Tensor, after: int | None
    ) -> None:
        variable.requires_grad = tensor.requires_grad
        self._write(em, variable, "flags", tensor, variable.digest, after)

    def _write(
        self,
        em: Emitter,
        variable: Variable,
        change: str,
        tensor: torch.Tensor | None,
        digest: str | None,
        after: int | None = None,
    ) -> None:
        if tensor is not None:
            if variable.shape != tensor.shape:
                variable.shape, variable.head = tensor.shape, _head(tensor)
            if variable.role != "gradient" and tensor.requires_grad is not variable.requires_grad:
                variable.requires_grad, variable.fixed = tensor.requires_grad, b""
        if change not in _REPEATED:
            variable.fixed = b""
        body = variable.fixed or _fixed(variable)
        if tensor is not None:
            mark = b"" if digest is None else b',"fingerprint":"%b"' % digest.encode()
            body = b'%b,"change":"%b","summary":%b%b%b}' % (
                body, change.encode(), variable.head, mark, _ZERO[variable.zero]
            )  # fmt: skip
        else:
            body = b'%b,"change":"%b"' % (body, change.encode())
        em.state(monotonic_ns(), body if after is None else b'%b,"after":%d' % (body, after))

    # -- devices: digests are computed where the tensor is and read once a step

    def _defer(self, variable: Variable, tensor: torch.Tensor, after: int | None) -> None:
        parts = components(tensor)
        if parts is not None and len(parts) == 1:
            self._pending.append((variable, tensor, start_device(parts[0]), after))

    def resolve(self, em: Emitter) -> None:
        """Read the digests that looks left on devices: one copy for all of them."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        words = torch.stack([entry[2].to(pending[0][2].device) for entry in pending]).tolist()
        for (variable, tensor, _, after), pair in zip(pending, words):
            digest = finish_device(pair, tensor)
            appeared = variable.role == "gradient" and variable.digest is None
            if variable.role == "gradient" and variable.zero_digest is None:
                variable.zero_digest = finish_device(
                    start_device(torch.zeros_like(tensor)).tolist(), tensor
                )
            if appeared:
                variable.digest, variable.zero = digest, digest == variable.zero_digest
                self._write(em, variable, "set", tensor, digest, after)
            else:
                self._compare(em, variable, tensor, digest, after)


_ZERO = {None: b"", True: b',"zero":true', False: b',"zero":false'}
_REPEATED = frozenset({"content", "set", "cleared", UNKNOWN})  # the variable itself is as it was


def _fixed(variable: Variable) -> bytes:
    """The fields of a variable that stay the same from look to look, serialized once."""
    fields: dict[str, Any] = {"name": variable.name, "role": variable.role}
    if variable.requires_grad:
        fields["requires_grad"] = True
    if variable.role != "gradient":  # of a gradient it is a memory address: no use to a reader
        fields["identity"] = variable.identity
    if variable.storage:
        fields["storage"] = variable.storage
    if variable.module_class is not None:
        fields["module_class"] = variable.module_class
    if variable.owner is not None:
        fields["owner"] = variable.owner
    variable.fixed = orjson.dumps(fields)[1:-1]
    return variable.fixed


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (
        RuntimeError,
        NotImplementedError,
        AttributeError,
    ):  # sparse, meta and wrapped tensors have none
        return 0


def _values(tensor: torch.Tensor) -> torch.Tensor:
    return (
        tensor.detach().coalesce().values()
        if tensor.layout is torch.sparse_coo
        else tensor.detach()
    )


def _head(tensor: torch.Tensor) -> bytes:
    fields = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": [int(size) for size in tensor.shape],
        "device": str(tensor.device),
    }
    return orjson.dumps(fields)[:-1]


def _zero_probe(tensor: torch.Tensor) -> str:
    key = (tensor.dtype, tensor.shape)
    found = _zero_probes.get(key)
    if found is None:
        found = _zero_probes[key] = probe(torch.zeros(tensor.shape, dtype=tensor.dtype))
    return found


_zero_probes: dict[tuple[torch.dtype, torch.Size], str] = {}
