"""Profile the steps of a window: begin, replace what shows a step, write the event, restore.

Outside of the window nothing is replaced. The step before the window is recorded too, without a
profile: its end is the beginning of the first profiled step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from traincheck.collect.listeners import Listener
from traincheck.collect.moments.updates import Update
from traincheck.collect.profile.clock import LOADER, OPTIMIZER, StepClock, step_clock
from traincheck.collect.profile.layers import Layers
from traincheck.collect.profile.operations import Operations, insert, remove
from traincheck.collect.profile.record import record_of
from traincheck.collect.profile.step import StepProfile
from traincheck.collect.steps.sampling import Window
from traincheck.collect.tensors.reading import is_a, is_training, unseen
from traincheck.collect.trace_writer.call_site import outside, where
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.event_file import write_file
from traincheck.collect.trace_writer.guard import guarded
from traincheck.handlers import give_back
from traincheck.schema.layout import PROFILED

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_FAST_PATHS = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
)
_OPERATIONS = "operations of compiled programs"
_OPERATIONS_IN_EVAL = "operations of models in evaluation mode"


Write = Callable[[int | None, dict[str, Any]], None]


def window(first: int, steps: int) -> Window:
    """The recorded steps: those that are profiled, and the one before."""
    return Window(max(0, first - 1), first + steps - 1)


class ProfileRecorder(Listener):
    """Profiles the chosen steps of a session.

    Args:
        session: the recording that counts the steps.
        first: number of the first profiled step.
        steps: how many are profiled.
        write: gets number and fields of each step, instead of the trace.
    """

    def __init__(
        self, session: Recorder, first: int, steps: int, write: Write | None = None
    ) -> None:
        super().__init__()
        self._session, self._sink = session, write
        self._steps = range(first, first + steps)
        self._is_installed = False
        self._layers = Layers(self._find)
        self._step: StepProfile | None = None
        self._clock: StepClock | None = None
        self._mode: Operations | None = None
        self._updating: list[Any] = []  # positions before the optimizers that step

    def _find(self, module: torch.nn.Module) -> tuple[str, torch.nn.Module]:
        path, root = self._session.tracker.modules.find(module)
        top = root.ref()
        return path, module if top is None else top

    # -- life

    def start(self) -> None:
        """Begin at once if the first step is profiled, else when the one before it ends."""
        self._session.hooks.at_step_end.add(self._at_step_end)
        if self._session.clock.step in self._steps:
            self._begin()

    def stop(self) -> None:
        """Restore everything. The step that is open is dropped."""
        self._session.hooks.at_step_end.leave(self._at_step_end)
        if self._step is not None:
            self._step.is_open = False
            self._step = None
        self._restore()

    def close(self, em: Emitter, *, complete: bool) -> None:
        """The run ends within a step."""
        if self._step is not None:
            self._write(em, complete=complete)
        self._restore()

    def finish(self) -> None:
        """The profiled block ends, and with it its last step."""
        em = self._session.local.em or self._session.emitter()
        try:
            guarded(em, self._finish, em)
        finally:
            self.stop()

    def _finish(self, em: Emitter) -> None:
        self.close(em, complete=True)

    def _at_step_end(self, em: Emitter) -> None:
        try:
            if self._step is not None:
                self._write(em, complete=True)
            number = self._session.clock.step
            if number is not None and number + 1 in self._steps:
                self._begin()
            elif self._is_installed:
                self._restore()
                if self._sink is None:
                    self._done()
        except Exception as error:  # training must go on whatever we got wrong
            self.stop()
            self._session.fault(self._at_step_end, error)

    def _begin(self) -> None:
        with unseen():
            if self._clock is None:
                self._clock = step_clock()
            self._updating = []
            self._step = StepProfile(self._layers, self._clock, self._session.fault)
            if not self._is_installed:
                self._is_installed = True
                moments = self._session.moments
                self.listen(moments.modules, self._call)
                self.listen(moments.engine, self._run_backward)
                self.listen(moments.fetches, self._fetch)
                update = Update(begins=self._before_update, after=self._after_update)
                self.listen(moments.updates, update)
            self._see_operations()

    def _write(self, em: Emitter, *, complete: bool) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        self._forget_operations()
        with unseen():
            step.close()
            scaled = self._session.steps.counters.get("scaler_step", 0)
            is_skipped = bool(scaled) and not step.updates
            fields = record_of(step, skipped_update=is_skipped, complete=complete)
            if self._sink is None:
                em.event("profile", fields)
            else:
                self._sink(self._session.clock.step, fields)

    def _done(self) -> None:
        """Tell the launcher that the last step is there."""
        try:
            write_file(f"{self._session.settings.directory}/{PROFILED}", b"")
        except OSError as error:  # the launcher waits for the end of the program then
            give_back(error)

    # -- what listens

    def _restore(self) -> None:
        self._forget_operations()
        self.mute()
        self._is_installed = False

    def _see_operations(self) -> None:
        step = self._step
        if step is None:
            return
        if _is_compiled():
            step.unseen[_OPERATIONS] = 1
            return
        self._mode = Operations(step)
        insert(self._mode)
        step.sees_operations = True

    def _forget_operations(self) -> None:
        mode, self._mode = self._mode, None
        if mode is not None:
            remove(mode)

    @hidden
    def _call(
        self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        step = self._step
        if step is None or not step.is_mine():
            return original(module, *args, **kwargs)
        try:
            frame = step.enter(module, args, kwargs)
            # A mode may change the path of computation that torch chooses in evaluation
            hides = (
                self._mode is not None
                and not is_training(module)
                and (is_a(module, _FAST_PATHS) or not torch.is_grad_enabled())
            )
        except Exception as error:  # training must go on whatever we got wrong
            give_back(error)
            self._give_up(error)
            return original(module, *args, **kwargs)
        try:
            result = (
                self._hidden(original, module, args, kwargs)
                if hides
                else original(module, *args, **kwargs)
            )
        except BaseException:
            self._leave(step, frame, None, has_raised=True)
            raise
        self._leave(step, frame, result)
        return result

    def _leave(
        self, step: StepProfile, frame: Any, result: Any, *, has_raised: bool = False
    ) -> None:
        if not step.is_open:
            return
        try:
            step.leave(frame, result, has_raised=has_raised)
        except Exception as error:  # training must go on whatever we got wrong
            give_back(error)
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """A part of the step is missing now: no profile is better than a wrong one."""
        self.stop()
        self._session.fault(self._give_up, error)

    def _hidden(
        self, original: Callable[..., Any], module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Call a module without the mode."""
        step, mode = self._step, self._mode
        self._mode = None
        is_out = mode is not None and remove(mode)
        if step is not None:
            step.unseen[_OPERATIONS_IN_EVAL] += 1
        try:
            return original(module, *args, **kwargs)
        finally:
            # The step may have ended meanwhile, and the next one has another mode
            if is_out and mode is not None and self._step is step and step is not None:
                insert(mode)
                self._mode = mode

    @hidden
    def _run_backward(
        self, original: Callable[..., Any], roots: Any, args: Any, kwargs: Any
    ) -> Any:
        step = self._step
        if step is None or not step.is_mine():
            return original(roots, *args, **kwargs)
        before = step.begin_backward(roots, where())
        try:
            return original(roots, *args, **kwargs)
        finally:
            if step.is_open:
                step.end_backward(before)

    @hidden
    def _fetch(self, original: Callable[..., Any], iterator: Any, args: Any, kwargs: Any) -> Any:
        step = self._step
        if step is None or not step.is_mine():
            return original(iterator)
        before = step.begin(LOADER)
        try:
            return original(iterator)
        finally:
            if step.is_open:
                step.timeline.go(*before)

    def _before_update(self, _: Any) -> bool:
        step = self._step
        if step is not None:
            self._forget_operations()  # hundreds of small ones, and no line of the program
            self._updating.append(step.begin(OPTIMIZER))
        return False

    def _after_update(self, optimizer: Any) -> None:
        step = self._step
        if step is not None and self._updating:
            step.end_optimizer(optimizer, self._updating.pop(), outside(sys._getframe(1)))
            if not self._updating:
                self._see_operations()


def _is_compiled() -> bool:
    """Whether parts of the program are compiled: a mode would have them compiled again."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", None)
    try:
        return bool(counters and counters["frames"].get("total"))
    except (KeyError, AttributeError, TypeError) as error:
        give_back(error)
        return True
