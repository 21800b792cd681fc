"""Scan variables when an instrument requests it, and only those that may have changed.

change_detector.py decides whether a tensor changed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from traincheck.collect.stats.tensor_stats import TensorStats
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.reading import state_of, states_of
from traincheck.collect.tensors.sums import norms_of
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.tracking.change_detector import ChangeDetector
from traincheck.collect.tracking.naming import Identities
from traincheck.collect.tracking.staggered_scan import NO_ROOTS, IdleState, StaggeredScan, due
from traincheck.collect.tracking.state_records import StateSketches
from traincheck.collect.tracking.tracked_model import TrackedModel
from traincheck.collect.tracking.tracked_tensor import TrackedTensor
from traincheck.handlers import give_back
from traincheck.schema.claims import Schedule


@dataclass(slots=True)
class StateIndex:
    """The tensors of an optimizer's state, in its order, without references to them.

    As long as the ids of the parameters and the sizes of the entries are the same, so are the
    names.
    """

    names: int
    held: list[int]
    sizes: list[int]
    tensors: list[list[tuple[str, TrackedTensor]]]

    def fits(self, states: Mapping[Any, Any], names: int) -> bool:
        # `map` over whole dicts stays in C: a tenth of the time of a loop over entries
        try:
            return (
                names == self.names
                and list(map(id, states)) == self.held
                and list(map(len, states.values())) == self.sizes
            )
        except TypeError as error:  # an optimizer with other objects among the entries
            give_back(error)
            return False


_GLANCES = 16  # backward passes of a step
_SCHEDULE = Schedule(first=4, every=100)


class Variables(Protocol):
    """The variables of a process, as scans see them. names_version: changes when a name changes."""

    identities: Identities
    names_version: int

    def live_roots(self) -> list[TrackedModel]:
        """Models, and other tensors of optimizers, that this thread may scan."""

    def named_parameters(
        self, owner: str, optimizer: torch.optim.Optimizer
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and parameter of everything that an optimizer holds."""

    def class_of(self, parameter: torch.Tensor) -> str | None:
        """The class of the module that owns a parameter."""


class Scans:
    """Scans of the parameters, gradients, buffers and optimizer state of one process.

    Args:
        variables: what is scanned.
        detector: finds the changes and writes them.
        turns: of large tensors, each is looked at in some steps.
        stats: which norms are taken.

    Attributes:
        sketches: makes the sketches of changed tensors; None if they are not recorded.
    """

    def __init__(
        self,
        variables: Variables,
        detector: ChangeDetector,
        turns: StaggeredScan,
        stats: TensorStats | None,
    ) -> None:
        self._variables = variables
        self._detector = detector
        self._staggered = turns
        self._stats = stats
        self.sketches: StateSketches | None = None
        self._first_gradient: tuple[str, weakref.ref[torch.Tensor], int] | None = None
        self._glances = UseSchedule(_GLANCES, _SCHEDULE)  # with norms, of gradients on devices
        self._optimizer_state: dict[str, dict[str, TrackedTensor]] = {}
        self._plans: dict[str, StateIndex] = {}

    def before_update(self, em: Emitter, names: AbstractSet[str]) -> None:
        """An optimizer is about to step. names: of the roots that it trains."""
        stats = self._stats
        if stats is not None:
            stats.before_update(
                tensor
                for root in due(em, self._variables.live_roots(), IdleState.keeps_parameters, names)
                for tensor in root.parameters.tensors()
                if tensor is not None
            )

    def scan_parameters(self, em: Emitter, after: int, names: AbstractSet[str]) -> None:
        """Find the parameters of tracked roots that differ from the last look.

        names: the roots that the stepped optimizer trains.
        """
        stats, live = self._stats, self._variables.live_roots()
        roots = due(em, live, IdleState.keeps_parameters, names)
        found = [
            (variable, tensor)
            for root in roots
            for tensor, (variable, _) in root.parameters
            if tensor is not None
        ]
        found = self._staggered.due(em.clock.step, found)
        self._detector.unchanged.clear()
        size = sum(root.size for root in live)
        if stats is not None and stats.parameter and stats.records_norms(size):
            self._scan_with_norms(em, found, after)
        else:
            self._scan_all(em, found, after)
        if still := self._detector.unchanged:
            for root in roots:
                for tensor, (parameter, gradient) in root.parameters:
                    if tensor is not None and id(parameter) in still and gradient.identity:
                        self._detector.record_why_unchanged(em, gradient, tensor.grad, after)
        if len(live) > 1:
            for root in roots:
                if root.name in names:
                    root.rest.trained()
                root.rest.saw_parameters(em.clock.step, root.parameters.tensors)

    def scan_last(self, em: Emitter, after: int, root: TrackedModel) -> None:
        """Look at the parameters of a model that is about to go, but for those on a device."""
        found = [(v, v.ref()) for v, _ in root.parameters.variables.values() if v.ref is not None]
        self._scan_all(em, [(v, t) for v, t in found if t is not None and t.is_cpu], after)

    def _scan_with_norms(
        self, em: Emitter, found: list[tuple[TrackedTensor, torch.Tensor]], after: int
    ) -> None:
        if self._stats is not None:
            holds = self._detector.is_unchanged  # unused or frozen: most of some models
            found = [
                (v, tensor)
                for v, tensor in found
                if tensor.grad is not None or not holds(v, tensor)
            ]
            norms = norms_of([tensor for _, tensor in found])
            moves = self._stats.moves
            if moves.has_any:
                norms = [moves.added(norm, tensor) for norm, (_, tensor) in zip(norms, found)]
            for (variable, _), norm in zip(found, norms):
                variable.stats = norm
            try:
                self._scan_all(em, found, after)
            finally:
                for variable, _ in found:
                    variable.stats = b""

    def scan_flags(self, em: Emitter, root: TrackedModel) -> None:
        """Find parameters that were frozen or unfrozen, in a step in which no look is due."""
        for tensor, (parameter, _) in root.parameters:
            if tensor is not None and tensor.requires_grad is not parameter.requires_grad:
                self._detector.flags(em, parameter, tensor, None)

    def scan_gradients(
        self,
        em: Emitter,
        after: int,
        names: AbstractSet[str] = NO_ROOTS,
        *,
        norms: bool = False,
    ) -> None:
        """Record gradients that appeared, vanished or changed, and parameters frozen or unfrozen.

        names: the roots whose gradients were cleared.
        """
        live = self._variables.live_roots()
        roots = due(em, live, IdleState.keeps_gradients, names)
        found: list[tuple[TrackedTensor, torch.Tensor | None]] = []
        for root in roots:
            first = None
            for tensor, (parameter, gradient) in root.parameters:
                if tensor is None:
                    continue
                if tensor.requires_grad is not parameter.requires_grad:
                    self._detector.flags(em, parameter, tensor, after)
                grad = tensor.grad
                if first is None and grad is not None:
                    first = weakref.ref(tensor), id(grad)
                found.append((gradient, grad))
            root.first_gradient = first
        if norms and self._stats is not None and self._stats.gradient:
            present = [(variable, grad) for variable, grad in found if grad is not None]
            for (variable, _), norm in zip(present, norms_of([grad for _, grad in present])):
                variable.stats = norm
        self._scan_all(em, found, after)
        for gradient, _ in found:
            gradient.stats = b""
        firsts = ((root.name, *root.first_gradient) for root in live if root.first_gradient)
        self._first_gradient = next(firsts, None)
        if len(live) > 1:
            for root in roots:
                root.rest.saw_gradients(em.clock.step, root.parameters.tensors)

    def has_other_gradients(self) -> bool:
        """Whether a gradient is another tensor than at the last scan: the program assigned it.

        The last scan may have been another thread's, of a model that it still trains.
        """
        if self._first_gradient is None:
            return False
        root, ref, known = self._first_gradient
        if root not in {live.name for live in self._variables.live_roots()}:
            return False
        parameter = ref()
        grad = None if parameter is None else parameter.grad
        return grad is not None and id(grad) != known

    def scan_gradients_before_backward(
        self, em: Emitter, after: int
    ) -> list[tuple[TrackedTensor, torch.Tensor | None]]:
        """Scan gradients that were cleared or written by hand, before a backward pass.

        The version counter is no hint: ``grad.data.zero_()`` does not change it.
        """
        found: list[tuple[TrackedTensor, torch.Tensor | None]] = [
            (gradient, None if tensor is None else tensor.grad)
            for root in due(em, self._variables.live_roots(), IdleState.keeps_gradients, NO_ROOTS)
            for tensor, (_, gradient) in root.parameters
            if gradient.identity
        ]
        if found:
            late = [(v, g) for v, g in found if g is not None and not g.is_cpu]
            takes_norms = self._stats is not None and self._stats.gradient
            if late and takes_norms and self._glances.is_due(em.clock.step):
                for (gradient, _), norm in zip(late, norms_of([g for _, g in late])):
                    gradient.stats = norm
            self._detector.scan_before_backward(em, found, after)
            for gradient, _ in late:
                gradient.stats = b""
        return found

    def scan_buffers(self, em: Emitter, after: int, root: TrackedModel) -> None:
        """Find the buffers of ``root`` that differ; a newly assigned one is the same variable."""
        found = self._staggered.due(em.clock.step, root.buffers_now())
        self._scan_all(em, found, after)

    def scan_optimizer(
        self, em: Emitter, after: int, owner: str, optimizer: torch.optim.Optimizer
    ) -> None:
        """Record the state tensors of an optimizer that appeared or changed."""
        states = states_of(optimizer)
        plan = self._plans.get(owner)
        if plan is None or not plan.fits(states, self._variables.names_version):
            plan = self._plans[owner] = self._plan(em, after, owner, optimizer)
        found = [
            (variable, tensor)
            for state, tensors in zip(states.values(), plan.tensors)
            for key, variable in tensors
            if isinstance(tensor := state.get(key), torch.Tensor)  # LBFGS sometimes stores a number
        ]
        self._scan_all(em, found, after)

    def _scan_all(
        self,
        em: Emitter,
        found: Sequence[tuple[TrackedTensor, torch.Tensor | None]],
        after: int,
    ) -> None:
        """Record which tensors differ from the last scan; with their sketches, if wanted."""
        if self.sketches is None:
            self._detector.scan_all(em, found, after)
        else:
            with self.sketches.of(found):
                self._detector.scan_all(em, found, after)

    def _plan(
        self, em: Emitter, after: int, owner: str, optimizer: torch.optim.Optimizer
    ) -> StateIndex:
        known = self._optimizer_state.setdefault(owner, {})
        named = self._variables.named_parameters(owner, optimizer)
        names = {id(parameter): name for name, parameter in named}
        plan = StateIndex(self._variables.names_version, [], [], [])
        for parameter, state in states_of(optimizer).items():
            tensors: list[tuple[str, TrackedTensor]] = []
            name = names.get(id(parameter))
            for key, value in state.items() if name is not None else ():
                # A counter for each parameter says no more of change than its moments do
                skipped = key == "step" and not self._detector.exact
                if isinstance(value, torch.Tensor) and not skipped:
                    label = f"{name}/{key}"
                    variable = known.get(label)
                    if variable is None:
                        cls = self._variables.class_of(parameter)
                        variable = known[label] = TrackedTensor(
                            label, "optimizer_state", cls, owner
                        )
                        variable.bind(self._variables.identities.of(value), value)
                        if self.sketches is not None:
                            self.sketches.of_new(variable, value)
                        self._detector.start(em, variable, value, "new", after)
                    tensors.append((key, variable))
            plan.held.append(id(parameter))
            plan.sizes.append(len(state) if isinstance(state, dict) else 0)
            plan.tensors.append(tensors)
        return plan

    def rebaseline(self, optimizers: Iterable[tuple[str, torch.optim.Optimizer]]) -> None:
        """After steps without scans: later scans compare with the present content."""
        self._first_gradient = None
        rests = self._staggered.is_stable
        self._detector.baseline_all(pair for pair in self._followed(optimizers) if not rests(*pair))

    def _followed(
        self, optimizers: Iterable[tuple[str, torch.optim.Optimizer]]
    ) -> Iterator[tuple[TrackedTensor, torch.Tensor]]:
        """All variables that have a tensor now. Gradients are known by their presence only."""
        for root in self._variables.live_roots():
            root.first_gradient = None
            for tensor, (parameter, gradient) in root.parameters:
                if tensor is None or not (
                    root.is_unowned or isinstance(tensor, torch.nn.Parameter)
                ):
                    continue  # torch.func has replaced it for a call
                yield parameter, tensor
                gradient.identity = 0 if tensor.grad is None else id(tensor.grad)
                if tensor.grad is not None:
                    yield gradient, tensor.grad
            yield from root.buffers_now()
        for owner, optimizer in optimizers:
            known = self._optimizer_state.get(owner, {})
            for name, held in self._variables.named_parameters(owner, optimizer) if known else ():
                for key, value in (state_of(optimizer, held) or {}).items():
                    variable = known.get(f"{name}/{key}")
                    if variable is not None and isinstance(value, torch.Tensor):
                        yield variable, value

    @property
    def optimizer_states(self) -> Mapping[str, Mapping[str, TrackedTensor]]:
        """The state tensors of each optimizer, by their names."""
        return self._optimizer_state

    def forget_optimizer(self, owner: str) -> None:
        """An optimizer is dead."""
        self._optimizer_state.pop(owner, None)
        self._plans.pop(owner, None)
