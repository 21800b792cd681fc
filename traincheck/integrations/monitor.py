"""`traincheck.Monitor`: metrics of one model in the process that trains it.

Names, signatures and keys are those of torch-module-monitor, so its users can replace one import.
The differences are listed in docs/monitor.md: a failing metric never stops training, means over
micro-batches are exact, tuples and dicts are measured, and models can be copied.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from traincheck.errors import UsageError
from traincheck.handlers import give_back
from traincheck.integrations.monitor_metrics import MonitorMetrics
from traincheck.integrations.monitor_mixin import MonitorMixin
from traincheck.metrics.trace import requested_statistics
from traincheck.schema.metrics.requests import MonitorView, parse_requests

if TYPE_CHECKING:
    from traincheck.collect.monitor.measure import Measure

_WRAPPERS = ("_forward_module", "_orig_mod", "_fsdp_wrapped_module")
ROOT = "[root module]"
_NEVER = r"$.^"
_MOST_FAULTS = 10


def format_module_name(name: str) -> str:
    """The name of a module without the parts that torch.compile, Fabric and FSDP put into it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts) or ROOT


class Monitor(MonitorMetrics):
    """Metrics of activations, parameters and gradients of one model.

    Two ways to use it:

    - Call `begin_step`, `monitor_parameters`, `monitor_gradients` and `end_step` in the loop.
    - Give the optimizer: each of its steps then ends a step of the monitor, and parameters and
      gradients are measured just before it.

    Args:
        monitor_step_fn: whether a step is measured; None for every ``every``-th one. A model may be
            given here instead, as in ``Monitor(model, optimizer)``.
        format_module_name_fn: makes the name of a module in keys from that in ``named_modules``.
        excluded_modules_regex: modules whose name matches are left out.
        logger: gets warnings; None for ``logging.getLogger("traincheck")``.
        cpu_offload: keep the activations of the reference on the CPU.
        optimizer: ends the steps.
        every: measure every n-th step, from the first one.
        metrics: statistics that are exact over micro-batches, such as ``"act:rms,absmax"`` or
            ``"update:ratio"``, which needs the optimizer; as for ``traincheck monitor --metrics``.
        to: each gets ``log(numbers, step)`` at the end of a measured step.

    Raises:
        UsageError: an argument is not usable.
    """

    def __init__(  # noqa: PLR0913  # names of torch-module-monitor and of traincheck.watch
        self,
        monitor_step_fn: Any = None,
        format_module_name_fn: Any = format_module_name,
        excluded_modules_regex: str = _NEVER,
        logger: logging.Logger | None = None,
        cpu_offload: bool = False,
        *,
        optimizer: Any = None,
        every: int = 20,
        metrics: Sequence[str] = (),
        to: Sequence[Any] = (),
    ) -> None:
        if every < 1:
            raise UsageError(f"every is {every}", fix="make it 1 or more")
        super().__init__(logger or logging.getLogger("traincheck"))
        model = monitor_step_fn if hasattr(monitor_step_fn, "named_modules") else None
        if hasattr(format_module_name_fn, "param_groups"):  # Monitor(model, optimizer)
            optimizer, format_module_name_fn = format_module_name_fn, format_module_name
        is_due = None if model is not None else monitor_step_fn
        self._is_due = is_due or (lambda step: step % every == 0)
        self.format_module_name_fn: Callable[[str], str] = format_module_name_fn
        self._excluded = re.compile(excluded_modules_regex)
        self.cpu_offload = cpu_offload
        self.module: Any = None
        self._formatted: dict[str, str] = {}  # names of parameters
        self._requests = parse_requests(metrics)
        self._measure: Measure | None = None
        self._handles: list[Any] = []
        self._trackers = list(to)
        if model is not None:
            self.set_module(model)
        if optimizer is not None:
            self._follow(optimizer)

    # -- models

    def set_module(self, module: Any) -> None:
        """Set the model to monitor.

        Raises:
            ValueError: it is None, or one was set.
        """
        if module is None:
            raise ValueError("Module cannot be None.")
        if self.module is not None:
            raise ValueError("Module has already been set!")
        from traincheck.collect.monitor.measure import Measure
        from traincheck.collect.monitor.model_monitor import ModelMonitor
        from traincheck.collect.monitor.records import Plan

        self.module = module
        if self._requests:
            plan = Plan(MonitorView(requests=self._requests))
            self._measure = Measure(plan, lambda _, error: self._fault(error))
        self._core = ModelMonitor(
            module,
            self._parts(module),
            self._metrics,
            on_failure=self._failed,
            fault=self._fault,
            measure=self._measure,
        )
        self._tell_parts(module, self, is_reference=False)

    def set_reference_module(self, module: Any) -> None:
        """Set the model to compare with, e.g. a copy of the model at initialization.

        Its forward for a batch must run before that of the monitored model. If it does not, the
        monitor runs it, with the same random numbers.

        Args:
            module: the model; "init" for a copy of the monitored one as it is now; None for none.

        Raises:
            ValueError: no model is monitored, or this one has other modules.
        """
        core = self._core
        if core is None:
            raise ValueError("Please set the monitored module before setting the reference module.")
        self.remove_reference_module()
        if module is None:
            return
        if isinstance(module, str):
            if module != "init":
                raise ValueError(f"the reference is {module!r}: give a module, or 'init'")
            module = copy.deepcopy(self.module)
            module.requires_grad_(False)
        names = dict(self._parts(module))
        if names.keys() != dict(self._parts(self.module)).keys():
            raise ValueError(
                "The reference module has modules of other names than the monitored one."
            )
        core.compare_with(module, names.items(), offload=self.cpu_offload)
        self._tell_parts(module, self, is_reference=True)
        if self._is_open and core.reference is not None:
            core.reference.attach()

    set_reference = set_reference_module

    def has_reference_module(self) -> bool:
        """Whether there is a reference."""
        return self.reference_module is not None

    @property
    def reference_module(self) -> Any:
        """The reference, or None."""
        core = self._core
        return None if core is None or core.reference is None else core.reference.module

    def remove_reference_module(self) -> None:
        """Compare with no reference from now on."""
        core = self._core
        if core is not None and core.reference is not None:
            self._tell_parts(core.reference.module, None, is_reference=False)
            core.compare_with(None)

    def _parts(self, model: Any) -> list[tuple[str, Any]]:
        named = [(self.format_module_name_fn(name), part) for name, part in model.named_modules()]
        return [(name, part) for name, part in named if not self._excluded.match(name)]

    @staticmethod
    def _tell_parts(model: Any, monitor: Monitor | None, *, is_reference: bool) -> None:
        for part in model.modules():
            if isinstance(part, MonitorMixin):
                part.set_module_monitor(monitor, is_reference)

    # -- steps

    def is_step_monitored(self, step: int) -> bool:
        """Whether a step is measured."""
        return bool(self._is_due(step))

    def begin_step(self, step: int) -> bool:
        """A step begins. Call it before the forward. Returns whether it is measured.

        Raises:
            ValueError: the step is before the present one, or no model is set.
        """
        if self.current_step is not None and step < self.current_step:
            raise ValueError(
                f"Step {step} cannot be smaller than the current step {self.current_step}."
            )
        self._close()
        self.current_step = step
        if not self.is_step_monitored(step):
            return False
        if self._core is None:
            raise ValueError("No module to monitor. Please set the module first.")
        self._history.begin(step)
        self._core.attach()
        self._is_open = True
        return True

    def after_micro_batch(self) -> None:
        """A micro-batch is over: forget the activations of the reference."""
        if self._core is not None and self._core.reference is not None:
            self._core.reference.clear()

    def end_step(self) -> None:
        """The step is over: its numbers are complete."""
        if not self._is_open or self._core is None or self.current_step is None:
            return
        step = self.current_step
        self._history.add(step, self._present())
        self._close()
        for tracker in self._trackers:
            try:
                tracker.log(self.get_step_metrics(), step)
            except Exception as error:  # training must go on whatever a tracker does
                give_back(error)
                self._failed(type(tracker).__name__, "tracker", error)

    def _present(self) -> dict[str, float]:
        """The numbers of the step so far; they are taken."""
        core = self._core
        if core is None:
            return {}
        found = core.values.take()
        found.update({f"eval/{key}": value for key, value in core.evaluation.take().items()})
        measure = self._measure
        if measure is not None:
            measure.end_backward()
            for numbers, before in ((measure.training, ""), (measure.evaluation, "eval/")):
                numbers.read()
                statistics = requested_statistics(numbers.sums, self._requests)
                found.update({before + key: value for key, value in statistics.items()})
                numbers.clear()
        return found

    def _close(self) -> None:
        self._is_open = False
        if self._core is not None:
            self._core.detach()
            self._core.is_paused = False
            self._core.values.discard()
            self._core.evaluation.discard()
        if self._measure is not None:
            self._measure.forget_update()
            self._measure.training.clear()
            self._measure.evaluation.clear()

    @contextmanager
    def no_monitor(self) -> Iterator[None]:
        """Do not measure in this block, for example a validation; a reference may run in it."""
        core = self._core
        if core is None:
            yield
            return
        before, core.is_paused = core.is_paused, True
        try:
            yield
        finally:
            core.is_paused = before

    def _follow(self, optimizer: Any) -> None:
        """Let an optimizer end the steps."""
        if self.module is None:
            raise UsageError(
                "an optimizer is given without a model", fix="Monitor(model, optimizer)"
            )
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_update),
        ]
        self.begin_step(0)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        from traincheck.collect.moments.updates import before_update

        if not self._is_open:
            return None
        return before_update(args, kwargs, lambda: self._before_update(optimizer))

    def _before_update(self, optimizer: Any) -> None:
        if not self._is_open:
            return
        try:
            self.monitor_parameters()
            self._gradients("gradient", getattr(optimizer, "grad_scale", None))
            if self._measure is not None:
                self._measure.before_update(optimizer, self._variables(optimizer))
        except Exception as error:  # training must go on whatever we got wrong
            give_back(error)
            self._fault(error)

    def _after_update(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            if self._is_open and self._measure is not None:
                self._measure.after_update(optimizer, self._variables(optimizer))
            self.end_step()
            self.begin_step((self.current_step or 0) + 1)
        except Exception as error:  # training must go on whatever we got wrong
            give_back(error)
            self._fault(error)

    def _variables(self, optimizer: Any) -> list[tuple[str, Any]]:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        return [(name, p) for name, p in self._parameters(self.module) if id(p) in held]

    def close(self) -> None:
        """Remove every hook. The numbers stay."""
        self._close()
        while self._handles:
            self._handles.pop().remove()

    # -- measure now

    def monitor_activations(
        self, module: Any, activations: Any, is_reference: bool = False
    ) -> None:
        """Run the metrics of activations on a tensor that is not the output of a module.

        Args:
            module: a module of the model, or the name to use.
            activations: the tensor.
            is_reference: it is of the reference: keep it for the next call of this name.
        """
        core = self._core
        if core is None or not self._is_open or (core.is_paused and not is_reference):
            return
        name = self._name_of(module)
        if name is None or self._excluded.match(name) or not hasattr(activations, "detach"):
            return
        if is_reference:
            if core.reference is not None:
                core.reference.outputs.setdefault(name, []).append(activations.detach().clone())
            return
        core.activation(name, activations)
        if core.reference is not None and (left := core.reference.outputs.get(name)):
            core.difference(name, activations, left.pop(0))

    def measure_attention(
        self, module: Any, given: tuple[Any, ...], activation: Any, *, is_reference: bool
    ) -> None:
        """See `monitor_scaled_dot_product_attention`."""
        core, name = self._core, self._name_of(module)
        if core is None or name is None or not self._is_open:
            return
        is_reference = is_reference or core.is_in_reference
        if core.is_paused and not is_reference:
            return
        parts = core.attention(name, given, activation, with_entropy=not is_reference)
        for part, tensor in parts:
            self.monitor_activations(part, tensor, is_reference)

    def begin_coordinate_check(self) -> None:
        """See `RefinedCoordinateCheck`."""
        if self._core is not None:
            self._core.check_coordinates()

    def log_coordinate_check(self) -> None:
        """See `RefinedCoordinateCheck.refined_coordinate_check`."""
        core = self._core
        if core is not None and core.check is not None and self._is_open:
            core.values.absorb(core.check.terms)

    def monitor_parameters(self) -> None:
        """Run the metrics of parameters, and of their differences to the reference."""
        core = self._core
        if core is None or not self.is_monitoring():
            return
        others = {} if core.reference is None else dict(self._parameters(core.reference.module))
        core.parameters(self._parameters(self.module), others)
        if self._measure is not None and not self._handles:
            self._measure.parameters(self._parameters(self.module))

    def monitor_gradients(self, before_clip: bool = False) -> None:
        """Run the metrics of gradients. Call it after backward and before the optimizer steps.

        Args:
            before_clip: the keys begin with ``gradient_before_clip/``.
        """
        if self.is_monitoring():
            self._gradients("gradient_before_clip" if before_clip else "gradient", None)

    def _gradients(self, subject: str, scale: Any) -> None:
        assert self._core is not None
        named = self._parameters(self.module)
        missing = self._core.gradients(named, subject, scale)
        if missing:
            self._warn(f"{missing} of {len(named)} parameters have no gradient, so no {subject}")
        if self._measure is not None and not self._handles:
            self._measure.gradients(named, subject)

    def _parameters(self, model: Any) -> list[tuple[str, Any]]:
        """Formatted name and object of each parameter; tied ones under each of their names."""
        known, found = self._formatted, []
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name not in known:
                known[name] = self.format_module_name_fn(name)
            found.append((known[name], parameter))
        return found

    def _name_of(self, module: Any) -> str | None:
        if isinstance(module, str):
            return module
        models = [self.module, self.reference_module]
        for model in models:
            for name, part in model.named_modules() if model is not None else ():
                if part is module:
                    return self.format_module_name_fn(name)
        return None
