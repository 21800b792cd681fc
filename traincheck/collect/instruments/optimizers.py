"""Optimizers of every class: creation, groups, step, zero_grad.

After a step, parameters and optimizer state are scanned.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from time import monotonic_ns
from types import FrameType
from typing import Any

import orjson
import torch
from torch.optim import Optimizer

from traincheck.collect.context import diverged, watch_for_boundary
from traincheck.collect.instruments._wrap import Count, Describe, span_wrapper
from traincheck.collect.instruments.base import Instrument
from traincheck.collect.moments.updates import Update
from traincheck.collect.observers.outside_updates import ExternalWriteObserver, ManualUpdateObserver
from traincheck.collect.steps.pattern_counter import LAST, LEFT, PatternStepCounter
from traincheck.collect.templates import OPTIMIZER_STEP, ZERO_GRAD
from traincheck.collect.tensors.reading import gradient_of, groups_of, is_a, own
from traincheck.collect.tensors.summarize import dotted, encode
from traincheck.collect.trace_writer.call_site import outside, place, where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import guarded, tell
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.collect.tracking.live_objects import parameters_of, rates_of
from traincheck.collect.tracking.optimizer_groups import OptimizerGroups, owner_of
from traincheck.collect.tracking.staggered_scan import NO_ROOTS
from traincheck.schema.observations.gradients import ReplacedGradients
from traincheck.schema.torch_api import Families

_WRAPPED = "_traincheck_wrapped"


class Optimizers(Instrument):
    """Wraps ``step`` once on each class that is instantiated, as torch does; never instances."""

    name = "optimizers"
    always = True

    def install(self) -> None:
        self._ids: dict[int, str] = {}
        self._count = 0
        self._dead: deque[tuple[str, int]] = deque()  # id of ours and of the object
        # What records begin with, by optimizer, identity of its class, and method
        self._heads: dict[tuple[str | None, int, str], bytes] = {}
        self._groups = OptimizerGroups(
            self.session.tracker, is_exact=self.session.compared is not None
        )
        self._trained: dict[str, tuple[tuple[int, int], frozenset[str]]] = {}
        self._stepping: set[int] = set()
        self._looks_at_updates = False  # once somebody does
        self._awaited: set[int] = set()  # updates of steps that have begun
        self._loose = self._groups.loose
        self._by_hand = ManualUpdateObserver(self.session)
        self._awaits_update = True
        self._between = ExternalWriteObserver(self.session)
        wants = self.session.tracker.wants
        self._looks_at_cleared = wants("gradient", "zero_grad")
        self._looks_at_parameters = wants("parameter", "step")
        self._looks_at_state = wants("optimizer_state", "step")
        self._by_hand.install()
        self.replace(Optimizer, "__init__", self._wrap_init)
        self.replace(Optimizer, "add_param_group", self._wrap_add_group)
        self.replace(Optimizer, "zero_grad", self._wrap_zero_grad)
        self.replace(torch.nn.Module, "zero_grad", self._wrap_module_zero_grad)

    # -- creation and groups

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(optimizer: Optimizer, /, *args: Any, **kwargs: Any) -> None:
            try:
                self._wrap_step(type(optimizer))
            except Exception as error:  # training must go on whatever we got wrong
                self.session.fault(self._wrap_step, error)
            original(optimizer, *args, **kwargs)
            em = self.session.local.em or self.session.emitter()
            guarded(em, self._created, em, optimizer, sys._getframe(1))

        return hidden(__init__)

    def _wrap_add_group(self, original: Callable[..., None]) -> Callable[..., None]:
        def add_param_group(optimizer: Optimizer, /, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if id(optimizer) in self._ids and self.session.recording.on:
                em = self.session.local.em or self.session.emitter()
                guarded(em, self._joined, em, optimizer)

        return hidden(add_param_group)

    def _joined(self, em: Emitter, optimizer: Optimizer) -> None:
        owner = self.owner(optimizer)
        if owner is not None:  # else it is being made, where one that is dead was
            self.session.tracker.name_parameters(em, groups_of(optimizer)[-1]["params"])
            self._groups.update(em, owner, optimizer)

    def _created(self, em: Emitter, optimizer: Optimizer, frame: FrameType | None) -> None:
        session = self.session
        self._let_go(em)
        owner, key, dead = f"opt{self._count}", id(optimizer), self._dead
        self._count += 1
        session.steps.created(owner)
        session.live.optimizers[owner] = weakref.ref(optimizer, lambda _: dead.append((owner, key)))
        self._ids[key] = owner
        session.tracker.name_parameters(em, list(parameters_of(optimizer)))
        self._groups.write(em, owner, optimizer, "created", outside(frame))

    def _let_go(self, em: Emitter) -> None:
        """Forget optimizers that have died: a program may create many."""
        while self._dead:
            owner, key = self._dead.popleft()
            self.session.live.optimizers.pop(owner, None)
            self.session.tracker.forget_optimizer(em, owner)
            self._groups.forget(owner)
            self._between.seen.pop(owner, None)
            self._trained.pop(owner, None)
            self._heads = {head: text for head, text in self._heads.items() if head[0] != owner}
            if self._ids.get(key) == owner:
                del self._ids[key]

    def adopt(self, optimizer: Optimizer) -> None:
        """Record an optimizer that was created before the recording began."""
        if self.owner(optimizer) is not None:
            return
        self._wrap_step(type(optimizer))
        if "step" in own(optimizer):
            self._wrap_instance(optimizer)
        em = self.session.local.em or self.session.emitter()
        guarded(em, self._created, em, optimizer, None)

    def _wrap_instance(self, optimizer: Optimizer) -> None:
        """A scheduler has put the earlier step of the class on the instance: wrap that one."""
        original: Callable[..., Any] = optimizer.step
        stepper = self._stepper(lambda _, *args, **kwargs: original(*args, **kwargs))

        def step(*args: Any, **kwargs: Any) -> Any:
            return stepper(optimizer, *args, **kwargs)

        functools.update_wrapper(step, original)  # with the marks of the scheduler
        self.set(optimizer, "step", hidden(step), original, is_of_program=True)

    def remove(self) -> None:
        super().remove()
        self._ids.clear()  # a scheduler may hold this step, which must do nothing more

    def owner(self, optimizer: Optimizer) -> str | None:
        """The id of a live optimizer."""
        found = self._ids.get(id(optimizer), "")
        ref = self.session.live.optimizers.get(found)
        return found if ref is not None and ref() is optimizer else None

    def _owner_inside(self, optimizer: Optimizer) -> str | None:
        """The id of the optimizer that an object wraps: Lightning wraps each one."""
        return owner_of(self.session.live.live_optimizers(), optimizer)

    # -- step

    def _wrap_step(self, cls: type[Optimizer]) -> None:
        if getattr(cls.step, _WRAPPED, False):
            return
        if not getattr(cls.step, "hooked", False):
            # As torch does at the first instance. Below this wrapper: step hooks stay when it is
            # removed.
            hooked: Any = Optimizer.profile_hook_step(cls.step)
            hooked.hooked = True
            cls.step = hooked  # type: ignore[method-assign]
        self.replace(cls, "step", self._stepper, is_of_program=True)
        setattr(cls.step, _WRAPPED, True)

    def _stepper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        recorded = span_wrapper(
            original,
            self.session,
            self._describe_step,
            before=self._before_step,
            after=self._after_step,
        )
        session, stepping, owner_of = self.session, self._stepping, self.owner
        steps, recording, enter, left = session.steps, session.recording, self._enter, self._left

        def step(optimizer: Optimizer, /, *args: Any, **kwargs: Any) -> Any:
            owner = owner_of(optimizer)
            key, inside = id(optimizer), steps.inside
            # A subclass that calls its parent's step: one step, not two
            if key in stepping or owner is None:
                steps.mark_irregular()
                return original(optimizer, *args, **kwargs)
            try:  # around everything to be undone: a signal handler may raise in any call
                stepping.add(key)
                enter(owner, key)
                if recording.on:
                    return recorded(optimizer, *args, **kwargs)
                return original(optimizer, *args, **kwargs)
            finally:
                try:
                    stepping.discard(key)
                    left(owner)
                finally:
                    steps.inside = inside

        return self._comparing(original, hidden(step))

    def _enter(self, owner: str, key: int) -> None:
        """A step of an optimizer begins."""
        try:
            self.session.steps.enter_optimizer(owner, key)
        except Exception as error:  # training must go on whatever we got wrong
            self.session.fault(self._enter, error)

    def _left(self, owner: str) -> None:
        """A step of an optimizer has ended."""
        session = self.session
        try:
            session.steps.exit_optimizer(owner)
            if not session.recording.on:
                watch_for_boundary(session)
        except Exception as error:  # training must go on whatever we got wrong
            session.fault(self._left, error)

    def _comparing(
        self, original: Callable[..., Any], counted: Callable[..., Any]
    ) -> Callable[..., Any]:
        """A step that is only compared while it is the one expected. counted: else."""
        session, steps, recording = self.session, self.session.steps, self.session.recording
        if not isinstance(steps, PatternStepCounter):
            return counted

        def step(optimizer: Optimizer, /, *args: Any, **kwargs: Any) -> Any:
            if is_traced() or (expected := steps.expects()) is None:
                return counted(optimizer, *args, **kwargs)
            if expected != id(optimizer):
                diverged(session)
                return counted(optimizer, *args, **kwargs)
            steps.tick(monotonic_ns())
            try:
                if not args and not kwargs:
                    return original(optimizer)
                return original(optimizer, *args, **kwargs)
            finally:
                if (expected := steps.expects()) is LAST:
                    recording.idle = False  # what comes next may be the boundary
                elif expected is not LEFT:
                    if expected is not None:
                        diverged(session)
                    self._left(self._ids.get(id(optimizer), ""))

        return hidden(step)

    def _before_step(self, em: Emitter, args: tuple[Any, ...]) -> None:
        session, optimizer = self.session, args[0]
        if session.clock.stage != "train":
            session.stage(em, "train")
        owner = self._ids.get(id(optimizer))  # alive: it was looked up when it was entered
        if owner is None:
            return
        if owner in self._loose:
            self._loose[owner] = all(gradient_of(p) is None for p in parameters_of(optimizer))
        session.live.used_rates[owner] = rates_of(optimizer)
        session.tracker.note_update(optimizer)
        if session.recording.scans and session.tracker.scans.has_other_gradients():
            write(em, ReplacedGradients(owner))
        if owner in self._between.seen:
            self._between.before_step(em, owner, optimizer)
        if not self._groups.are_unchanged(owner, optimizer):
            self._groups.update(em, owner, optimizer)
        if session.hooks.before_optimizer.all:
            # Look right before the update, which a closure may put off
            if not self._looks_at_updates:
                self._looks_at_updates = True
                update = Update(self._is_awaited, self._before_update)
                self.listen(self.session.moments.updates, update)
            self._awaited.add(id(optimizer))
        if session.stats.moves.is_due:
            session.tracker.scans.before_update(em, self._trains(owner, optimizer))

    def _is_awaited(self, optimizer: Optimizer) -> bool:
        """Whether a recorded step begins, not that of a parent class within it."""
        if id(optimizer) not in self._awaited:
            return False
        self._awaited.discard(id(optimizer))
        return self.session.recording.on and not is_traced()

    def _before_update(self, optimizer: Optimizer) -> None:
        session, owner = self.session, self._ids.get(id(optimizer))
        if owner is not None and session.recording.on:
            em = session.local.em or session.emitter()
            guarded(em, tell, session, session.hooks.before_optimizer, em, owner)

    def _after_step(
        self, em: Emitter, span: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        session, optimizer = self.session, args[0]
        owner = self._ids.get(id(optimizer), "")
        if self._awaits_update:
            self._awaits_update = False
            self._by_hand.stop()
        if session.recording.scans:
            if self._looks_at_parameters:
                session.tracker.scans.scan_parameters(em, span, self._trains(owner, optimizer))
            if self._looks_at_state:
                session.tracker.scans.scan_optimizer(em, span, owner, optimizer)
        if self._between.is_wanted:
            self._between.after_step(owner, optimizer)
        tell(session, session.hooks.after_optimizer)

    def _trains(self, owner: str, optimizer: Optimizer) -> frozenset[str]:
        """Names of the roots whose parameters it holds; empty if there is only one root."""
        tracker = self.session.tracker
        if len(tracker.roots) <= 1:
            return NO_ROOTS
        key = tracker.names_version, sum(len(group["params"]) for group in groups_of(optimizer))
        known = self._trained.get(owner)
        if known is None or known[0] != key:
            names = (
                name.partition(".")[0] for name, _ in tracker.named_parameters(owner, optimizer)
            )
            known = self._trained[owner] = key, frozenset(names)
        return known[1]

    def _describe_step(
        self, em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> bytes:
        optimizer = args[0]
        key = owner, _, _ = self._ids.get(id(optimizer)), id(type(optimizer)), "step"
        head = self._heads.get(key) or self._head(key, optimizer, Families.OPTIMIZER_STEP)
        given = b""
        if len(args) > 1 or kwargs:
            closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
            given = b"" if closure is None else b'"closure":' + encode(closure)
        elif owner is not None and self._loose.get(owner):
            given = b'"gradients":0'
        told = b"null" if result is None else encode(result)
        parts = (head, given, told, place(sys._getframe(2)))
        return OPTIMIZER_STEP % parts

    def _head(self, key: tuple[str | None, int, str], optimizer: Any, family: str) -> bytes:
        owner, _, method = key
        fields = {"api": f"{dotted(type(optimizer))}.{method}", "family": family, "owner": owner}
        head = orjson.dumps(fields)[1:-1]
        if owner is not None:  # else another class may have this identity later
            self._heads[key] = head
        return head

    # -- zero_grad

    def _wrap_zero_grad(self, original: Callable[..., None]) -> Callable[..., None]:
        owner_of, steps = self.owner, self.session.steps

        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> bytes:
            if not args:
                return b'"api":"torch.optim.Optimizer.zero_grad"'
            optimizer = args[0]
            owner = self._ids.get(id(optimizer)) or self._owner_inside(optimizer)
            key = owner, id(type(optimizer)), "zero_grad"
            head = self._heads.get(key) or self._head(key, optimizer, Families.ZERO_GRAD)
            parts = (head, _set_to_none(args, kwargs), place(sys._getframe(2)))
            return ZERO_GRAD % parts

        def count(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            if args and (owner := owner_of(args[0])) is not None:
                steps.zero_grad(owner, -id(args[0]))
            elif args:  # else it fails
                steps.zero_grad(self._owner_inside(args[0]))

        return self._wrap_zeroing(original, describe, count)

    def _wrap_module_zero_grad(self, original: Callable[..., None]) -> Callable[..., None]:
        def describe(
            em: Emitter, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
        ) -> dict[str, Any]:
            return {
                "api": "torch.nn.Module.zero_grad",
                "family": Families.ZERO_GRAD,
                "module": self.session.tracker.modules.find(args[0])[0],
                "args": orjson.Fragment(_set_to_none(args, kwargs)),
                "where": where(),
            }

        def count(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            self.session.steps.zero_grad(None, -id(args[0]))

        return self._wrap_zeroing(original, describe, count)

    def _wrap_zeroing(
        self, original: Callable[..., None], describe: Describe, count: Count
    ) -> Callable[..., None]:
        session, steps = self.session, self.session.steps
        counted: Callable[..., None] = span_wrapper(
            original,
            session,
            describe,
            after=self._after_zero if self._looks_at_cleared else None,
            looks=True,
            count=count,
        )
        if not isinstance(steps, PatternStepCounter):
            return counted

        def zero_grad(*args: Any, **kwargs: Any) -> None:
            if is_traced() or (expected := steps.expects()) is None:
                return counted(*args, **kwargs)
            if args and expected == -id(args[0]):
                return original(*args, **kwargs) if kwargs else original(*args)
            diverged(session)
            return counted(*args, **kwargs)

        return hidden(zero_grad)

    def _after_zero(
        self, em: Emitter, span: int, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        tracker, cleared = self.session.tracker, args[0]
        if is_a(cleared, torch.nn.Module):
            names = frozenset({tracker.modules.find(cleared)[1].name})
        else:
            owner = self.owner(cleared) or self._owner_inside(cleared)
            names = NO_ROOTS if owner is None else self._trains(owner, cleared)
        tracker.scans.scan_gradients(em, span, names)


def _set_to_none(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    given = kwargs.get("set_to_none", args[1] if len(args) > 1 else True)
    return b'{"set_to_none":true}' if given else b'{"set_to_none":false}'
