"""Count optimizer iterations from the calls of the loop.

No loop is edited. Only calls and their order matter, not tensors.

A step ends at the first signal of the next iteration after every expected optimizer has stepped. A
signal is a batch, a training forward or the next zero_grad. Evaluation after a step therefore
belongs to it. docs/adr/0003 lists the cases.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import repeat

# Without any optimizer step or zero_grad, more backwards than this are not accumulation: each is
# counted as a step.
MAX_ACCUMULATION = 128

COUNTERS = ("batch", "forward", "backward", "zero_grad", "optimizer_step", "scaler_step")
_NONE: frozenset[str] = frozenset()
_ZEROS = dict.fromkeys(COUNTERS, 0)
NOTHING: Callable[[], object] = repeat(None).__next__


class StepCounter:
    """Decides where one step ends and the next begins.

    Signals have a ``token``, by which `PatternStepCounter` recognizes them.

    Args:
        on_end: called at the end of a step, before its number changes.
        optimizers: returns the ids of live optimizers that hold a parameter which the given ones,
        that have stepped, do not hold. Called only until the first step has ended, and when other
        optimizers step than before.

    Attributes:
        applied: ids of the optimizers that stepped since the last backward pass.
        expects: returns the token of the signal that need only be compared; None if there is none.
    """

    __slots__ = (
        "_ever_stepped",
        "_ever_zeroed",
        "_expected",
        "_is_cleared",
        "_is_endless",
        "_is_fed",
        "_is_spent",
        "_is_uneven",
        "_made",
        "_on_end",
        "_optimizers",
        "_stepped",
        "_zeroed",
        "applied",
        "counters",
        "expects",
        "inside",
        "manual",
        "step",
    )  # fmt: skip

    def __init__(
        self, on_end: Callable[[], None], optimizers: Callable[[AbstractSet[str]], set[str]]
    ) -> None:
        self.step = 0
        self.counters = _ZEROS.copy()
        self.manual = False  # the user marks steps; signals count but do not end them
        self.expects = NOTHING
        self.applied: AbstractSet[str] = _NONE
        self._on_end = on_end
        self._optimizers = optimizers
        # Those that stepped in the step before; None until then
        self._expected: set[str] | None = None
        self._made: set[str] = set()  # since then: the next ones to step
        self._stepped: set[str] = set()
        self._zeroed: set[str] = set()
        self._is_cleared = False  # by zero_grad of an optimizer that has stepped
        self._is_fed = False  # a batch came since the last backward
        self._is_spent = False  # gradients were cleared unused: the next batch begins a step
        # Depth of optimizer steps: an LBFGS closure runs forward and backward inside
        self.inside = 0
        self._ever_stepped = False
        self._ever_zeroed = False
        self._is_endless = False  # seen: more backwards than are accumulated, and no optimizer step
        self._is_uneven = False  # seen: not every optimizer steps in each iteration (n-critic)

    @property
    def is_between(self) -> bool:
        """Whether an iteration is over and the next signal ends the step."""
        stepped = self._stepped
        if not stepped or self.inside or self.manual:
            return False
        if stepped == self._expected and not self._made:  # the usual case
            return True
        expected = self._next()
        if self._is_uneven or stepped >= expected:
            return True
        return self._is_other and expected.isdisjoint(self._optimizers(_NONE))

    def _next(self) -> set[str]:
        """The optimizers that are expected to step."""
        if self._expected is None:
            return self._optimizers(self._stepped) | self._stepped
        if not self._made:
            return self._expected
        return self._made & (self._optimizers(self._stepped) | self._stepped) or self._made

    @property
    def _is_other(self) -> bool:
        """Whether no optimizer that stepped has stepped before: another training may have begun.

        Or the optimizers alternate: then the first signal only begins the next update.
        """
        stepped = self._stepped
        if not stepped or self.inside or self.manual:
            return False
        return stepped.isdisjoint(self._next())

    @property
    def _is_in_window(self) -> bool:
        """Whether cleared gradients are those of an accumulation window that has not stepped yet.

        A single backward pass is none: its step is missing. Neither are several if gradients were
        cleared before and nothing has stepped: such a loop clears once an iteration.
        """
        is_usual = self._ever_stepped or not self._ever_zeroed
        return is_usual and self.counters["backward"] > 1 and not self._is_spent

    @property
    def is_awaiting(self) -> bool:
        """Whether an optimizer was created since the last optimizer step."""
        return bool(self._made)

    def created(self, optimizer: str) -> None:
        """An optimizer was created: between two iterations, another training begins."""
        if self._expected is None or self.inside or self.manual:
            return
        if self.is_between:
            self.end()
            self._is_uneven = False
        self._made.add(optimizer)

    def batch(self, token: object = None) -> None:
        """A batch was fetched with grad enabled."""
        if self.is_between or self._is_other or self._is_spent:
            self.end()
        self._is_fed = True
        self.counters["batch"] += 1

    def forward(self) -> None:
        """A root module is called with grad enabled.

        If optimizers alternate, it may belong to the next one in the same iteration.
        """
        is_next = not self._is_uneven or not (
            self.counters["batch"] or self._zeroed - self._stepped - {""}
        )
        if is_next and (self.is_between or (self._is_cleared and self._is_other)):
            self.end()
        self.counters["forward"] += 1

    def backward(self, token: object = None) -> None:
        """Gradients are computed: a new iteration only if nothing else marks the loop."""
        counters = self.counters
        if not counters["forward"] and not counters["batch"] and self.is_between:
            self.end()
        elif (
            not self._ever_stepped and not self.inside and not self.manual and counters["backward"]
        ):
            self._is_endless |= counters["backward"] >= MAX_ACCUMULATION
            if (not self._optimizers(_NONE) or self._is_endless) and not self._ever_zeroed:
                self.end()
        self._is_fed = False
        self.applied = _NONE
        counters["backward"] += 1

    def zero_grad(self, optimizer: str | None, token: object = None) -> None:
        """Gradients of ``optimizer`` are cleared; None: those of a whole model."""
        key = optimizer or ""
        again = key in self._zeroed
        if not self.inside and not self.manual:
            unused = (
                self.counters["backward"] and not self._stepped and not self.counters["scaler_step"]
            )
            repeated = again and (self.is_between or optimizer in self._stepped)
            if repeated:
                self._is_uneven |= not self.is_between and not self._is_other
            if unused and self.counters["batch"] and not self._is_fed:
                # A missing or skipped step; or the same batch is used again (SAM)
                self._is_spent = True
            elif repeated or (unused and not self._is_in_window):
                self.end()
            self._is_cleared |= bool(self._stepped) and optimizer in (None, *self._stepped)
        self._ever_zeroed = True
        self._zeroed.add(key)
        self.counters["zero_grad"] += 1

    def enter_optimizer(self, optimizer: str, token: object = None) -> None:
        if not self.inside and not self.manual and optimizer in self._stepped:
            self._is_uneven |= not self.is_between and not self._is_other
            self.end()
        self.inside += 1

    def exit_optimizer(self, optimizer: str) -> None:
        self.inside -= 1
        if not self.inside:
            self._stepped.add(optimizer)
            self.applied = self.applied | {optimizer}
            self._ever_stepped = True
            self.counters["optimizer_step"] += 1

    def scaler_step(self, optimizer: str) -> None:
        """GradScaler.step returned; it may have skipped the optimizer."""
        self._stepped.add(optimizer)
        self._ever_stepped = True
        self.counters["scaler_step"] += 1

    def catch_up(self, *, unmatched: int = 0) -> None:
        """Count what was only compared so far.

        unmatched: 1 where another sign has come than the one that `expects` has just given.
        """

    def mark_irregular(self) -> None:
        """The signs alone do not identify this step."""

    def end(self) -> None:
        """End the current step now, also when ``on_end`` raises."""
        try:
            self._on_end()
        finally:
            self.step += 1
            if self._stepped:
                self._expected, self._made = self._stepped, set()
            self._clear()

    def forget(self) -> None:
        """Discard the current step: it continues in the parent process."""
        self._clear()

    def _clear(self) -> None:
        self._stepped = set()
        self._zeroed = set()
        self._is_cleared = self._is_fed = self._is_spent = False
        self.counters.update(_ZEROS)
