"""Metrics of a monitored run: of module calls, and of variables around optimizer steps.

Installed only when the settings ask for metrics. In steps that are not recorded it does nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import orjson
import torch
from torch.utils import _pytree as trees

from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.updates import Update
from traincheck.collect.monitor.attention import Attention, measured
from traincheck.collect.monitor.comparison import Comparison, Comparisons
from traincheck.collect.monitor.measure import Measure
from traincheck.collect.monitor.plugins import Plugins
from traincheck.collect.monitor.records import NameTable, Plan
from traincheck.collect.tensors.reading import groups_of
from traincheck.collect.tensors.sums import is_hidden
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.collect.tracking.naming import ByObject, unwrap
from traincheck.handlers import give_back
from traincheck.schema.claims import Needs
from traincheck.schema.metrics.requests import MonitorView
from traincheck.schema.torch_api import ATTENTION, MULTI_HEAD

# Within backward: forwards there are those that checkpointing repeats.
_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
_ATTENTION_NAME = re.compile("attention|attn", re.IGNORECASE)
_ATTENDING = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer,
)


@functools.lru_cache(maxsize=256)
def _is_for_attention(name: str) -> bool:  # not the class: a local one leads to its program
    return bool(_ATTENTION_NAME.search(name))


class _Stack(threading.local):
    """The modules that are being called in a thread, and whether the outermost one trains."""

    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []
        self.is_training = True
        self.count = 0  # of measured calls
        self.attended = 0  # calls of attention that were seen, and modules that make none
        self.caught: list[Any] | None = None  # gets arguments of a call of attention, not made
        self.comparison: Comparison | None = None  # of the outermost module, if it has a reference


class _Caught(BaseException):
    """Raised in place of a call of attention whose arguments are wanted alone."""


class Monitor(Instrument):
    """Takes the numbers that `Settings.monitor` asks for, and writes one event a step."""

    name = "monitor"

    def is_wanted(self) -> bool:
        return self.session.settings.monitor is not None

    def install(self) -> None:
        session = self.session
        plan = Plan(MonitorView.from_json(session.settings.monitor or {}))
        if session.needs == Needs():  # calls within models are for nobody else
            session.recording.inner_calls = False
        self._plan = plan
        self._measure = Measure(plan, self.session.fault)
        self._table = NameTable()
        self._stack = _Stack()
        self._is_on = True
        self._plugins = Plugins(plan.view.plugins, plan.includes)
        self._comparisons: Comparisons | None = None
        if plan.view.reference:
            self._comparisons = Comparisons(
                plan.view, self._measure, self._path, self._plugins.fail
            )
        self._names = ByObject[tuple[weakref.ref[torch.nn.Module], int, str | None]]()
        self.listen(session.moments.modules, self._call)
        hooks = session.hooks
        if plan.has("gradient_before_clip"):
            self.listen(hooks.before_clip, self._before_clip)
        if plan.has("activation_gradient"):
            self.listen(hooks.after_scaler, self._after_scaler)
        if plan.has("attention"):
            hooks.around[ATTENTION] = self._wrap_attention
            hooks.around[MULTI_HEAD] = self._wrap_multi_head
        update = Update(lambda _: self._is_due(), self._before_step, self._after_step)
        self.listen(session.moments.updates, update)
        self.listen(hooks.at_step_end, self._write)
        self.listen(hooks.at_close, self._write)

    def remove(self) -> None:
        super().remove()
        self._is_on = False

    # -- module calls

    @hidden
    def _call(
        self,
        original: Callable[..., Any],
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        session, stack = self.session, self._stack
        if not session.recording.on:
            return original(module, *args, **kwargs)
        em = session.local.em or session.emitter()
        if em.busy or session.is_worker or _graph_task() != -1:
            return original(module, *args, **kwargs)
        if not stack.modules:
            grad = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            stack.is_training = grad
            guarded(em, self._begin, module, args, kwargs)
        name: str | None = guarded(em, self._entered, module, args, kwargs)
        before, attended = stack.count, stack.attended
        stack.modules.append(module)
        try:
            result = original(module, *args, **kwargs)
            if name is not None and session.recording.on:
                has_inner = stack.count != before
                guarded(em, self._left, module, name, args, kwargs, result, has_inner)
                if stack.attended == attended:
                    self._note_unseen(module, name)
            return result
        finally:
            stack.modules.pop()
            if stack.comparison is not None and not stack.modules:
                guarded(em, self._end_comparison)

    def _entered(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str | None:
        """A module is about to be called: its name, and its inputs."""
        name = self._name(module)
        if name is not None and self._measure.measures_inputs and unwrap(module) is module:
            is_training = self._stack.is_training
            self._measure.inputs(name, args, kwargs, is_training=is_training)
        if name is not None and self._stack.comparison is not None:
            self._stack.comparison.entered(name, module)
        return name

    def _left(
        self,
        module: torch.nn.Module,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        has_inner: bool,
    ) -> None:
        """A module has returned. has_inner: modules within it were measured."""
        stack = self._stack
        # A wrapper stands for its module only where that is compiled, so not called
        if has_inner and unwrap(module) is not module:
            return
        stack.count += 1
        training = stack.is_training
        self._measure.call(name, args, kwargs, result, is_training=training)
        if self._plugins.has_any:
            self._plugins.run("activation", name, result, is_training=training)
        if stack.comparison is not None:
            stack.comparison.left(name, module, args, kwargs, result)

    def _begin(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A model is about to be called: its reference comes first."""
        self._plugins.load()
        if self._stack.is_training and self._comparisons is not None:
            self._stack.comparison = self._comparisons.begin(unwrap(module), args, kwargs)

    def _end_comparison(self) -> None:
        comparison, self._stack.comparison = self._stack.comparison, None
        if comparison is not None:
            comparison.end()

    def _path(self, module: torch.nn.Module) -> str | None:
        """The path of a part of a model that no call is within."""
        return self.session.tracker.modules.find(module)[0]

    def _name(self, module: torch.nn.Module) -> str | None:
        """The path of a module; None if it is not below a known model."""
        modules = self.session.tracker.modules
        known = self._names.get(id(module))
        if known is not None and known[0]() is module and known[1] == modules.maps:
            return known[2]
        stack = self._stack.modules
        if not stack or stack[-1] is unwrap(module):
            name: str | None = modules.find(module)[0]
        elif unwrap(stack[-1]) is module:
            name = modules.find(module)[0]
        else:
            name = modules.child(module, modules.root_of(unwrap(stack[0])), stack[-1])
        if name is not None:
            self._names.keep(module, (weakref.ref(module), modules.maps, name))
        return name

    def _wrap_attention(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
            if (caught := self._stack.caught) is not None:
                caught += (args, kwargs)
                raise _Caught
            result = original(*args, **kwargs)
            if (em := self._is_measuring()) is not None:
                self._attention(em, lambda: (args, kwargs))
            return result

        return hidden(scaled_dot_product_attention)

    def _wrap_multi_head(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Measure attention whose weights are wanted: it calls no function of attention."""
        signature = inspect.signature(original)

        def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if result[1] is not None and (em := self._is_measuring()) is not None:
                self._attention(em, lambda: self._catch(original, signature.bind(*args, **kwargs)))
            return result

        return hidden(multi_head_attention_forward)

    def _catch(
        self, original: Callable[..., Any], given: inspect.BoundArguments
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Arguments that ``scaled_dot_product_attention`` would get if no weights were wanted."""
        own = trees.tree_map_only(torch.Tensor, torch.Tensor.detach, dict(given.arguments))
        own |= {"need_weights": False, "is_causal": False}  # the mask also says what is causal
        caught = self._stack.caught = []
        try:
            original(**own)
        except _Caught as error:
            give_back(error)  # only if a handler raised it
        finally:
            self._stack.caught = None
        args, kwargs = caught
        return args, kwargs

    def _is_measuring(self) -> Emitter | None:
        """The emitter of this thread, if a call is to be measured now."""
        session = self.session
        if not self._is_on or is_traced() or not session.recording.on or _graph_task() != -1:
            return None
        em: Emitter = session.local.em or session.emitter()
        return None if em.busy else em

    def _note_unseen(self, module: torch.nn.Module, name: str) -> None:
        """Note that attention of a module cannot be measured, if it is one that attends."""
        cls: Any = type(module)
        attends = issubclass(cls, _ATTENDING) or _is_for_attention(cls.__name__)
        if not attends or not self._plan.attention(name):
            return
        stack, measure = self._stack, self._measure
        stack.attended += 1  # modules around it are not to blame
        numbers = measure.training if stack.is_training else measure.evaluation
        numbers.skipped.setdefault(f"attention/{name}", "no known function of attention is called")

    def _attention(
        self, em: Emitter, call_of: Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]]
    ) -> None:
        """Measure a call, under the name of the module that makes it."""
        stack = self._stack
        stack.attended += 1
        known = self._names.get(id(stack.modules[-1])) if stack.modules else None
        name = None if known is None else known[2]
        if name is None or not (wanted := self._plan.attention(name)) or is_hidden():
            return
        guarded(em, self._measure_attention, name, wanted, call_of)

    def _measure_attention(
        self,
        name: str,
        wanted: Any,
        call_of: Callable[[], tuple[tuple[Any, ...], Mapping[str, Any]]],
    ) -> None:
        args, kwargs = call_of()
        call = Attention.of(*args, **kwargs)
        numbers = self._measure.training if self._stack.is_training else self._measure.evaluation
        for metric, how, values in measured(call, wanted) if call is not None else ():
            numbers.add_heads(f"attention_{metric}", name, how, values)

    # -- optimizer steps

    def _named(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        """The parameters of an optimizer; tied ones under each of their names."""
        held = {id(p): p for group in groups_of(optimizer) for p in group["params"]}
        tracker = self.session.tracker
        found = [(name, p) for name, p in tracker.live_parameters() if id(p) in held]
        unnamed = held.keys() - {id(p) for _, p in found}
        if unnamed:
            owner = "optimizer"
            names = tracker.named_parameters(owner, optimizer)
            found += [(name, p) for name, p in names if id(p) in unnamed]
        return found

    def _is_due(self) -> bool:
        return self.session.recording.on and not is_traced()

    def _before_step(self, optimizer: Any) -> None:
        if self._is_due():
            session = self.session
            guarded(session.local.em or session.emitter(), self._before_update, optimizer)

    def _before_update(self, optimizer: Any) -> None:
        named = self._named(optimizer)
        self._measure.before_update(optimizer, named)
        if self._comparisons is not None:
            self._comparisons.parameters(named)
        if self._plugins.has_any:
            for name, parameter in named:
                self._plugins.run("parameter", name, parameter, is_training=True)
                self._plugins.run("gradient", name, parameter.grad, is_training=True)

    def _after_step(self, optimizer: Any) -> None:
        if self._is_due():
            session = self.session
            guarded(session.local.em or session.emitter(), self._after_update, optimizer)

    def _after_update(self, optimizer: Any) -> None:
        self._measure.after_update(optimizer, self._named(optimizer))

    def _before_clip(self, parameters: Any) -> None:
        """Gradients are about to be clipped. A generator of parameters is not consumed.

        The instrument that calls it guards it.
        """
        named = list(self.session.tracker.live_parameters())
        if isinstance(parameters, torch.Tensor):
            parameters = [parameters]
        if isinstance(parameters, (list, tuple)):
            given = set(map(id, parameters))
            named = [(name, p) for name, p in named if id(p) in given]
        self._measure.gradients(named, "gradient_before_clip")

    def _after_scaler(self, scaler: Any) -> None:
        if self.session.recording.on and scaler.is_enabled():
            self._measure.scale = scaler.get_scale()

    # -- the end of a step

    def _write(self, em: Emitter) -> None:
        measure, table = self._measure, self._table
        measure.forget_update()
        measure.end_backward()
        self._plugins.hand_over(measure.training, measure.evaluation)
        if self._comparisons is not None:
            self._comparisons.hand_over(measure.training)
        failed, self._plugins.failed = self._plugins.failed, []
        for numbers, evaluates in ((measure.training, False), (measure.evaluation, True)):
            numbers.read()
            if numbers or numbers.skipped or (failed and not evaluates):
                fields = table.record(numbers, () if evaluates else failed, evaluates=evaluates)
                em.write_json("metrics", orjson.dumps(fields)[1:-1])
            numbers.clear()
