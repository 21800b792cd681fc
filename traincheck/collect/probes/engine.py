"""Makes the planned experiments when an outermost module is called in training."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import torch

from traincheck.collect import masking
from traincheck.collect.probes import fork
from traincheck.collect.probes.base import (
    Budget,
    Call,
    Experiment,
    FailedError,
    GoOnError,
    Laboratory,
    Result,
    unobservable,
)
from traincheck.collect.probes.batch import Samples, leaves
from traincheck.collect.probes.evaluation import Evaluations
from traincheck.collect.probes.fork import Child, described
from traincheck.collect.probes.registry import EXPERIMENTS
from traincheck.collect.tensors.devices import KIND, is_used
from traincheck.collect.tensors.reading import (
    as_plain,
    groups_of,
    modes,
    modules_in,
    own,
    table_of,
    tensors_in,
    unseen,
)
from traincheck.collect.trace_writer.event_file import write_file
from traincheck.collect.trace_writer.guard import guarded
from traincheck.handlers import give_back
from traincheck.schema.layout import PROBED
from traincheck.schema.probes.names import Experiments, Status

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder
    from traincheck.collect.trace_writer.emitter import Emitter

STEPS = (3, 12)  # in which it is called, counted from 1
_MOST_KEYS = 16  # models and passes
_MOST_PASSES = 3  # backward passes of a step
_functorch: Any = getattr(torch._C, "_functorch", None)


class Plan:
    """Counts the steps in which something occurs, for each model and each pass.

    Args:
        steps: numbers of the steps in which it is probed, from 1.
    """

    def __init__(self, steps: Iterable[int] = STEPS) -> None:
        self._steps = frozenset(steps)
        self._counts: dict[tuple[int, int], list[Any]] = {}  # weak reference, last step, count

    def is_over(self, step: int | None) -> bool:
        """Whether all that is still called was probed as often as planned."""
        last = max(self._steps, default=0)
        counts = self._counts.values()
        waits = [step is None or at is None or step - at <= last for _, at, n in counts if n < last]
        return any(n >= last for _, _, n in counts) and not any(waits)

    def is_due(self, module: torch.nn.Module, number: int, step: int | None) -> bool:
        """A module is called. number: that of the pass that it begins; -1 for the module itself."""
        if number >= _MOST_PASSES:
            return False
        key = (id(module), number)
        known = self._counts.get(key)
        if known is None or known[0]() is not module:
            if len(self._counts) >= _MOST_KEYS and known is None:
                return False
            known = self._counts[key] = [weakref.ref(module), None, 0]
        if known[1] == step:
            return False
        known[1], known[2] = step, known[2] + 1
        return known[2] in self._steps


def obstacle(module: torch.nn.Module, args: Any, kwargs: Any) -> str:
    """Why no copy of this process would be exact, as a clause; empty if it would."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "the process belongs to a process group"
    devices = {as_plain(tensor).device.type for tensor in tensors_in(module)}
    devices |= {as_plain(tensor).device.type for tensor in leaves((args, kwargs))}
    devices |= {KIND} if is_used() else set()
    for device in sorted(devices - {"cpu"}):
        return f"the process uses {device}, and cannot be copied"
    if any(map(_is_compiled, modules_in(module))):
        return "the model is compiled"
    if modes() or (_functorch is not None and _functorch.peek_interpreter_stack() is not None):
        return "a mode of torch or a transform of functions is active"
    return fork.obstacle()


def _is_compiled(module: torch.nn.Module) -> bool:
    is_wrapper = type(module).__name__ == "OptimizedModule"
    return is_wrapper or own(module).get("_compiled_call_impl") is not None


_OF_MODULE = -1
_MOST_CALLS, _LONGEST_S = 32, 1.0


class ProbeEngine:
    """The probes of one process.

    Attributes:
        child: in a copy of the process, its way to report.
    """

    def __init__(
        self,
        session: Recorder,
        *,
        plan: Plan | None = None,
        budget: Budget | None = None,
        experiments: Sequence[Experiment] = EXPERIMENTS,
    ) -> None:
        self.child: Child | None = None
        self._session = session
        self._plan = Plan() if plan is None else plan
        self._budget = Budget() if budget is None else budget
        self._experiments = experiments
        self._evaluations = Evaluations()
        self._samples = Samples()
        self._told: set[tuple[str, str]] = set()  # models and what became of their evaluations
        self._held: set[tuple[str, str, int]] = set()  # model, experiment, pass: not repeated
        self._step: int | None = -1
        self._pass = 0
        self._begins = True  # the next call begins a pass
        self._calls = 0  # since the last backward pass
        self._begun_s = 0.0
        self._is_over = False
        self._is_long = False  # a pass has many calls: rollouts, which are not repeated

    def passed(self) -> None:
        """A backward pass begins."""
        self._pass += 1
        if self._calls:
            self._is_long = self._calls > _MOST_CALLS or monotonic() - self._begun_s > _LONGEST_S
        self._begins, self._calls = True, 0

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost module is called in training mode. Without parameters it is no model."""
        if not _has_parameters(module):
            return  # a loss, or a transform of images, which a loader calls many times in a step
        session = self._session
        step = session.clock.step
        if step != self._step:
            self._step, self._pass = step, 0
        begins = self._begins and (torch.is_grad_enabled() or not self._is_long)
        self._begins = self._begins and not begins
        if not self._calls:
            self._begun_s = monotonic()
        self._calls += 1
        of_pass = begins and self._plan.is_due(module, self._pass, step)
        of_module = self._plan.is_due(module, _OF_MODULE, step)
        if not (of_pass or of_module):
            if not self._is_over and self._plan.is_over(self._step):  # all planned ones are made
                self._is_over = True
                try:
                    write_file(f"{session.settings.directory}/{PROBED}", b"")
                except OSError as error:  # the launcher waits for the end of the program then
                    give_back(error)
            return
        em = session.local.em or session.emitter()
        busy, em.busy = em.busy, True
        try:
            with unseen():
                call = self._call(module, args, kwargs)
                reason = obstacle(module, args, kwargs)
            self._probe(em, call, reason, of_pass, of_module)
        except GoOnError as found:  # only in a copy
            give_back(found)
            self.child = found.child
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(self.enter, error)
        finally:
            em.busy = busy

    def observe(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An outermost module is called, in any mode: follow its evaluations and its inputs."""
        em = self._session.local.em or self._session.emitter()
        guarded(em, self._observe, em, module, args, kwargs)

    def _observe(
        self, em: Emitter, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        if _has_parameters(module):
            self._samples.called(module, args, kwargs)
        result = self._evaluations.called(module)
        if result is None:
            return
        # Once for each model and status.
        path, root = self._session.tracker.modules.find(module)
        if (root.name, result.status) not in self._told:
            self._told.add((root.name, result.status))
            buffer = result.detail.get("buffer", "")
            where = f"{path}.{buffer}".rpartition(".")[0] if buffer else ""
            self._write(em, Experiments.EVAL_STATE, root.name, replace(result, where=where))

    def _call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        session = self._session
        tracker = session.tracker
        _, root = tracker.modules.find(module)
        found = {id(p): p for _, p in tracker.live_parameters()}
        found |= {id(p): p for p in tensors_in(module)}
        held = {
            id(p)
            for _, optimizer in session.live.live_optimizers()
            for group in groups_of(optimizer)
            for p in group["params"]
        }
        return Call(
            module,
            root.name,
            args,
            kwargs,
            tuple(found.values()),  # type: ignore[arg-type]
            lambda part: tracker.modules.child(part, root) or type(part).__name__,
            lambda parameter: tracker.name_of(parameter) or "",
            frozenset(held),
            self._samples.are_rows(module),
        )

    def _probe(self, em: Emitter, call: Call, reason: str, of_pass: bool, of_module: bool) -> None:
        if self._budget.is_spent:
            return
        laboratory = Laboratory(self._session, self._budget)
        chosen = [
            each
            for each in self._experiments
            if (of_module if each.is_of_module else of_pass)
            and self._key(call.name, each) not in self._held
        ]
        found: list[tuple[str, Result]] = []
        if reason:
            found = [(each.name, unobservable(reason)) for each in chosen]
        else:
            for each in chosen:
                if not each.is_of_module:
                    continue
                self._add(found, each, call, laboratory)
            rest = [each for each in chosen if not each.is_of_module]
            if rest:
                self._replays(found, rest, call, laboratory)
        for name, result in found:
            self._write(em, name, call.name, result)

    def _replays(
        self,
        found: list[tuple[str, Result]],
        experiments: Sequence[Experiment],
        call: Call,
        laboratory: Laboratory,
    ) -> None:
        """The experiments that need the loss, if it is the same in two copies without a change."""
        try:
            first, second = [laboratory.replay(lambda: None) for _ in range(2)]
        except Exception as error:
            give_back(error)
            failed = self._failed(error)
            found += [
                (name, failed) for name in (Experiments.REPLAY, *(e.name for e in experiments))
            ]
            return
        reason = first.reason or second.reason
        if not reason and first.told["digest"] != second.told["digest"]:
            reason = "two copies without a change gave different losses"
        if not reason:
            laboratory.loss = float(first.told["loss"])
            laboratory.facts = first.told
            for each in experiments:
                self._add(found, each, call, laboratory)
        else:
            found += [(each.name, unobservable(reason)) for each in experiments]
        numbers = {
            "copies": laboratory.children,
            "cpu_s": laboratory.cpu_s,
            "wall_s": laboratory.wall_s,
            "loss": laboratory.loss,
        }
        status = Status.NOT_OBSERVABLE if reason else Status.HELD
        result = Result(status=status, reason=reason, numbers=numbers)
        found.insert(0, (Experiments.REPLAY, result))

    def _add(
        self,
        found: list[tuple[str, Result]],
        experiment: Experiment,
        call: Call,
        laboratory: Laboratory,
    ) -> None:
        try:
            result = experiment.run(call, laboratory)
        except Exception as error:  # the other experiments go on
            give_back(error)
            result = self._failed(error)
        if result is not None:
            found.append((experiment.name, result))
            if result.status == Status.HELD:
                self._held.add(self._key(call.name, experiment))

    def _failed(self, error: Exception) -> Result:
        """Count a fault of ours. The program is not to blame."""
        self._session.fault(self._add, error)
        text = str(error) if isinstance(error, FailedError) else described(error)
        return Result(status=Status.FAILED, reason=masking.message(text))

    def _key(self, model: str, experiment: Experiment) -> tuple[str, str, int]:
        return model, experiment.name, _OF_MODULE if experiment.is_of_module else self._pass

    def _write(self, em: Emitter, name: str, model: str, result: Result) -> None:
        em.event("probe", {"name": name, "model": model, **result.fields()})


def _has_parameters(module: torch.nn.Module) -> bool:
    if not table_of(module, "_modules"):
        return bool(table_of(module, "_parameters"))
    return next(tensors_in(module), None) is not None
