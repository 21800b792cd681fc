"""Functions of torch that a program calls, with numbers of their calls, in few steps.

A mode sees them, in the first steps and in every 50th. Of each line the first calls of a step are
read; the numbers of a step are copied from a device together, when it ends. No tensor is kept alive
but samples of up to 2,048 elements, from one step that is looked at to the next one, and rows of
masks and their tokens, until a step ends.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from traincheck.collect.moments.operations import Operations
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.tensors.cuts import CUTTING, Gates
from traincheck.collect.tensors.devices import read_together
from traincheck.collect.tensors.excluded_labels import TrainedLosses
from traincheck.collect.tensors.operation_looks import (
    NAMES,
    OF_LAYERS,
    Call,
    Look,
    Numbers,
    of_tensor,
    softmax_dim,
    targets_in_inputs,
)
from traincheck.collect.tensors.reading import PLAIN_TYPES
from traincheck.collect.tensors.row_looks import NAMES as OF_ROWS
from traincheck.collect.tensors.row_looks import RowLooks
from traincheck.collect.tensors.statistics import Statistics, is_of_normalize
from traincheck.collect.tensors.value_looks import LOOKS, of_labels
from traincheck.collect.trace_writer.call_site import operand, where, where_program
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.claims import Schedule
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.observations.operations import OperationUse, OperationUses

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_SCHEDULE = Schedule(first=6, every=50)
_CALLS = 2  # of a line that are read in a step
_LINES = 256  # that are read in a step
_INPUTS = 6  # of a model
_EVALUATIONS = 8
_MODELS = 4  # calls of outermost modules in a step
# In evaluation they ask whether anything sees their calls, and then add in another order
_WITH_FAST_PATH = (
    torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer,
)  # fmt: skip
# Modules of torch that call a function for the program
_METHODS = ("torch._tensor", "torch.overrides", "torch.functional")
_LAYERS = (*_METHODS, "torch.nn.modules", "torch.nn.functional")
_LABELS = frozenset({"label", "labels", "target", "targets", "y", "tgt"})
_CUTS = ("cut", "backward")
_GREATEST = torch.finfo(torch.float32).max

# Look, function, line, and name of the argument
_Key = tuple[str, str, str, str]


@dataclass(slots=True)
class _Line:
    """The calls of a function in a line, in this step."""

    calls: int = 0
    over: int = 0  # the largest dim over which a softmax ran, in all calls
    numbers: list[Numbers] = field(default_factory=list)


class OperationObserver(Observer):
    """Reads calls of functions of torch, with the inputs and outputs of models."""

    produces: ClassVar = (OperationUses,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._mode = Operations(session, session.moments, self._called)
        self._lines: dict[_Key, _Line] = {}
        self._earlier: dict[_Key, dict[str, torch.Tensor]] = {}
        self._inputs: list[tuple[str, weakref.ref[torch.Tensor]]] = []
        self._rows = RowLooks(self._enter)
        self._gates = Gates()
        self._trained = TrainedLosses()
        self._statistics = Statistics()
        self._depth = self._models = self._evaluations = 0
        self._is_evaluation = False  # whether it looks because of an evaluation

    def install(self, patcher: Patcher) -> None:
        """Look at the first step, then from the end of a step to that of the next one."""
        del patcher
        hooks = self._session.hooks
        self.listen(hooks.at_stage, self._begin_stage)
        self.listen(hooks.before_backward, self._before_backward)
        for moment in (hooks.at_step_end, hooks.at_close):
            self.listen(moment, self._end_step)

    def remove(self) -> None:
        """Look no more, whatever has been seen."""
        self._end()

    def _begin(self) -> None:
        self._mode.begin()
        if self._mode.is_on:
            self._session.moments.modules.add(self._module)

    def _end(self) -> None:
        self._mode.end()
        self._session.moments.modules.leave(self._module)

    def _begin_stage(self, stage: str) -> None:
        """The first step begins, or an evaluation, of which the first calls are looked at."""
        if self._mode.is_on or self._session.is_worker:
            return
        if stage == EVAL_STAGE and self._evaluations < _EVALUATIONS:
            self._evaluations += 1
            self._models = 0
            self._is_evaluation = True
            self._begin()
        elif stage == "train" and self._session.clock.step == 0:
            self._begin()

    def _end_step(self, em: Emitter) -> None:
        if self._mode.is_on:
            self._end()
        lines, self._lines = self._lines, {}
        self._inputs.clear()
        self._rows.end_step()
        self._gates.clear()
        self._trained.clear()
        self._statistics.clear()
        self._depth = self._models = 0
        self._is_evaluation = False
        uses = _without_signal(list(_uses(lines)))
        if uses:
            write(em, OperationUses(uses=tuple(uses)))
        following = (self._session.clock.step or 0) + 1
        if (
            _SCHEDULE.includes(following)
            and self._session.sampling.foresees(following)
            and not self._session.is_worker
        ):
            self._begin()

    # -- calls

    def _called(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """The program has called a function."""
        name = NAMES.get(name, name)
        if name == "vector_norm" and is_of_normalize():
            name = "normalize"
        if name in CUTTING:
            self._enter_gate(name, args, kwargs, result)
        places: dict[bool, str | None] = {}
        for look, read in (*LOOKS.get(name, ()), *self._statistics.looks(name)):
            of_layers = look in OF_LAYERS
            if of_layers not in places:
                places[of_layers] = where_program(_LAYERS if of_layers else _METHODS)
            place = places[of_layers]
            if place is None and look != "loss":
                continue  # not of the program
            self._read(look, read, place or where() or "", name, args, kwargs, result)
        place = where_program(_LAYERS) if name in OF_ROWS else None
        if place is not None:
            self._rows.called(name, args, kwargs, place, operand, evaluates=self._evaluates())

    def _read(
        self, look: str, read: Look, place: str, name: str, args: tuple[Any, ...],
        kwargs: Mapping[str, Any], result: Any,
    ) -> None:  # fmt: skip
        """One look at a call, if this call of its line is read."""
        line = self._line(key := (look, name, place, ""))
        if line is None and look != "softmax":
            return
        em = self._session.local.em
        call = Call(
            name, args, kwargs, result, em is not None and em.module is not None,
            list(self._alive()), self._earlier.setdefault(key, {}),
            line is not None and bool(line.numbers),
        )  # fmt: skip
        if line is None:
            self._widen(key, call)
            return
        numbers = read(call)
        if numbers is None:
            self._uncount(key, line)
            return
        line.numbers.append(numbers)
        if look != "loss":
            return
        self._trained.enter("padded", call, place)
        for of, found in targets_in_inputs(call):
            if of.lower() in _LABELS:
                continue  # the target, which the program hands to the model
            other = self._line(("target", name, place, of))
            if other is not None:
                other.numbers.append(found)

    def _evaluates(self) -> bool:
        return self._is_evaluation or self._session.clock.stage == EVAL_STAGE

    def _enter(self, key: _Key, read: Callable[[], Numbers | None]) -> None:
        """Add the numbers of a call to its line, if this call of it is read."""
        line = self._line(key)
        numbers = None if line is None else read()
        if numbers is not None and line is not None:
            line.numbers.append(numbers)
        elif line is not None:
            self._uncount(key, line)

    def _enter_gate(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """The program has called a function that may let no gradient pass."""
        if type(result) not in PLAIN_TYPES or not result.requires_grad:
            return
        why, read = CUTTING[name]
        call = Call(name, args, kwargs, result, module=False, inputs=(), earlier={})
        self._gates.enter(why, read, call, where_program(_LAYERS) or where() or "")

    def _before_backward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A backward pass begins: what stands on the ways back from its loss."""
        root = args[0] if args else kwargs.get("tensors")
        if not self._mode.is_on or not isinstance(root, torch.Tensor):
            return
        no_way, met = self._gates.behind(root)
        found = [(("backward", "backward", where_program(_METHODS) or "", ""), no_way)]
        found += [(("cut", gate.function, gate.where, gate.why), cut) for gate, cut in met]
        of_ways = [(key, {"cut": number}) for key, number in found]
        for key, numbers in (*of_ways, *self._trained.behind(root)):
            line = self._line(key)
            if line is not None:
                line.numbers.append(numbers)

    def _line(self, key: _Key) -> _Line | None:
        """The line, if this call of it is read."""
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= _LINES:
                return None
            line = self._lines[key] = _Line()
        line.calls += 1
        return line if len(line.numbers) < _CALLS else None

    def _widen(self, key: _Key, call: Call) -> None:
        """A later call may run over more elements, as in a loop over growing sequences."""
        line, dim = self._lines.get(key), softmax_dim(call)
        if line is not None and dim is not None:
            line.over = max(line.over, call.result.shape[dim])

    def _uncount(self, key: _Key, line: _Line) -> None:
        """A call that shows nothing."""
        line.calls -= 1
        if not line.calls:
            del self._lines[key]

    # -- models

    @hidden
    def _module(
        self,
        original: Callable[..., Any],
        module: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not self._mode.is_on:
            return original(module, *args, **kwargs)
        if issubclass(type(module), _WITH_FAST_PATH) and not module.training:
            self._mode.end()  # with it they would compute in another way
            try:
                return original(module, *args, **kwargs)
            finally:
                self._mode.begin()
        self._depth += 1
        em = self._session.local.em
        is_outermost = self._depth == 1 and self._models < _MODELS
        if is_outermost and em is not None and not em.busy:
            self._models += 1
            guarded(em, self._given, module, args, kwargs)
        try:
            result = original(module, *args, **kwargs)
        finally:
            self._depth -= 1
        if is_outermost and em is not None and not em.busy:
            guarded(em, self._look_at, "output", module, "", result)
        if self._is_evaluation and not self._depth and self._models >= _MODELS:
            self._end()
        return result

    def _given(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """An outermost module is called."""
        given = dict(_named(module, args, kwargs))
        self._trained.given(list(given.items()))
        for name, tensor in given.items():
            self._inputs.append((name, weakref.ref(tensor)))
            self._look_at("input", module, name, tensor)
        evaluates = not torch.is_grad_enabled()
        self._rows.given(type(module).__name__, where() or "", given, evaluates=evaluates)
        labels = next((one for name, one in given.items() if name.lower() in _LABELS), None)
        mask = next((name for name in given if "mask" in name.lower()), None)
        if labels is not None and mask is not None:
            key = ("labels", type(module).__name__, where() or "", mask)
            self._enter(key, lambda: of_labels(labels, given[mask]))

    def _look_at(self, look: str, module: Any, of: str, tensor: Any) -> None:
        key = (look, type(module).__name__, where() or "", of)
        if type(tensor) not in PLAIN_TYPES:
            return
        line = self._line(key)
        if line is None:
            return
        numbers = of_tensor(tensor, self._earlier.setdefault(key, {}))
        if numbers is None:
            self._uncount(key, line)
        else:
            line.numbers.append(numbers)

    def _alive(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, ref in self._inputs:
            tensor = ref()
            if tensor is not None:
                yield name, tensor


def _named(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a module gets, by the names of its arguments."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    names = list(code.co_varnames[1 : code.co_argcount]) if isinstance(code, CodeType) else []
    names += [str(place) for place in range(len(names), len(args))]
    given = [*zip(names, args), *kwargs.items()]
    parts = (
        [(f"{name}[{key!r}]", one) for key, one in value.items()]
        if type(value) is dict
        else [(name, value)]
        for name, value in given
    )
    tensors = [(n, one) for part in parts for n, one in part if type(one) in PLAIN_TYPES]
    yield from tensors[:_INPUTS]


def _without_signal(uses: Sequence[OperationUse]) -> list[OperationUse]:
    """The uses; those about ways back only if no gradient passes in any backward pass."""
    is_cut = all(use.numbers.get("cut") == 1 for use in uses if use.look == "backward")
    return [
        use for use in uses if use.look not in _CUTS or (is_cut and use.numbers.get("cut") == 1)
    ]


def _uses(lines: Mapping[_Key, _Line]) -> Iterator[OperationUse]:
    """The records of a step. Waits for devices once."""
    waiting: list[torch.Tensor] = []
    for line in lines.values():
        for numbers in line.numbers:
            waiting += [n.reshape(1).float() for n in numbers.values() if torch.is_tensor(n)]
    by_device: dict[torch.device, list[int]] = {}
    for place, number in enumerate(waiting):
        by_device.setdefault(number.device, []).append(place)
    read: dict[int, float] = {}
    for places in by_device.values():
        flat = torch.cat([waiting[place] for place in places])
        read.update(zip(places, next(read_together([flat]))))
    at = iter(range(len(waiting)))
    for (look, function, line_of, of), line in lines.items():
        found: dict[str, list[float]] = {}
        for numbers in line.numbers:
            for name, one in numbers.items():
                value = read[next(at)] if torch.is_tensor(one) else float(one)
                if not math.isnan(value):  # JSON has neither NaN nor infinity
                    found.setdefault(name, []).append(max(-_GREATEST, min(value, _GREATEST)))
        means = {name: sum(values) / len(values) for name, values in found.items()}
        if "over" in means:
            means["over"] = max(float(line.over), *found["over"])
        yield OperationUse(look, function, line_of, line.calls, means, of)
