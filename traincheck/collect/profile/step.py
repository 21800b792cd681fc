"""One profiled step: what the moments, the mode and the hooks of nodes tell it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any, NamedTuple

import torch

from traincheck.collect.profile.clock import BACKWARD, Position, StepClock, Timeline
from traincheck.collect.profile.finite import FiniteWatch
from traincheck.collect.profile.flops import untaped
from traincheck.collect.profile.graph import Graph, next_number
from traincheck.collect.profile.layers import (
    Layers,
    LayerStep,
    bytes_of,
    flowing,
    forms,
    tensors_in,
)
from traincheck.collect.profile.memory import MemoryWatch, size_of
from traincheck.collect.tensors import devices
from traincheck.collect.tensors.reading import (
    as_plain,
    gradient_of,
    groups_of,
    is_a,
    sequence_of,
    state_of,
    unseen,
)
from traincheck.collect.trace_writer.call_site import outside

_Tensors = list[torch.Tensor]


class Frame(NamedTuple):
    """An open call of a module."""

    call: int
    row: int
    before: Position
    allocated: int
    nodes: int


class StepProfile:
    """The facts of one step, until it is closed.

    Args:
        layers: the rows, which outlive the step.
        clock: of the step.
        fault: counts failures of traincheck.

    Attributes:
        is_open: whether the step goes on; hooks of nodes may outlive it.
        exchanges: whether ranks exchange gradients within backward passes.
        updates: how often an optimizer stepped.
        uncounted, unseen: see `ProfileEvent`.
        states: bytes of optimizer states.
    """

    def __init__(
        self, layers: Layers, clock: StepClock, fault: Callable[[Any, BaseException], None]
    ) -> None:
        self.layers, self.fault = layers, fault
        self.timeline = Timeline(clock)
        self.clock = clock
        self.steps: dict[int, LayerStep] = {}
        self.finite = FiniteWatch(self._name_of)
        self.memory = MemoryWatch(self._known(), is_cuda=clock.name == devices.KIND)
        self.is_open = True
        self.exchanges = layers.are_exchanged
        self.updates = 0
        self.uncounted: Counter[str] = Counter()
        self.unseen: Counter[str] = Counter()
        self.gradients: dict[int, int] = {}
        self.states: dict[int, int] = {}
        self.inputs: list[Any] = []
        self.inputs_kind: str | None = None
        self.backward_depth = 0
        self.sees_operations = False
        self._names: dict[int, str] = {}
        self._thread = get_ident()
        self._graphs: dict[int, Graph] = {self._thread: Graph(self)}
        self.timeline.resume()

    # -- rows

    def layer(self, row: int) -> LayerStep:
        """The facts of a row in this step."""
        found = self.steps.get(row)
        if found is None:
            found = self.steps[row] = LayerStep()
        return found

    def _known(self) -> list[tuple[int, int] | None]:
        tables = ("_parameters", "_buffers")
        return [
            size_of(tensor)
            for row in self.layers.rows
            for table in tables
            for _, tensor in row.own(table)
        ]

    def _name_of(self, tensor: torch.Tensor) -> str | None:
        for row in self.layers.rows:
            for name, parameter in row.own("_parameters"):
                if parameter is tensor:
                    return name
        return None

    # -- threads

    def is_mine(self) -> bool:
        """Whether this thread trains, or computes gradients for it."""
        return get_ident() == self._thread or self.backward_depth > 0

    def graph(self) -> Graph:
        """The graph of this thread."""
        ident = get_ident()
        found = self._graphs.get(ident)
        if found is None:
            found = self._graphs[ident] = Graph(self)
        return found

    # -- modules

    def enter(self, module: torch.nn.Module, args: Any, kwargs: Any) -> Frame:
        """A module is called."""
        timeline = self.timeline
        timeline.pause()
        with unseen():
            before = timeline.here
            caller = timeline.calls[before.call][0]
            rows = len(self.layers.rows)
            row = self.layers.row(module, caller)
            if len(self.layers.rows) != rows:
                self.memory.exclude(self._known())
                self.exchanges = self.layers.are_exchanged
            is_again = self.backward_depth > 0
            call = timeline.enter(row, is_again=is_again)
            layer = self.layer(row)
            if is_again:
                layer.recomputed += 1
            else:
                layer.calls += 1
            tensors = list(tensors_in((*args, *kwargs.values())))
            if not is_again:
                self._take_inputs(layer, tensors, is_root=before.call == 0)
            graph = self.graph()
            graph.enter(call)
            frame = Frame(call, row, before, self.memory.allocated(call), next_number())
        timeline.resume()
        return frame

    def _take_inputs(self, layer: LayerStep, tensors: _Tensors, *, is_root: bool) -> None:
        found = forms(tensors)
        if layer.inputs is None:
            layer.inputs, layer.input_bytes = found, bytes_of(tensors)
            if torch.is_grad_enabled():
                layer.flow_in = flowing(tensors)
        elif layer.inputs != found:
            layer.varies = True
        if is_root and not self.inputs:
            self.inputs = [list(form) for form in found]
        layer.arrivals.update(_places(tensors))

    def leave(self, frame: Frame, result: Any, *, has_raised: bool = False) -> None:
        """It returns. Outermost modules show their graph then."""
        timeline = self.timeline
        timeline.pause()
        with unseen():
            layer = self.layer(frame.row)
            graph = self.graph()
            graph.enter(frame.before.call)
            if not has_raised:
                tensors = list(tensors_in(result))
                self._take_outputs(layer, tensors, is_again=self.backward_depth > 0)
                if not self.backward_depth:
                    self._count_untaped(layer, frame, tensors)
                is_root = frame.before.call == 0 and not self.backward_depth
                if is_root:
                    graph.walk(map(_node_of, tensors))
            grown = self.memory.allocated(frame.call) - frame.allocated
            layer.grown_forward = max(layer.grown_forward, grown)
        timeline.go(*frame.before)

    def _count_untaped(self, layer: LayerStep, frame: Frame, outputs: _Tensors) -> None:
        """A call of a module without others that made no node: no parameter of it is trained."""
        if len(self.timeline.calls) - 1 != frame.call or next_number() != frame.nodes:
            return
        module = self.layers.rows[frame.row].module
        counted = None if module is None or not outputs else untaped(module, layer.inputs, outputs)
        if counted is None:
            self.unseen["FLOPs of calls without gradients"] += 1
        else:
            layer.untaped += counted

    def _take_outputs(self, layer: LayerStep, tensors: _Tensors, *, is_again: bool) -> None:
        if layer.outputs is None:
            layer.outputs, layer.output_bytes = forms(tensors), bytes_of(tensors)
            layer.flow_out = flowing(tensors)
        if not is_again:
            layer.departures.update(_places(tensors))
        test = self.finite.is_found if self.sees_operations else self.finite.check
        layer.found = layer.found or any(map(test, tensors))

    # -- operations

    def begin_operation(self, func: Any, frame: FrameType | None) -> str | None:
        """A function of torch is called. Returns its line."""
        self.timeline.pause()
        line = outside(frame)
        self.graph().line(line)
        self.timeline.resume()
        return line

    def end_operation(
        self, func: Any, line: str | None, args: Any, kwargs: Any, result: Any
    ) -> None:
        """It returns."""
        self.timeline.pause()
        try:
            with unseen():
                given = [*args, *(kwargs or {}).values()]
                if any(is_a(one, (list, tuple)) for one in given):
                    given += [part for one in given for part in sequence_of(one) or ()]
                call, name = self.timeline.call, func.__name__
                self.finite.result(name, call, lambda: line, given, tensors_in(result))
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self.end_operation, error)
        self.timeline.resume()

    # -- backward, optimizer, loader

    def begin_backward(self, roots: Any, where: str | None) -> Position:
        """The engine begins with these tensors, or edges of a graph."""
        timeline = self.timeline
        timeline.pause()
        before = timeline.here
        try:
            with unseen():
                tensors = list(tensors_in(tuple(roots)))
                for tensor in tensors:
                    self.finite.root(tensor, before.call, where, is_known=self.sees_operations)
                graph = self.graph()
                graph.walk(getattr(root, "grad_fn", None) for root in tensors)
                graph.enter(0)
                if not self.backward_depth:
                    self._settle()
                self.memory.begin_backward()
        except Exception as error:  # training must go on whatever we got wrong
            self.fault(self.begin_backward, error)
        self.backward_depth += 1
        timeline.go(0, BACKWARD)
        return before

    def end_backward(self, before: Position) -> None:
        """It is done."""
        self.timeline.pause()
        self.backward_depth -= 1
        if not self.backward_depth:
            for layer in self.steps.values():
                layer.saved = 0  # what was computed again is free, too
            self.memory.end_backward()
            with unseen():
                self._take_gradients()
        self.graph().enter(before.call)
        self.timeline.go(*before)

    def _settle(self) -> None:
        for layer in self.steps.values():
            layer.retained = max(layer.retained, layer.saved)
            layer.saved = 0

    def _take_gradients(self) -> None:
        for row in self.layers.rows:
            for _, parameter in row.own("_parameters"):
                gradient = gradient_of(parameter)
                if gradient is not None:
                    self.gradients[id(parameter)] = as_plain(gradient).nbytes

    def begin(self, phase: int) -> Position:
        """A phase outside of modules begins. Returns the position to `go` back to."""
        before = self.timeline.here
        self.timeline.go(0, phase)
        return before

    def end_optimizer(
        self, optimizer: torch.optim.Optimizer, before: Position, where: str | None
    ) -> None:
        """An optimizer has stepped, called at this line."""
        self.timeline.pause()
        self.updates += 1
        with unseen():
            for group in groups_of(optimizer):
                for parameter in group["params"]:
                    state = state_of(optimizer, parameter) or {}
                    held = [value for value in state.values() if is_a(value, torch.Tensor)]
                    self.states[id(parameter)] = bytes_of(held)
                    if gradient_of(parameter) is not None:
                        self.finite.updated(parameter, where)
        self.timeline.go(*before)

    # -- the end

    def close(self) -> None:
        """The step is over: hooks of nodes that are left do nothing from now on."""
        self.is_open = False
        self._settle()
        self._graphs.clear()


def _places(tensors: _Tensors) -> list[tuple[int, int]]:
    """Number and place of the nodes that made these tensors."""
    made = ((_node_of(tensor), tensor) for tensor in tensors)
    return [(node._sequence_nr(), tensor.output_nr) for node, tensor in made if node is not None]


def _node_of(tensor: torch.Tensor) -> Any:
    """The node that made a tensor.

    Of a view whose base was written to it is not read: autograd would make it then, and so number
    later nodes in another way.
    """
    base = tensor._base
    if base is not None and base._version:
        return None
    return tensor.grad_fn
