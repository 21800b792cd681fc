"""Count steps that are not recorded by comparing each signal with the expected one.

Counting a signal takes some microseconds, because its code and data have left the caches: five
percent of a step of a millisecond. Comparing it takes one call into C. Only the order of signals
matters here, not their meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import chain, repeat
from operator import length_hint
from time import monotonic_ns
from typing import Any, NamedTuple

from traincheck.collect.steps.step_counter import NOTHING, StepCounter

LEFT = object()  # the token of an optimizer step that has ended
LAST = object()  # its replacement after the last update: recording may begin there
_MOST_SIGNS = 256  # of a step that is compared with others
_LONGEST_NS = 100_000_000  # that steps may go unreported

_ENTER, _EXIT = StepCounter.enter_optimizer, StepCounter.exit_optimizer
# Signals that may begin a step that is recognized by its signals
_FIRST = (StepCounter.batch, StepCounter.zero_grad)


class _Sign(NamedTuple):
    """One signal of a step.

    Attributes:
        token: None if it is not compared.
        method: counts it, with its arguments.
    """

    token: object
    method: Callable[..., None]
    given: tuple[str | None, ...] = ()


class _Pattern(NamedTuple):
    """A step that was counted.

    Attributes:
        state: the state after its first signal.
        updates: number of optimizers that step.
        last: position at which the last of them has ended.
    """

    signs: list[_Sign]
    state: Any
    counters: dict[str, int]
    updates: int
    last: int


class RepeatedSteps(NamedTuple):
    """Steps that have ended and equal one that was counted.

    Attributes:
        first: number of the first one.
        times_ns: time of the last optimizer step of each.
    """

    first: int
    times_ns: list[int]
    counters: dict[str, int]


class PatternStepCounter(StepCounter):
    """Like `StepCounter`, but unrecorded steps are only compared while they repeat.

    A counter depends on signals only. If a step begins with the same signal and in the same state
    as an earlier one, it is counted the same way as long as its signals are the same. So it is
    enough to compare each signal with the one that `expects` returns. `catch_up` counts the
    compared signals when another one comes, when a step must be reported, or on request. Nothing is
    guessed.

    Args:
        on_end: see `StepCounter`.
        optimizers: see `StepCounter`.
        skipped: how many steps are not recorded, from the current one on.
        on_caught_up: called with the steps that ended meanwhile, after counting.

    Attributes:
        tick: must be called with the time at each optimizer step that is only compared.
    """

    __slots__ = (
        "_began_ns", "_counted", "_is_odd", "_is_skipped", "_left", "_on_caught_up", "_pattern",
        "_signs", "_size", "_skipped", "_state", "_ticks", "tick",
    )  # fmt: skip

    def __init__(
        self,
        on_end: Callable[[], None],
        optimizers: Callable[[AbstractSet[str]], set[str]],
        skipped: Callable[[], int],
        on_caught_up: Callable[[RepeatedSteps], None],
    ) -> None:
        super().__init__(on_end, optimizers)
        self._skipped = skipped
        self._on_caught_up = on_caught_up
        # Of the current step
        self._signs: list[_Sign] = []
        self._is_odd = True  # its signals do not determine it
        self._is_skipped = False
        self._state: Any = None
        self._began_ns = 0
        self._counted: dict[str, int] = {}  # of the step before
        self._pattern: _Pattern | None = None
        self._left: Any = None  # an iterator over the expected signals, while they are compared
        self._size = 0
        self._ticks: list[int] = []
        self.tick = self._ticks.append

    # -- signs

    def created(self, optimizer: str) -> None:
        self.catch_up()
        super().created(optimizer)
        self._is_odd, self._pattern = True, None  # it may replace one that the pattern contains

    def batch(self, token: object = None) -> None:
        self._sign(_Sign(token, StepCounter.batch))

    def forward(self) -> None:
        if self._left is not None:
            self.catch_up()
            if not self.is_between:  # none is awaited
                return
        self._sign(_Sign(None, StepCounter.forward))

    def backward(self, token: object = None) -> None:
        self._sign(_Sign(token, StepCounter.backward))

    def zero_grad(self, optimizer: str | None, token: object = None) -> None:
        self._sign(_Sign(token, StepCounter.zero_grad, (optimizer,)))

    def enter_optimizer(self, optimizer: str, token: object = None) -> None:
        self._sign(_Sign(token, _ENTER, (optimizer,)))

    def exit_optimizer(self, optimizer: str) -> None:
        self._sign(_Sign(LEFT, _EXIT, (optimizer,)))

    def scaler_step(self, optimizer: str) -> None:
        self._sign(_Sign(None, StepCounter.scaler_step, (optimizer,)))

    def mark_irregular(self) -> None:
        self._is_odd = True

    def _sign(self, sign: _Sign) -> None:
        self.catch_up()
        step = self.step
        if len(self._signs) < _MOST_SIGNS:
            self._signs.append(sign)
        else:
            self._is_odd = True
        sign.method(self, *sign.given)
        if self.step != step:
            self._begin(sign)

    # -- steps

    def end(self) -> None:
        self._counted = self.counters.copy()
        super().end()

    def forget(self) -> None:
        super().forget()
        self._left, self.expects = None, NOTHING
        self._ticks.clear()
        self._signs, self._is_odd = [], True

    def _begin(self, first: _Sign) -> None:
        """A step has begun with this signal."""
        now, state = monotonic_ns(), self._deciding()
        signs = self._signs[:-1]
        if self._is_skipped and not self._is_odd and state is not None and self._state == state:
            self._learn(signs, first, state)
        skipped = self._skipped()
        self._signs, self._state, self._is_odd = [first], state, False
        self._is_skipped = skipped > 0
        known = self._pattern
        if known is not None and known.signs[0] == first and known.state == state:
            self._compare(known, min(skipped, _LONGEST_NS // max(now - self._began_ns, 1)))
        self._began_ns = now

    def _deciding(self) -> Any:
        """The state that decides how the next signals are counted; None if it depends on more."""
        if self.manual or self._made or self.inside or not self._expected:
            return None
        return (
            self._expected, frozenset(self._stepped), frozenset(self._zeroed), self._is_cleared,
            self._is_fed, self._is_spent, self._is_uneven, self._ever_zeroed,
        )  # fmt: skip

    def _learn(self, signs: list[_Sign], following: _Sign, state: Any) -> None:
        """Learn the signals of an unrecorded step if the next one began in the same way.

        Not in a loop without batches. There a forward between steps decides whether a backward pass
        begins a step, and forwards are not observed while signals are compared.
        """
        updates = [place for place, sign in enumerate(signs) if sign.method is _EXIT]
        has_batch = any(sign.method is StepCounter.batch for sign in signs)
        is_told = all(sign.token is not None for sign in signs) and signs[0] == following
        if is_told and updates and has_batch and following.method in _FIRST:
            self._pattern = _Pattern(signs, state, self._counted, len(updates), updates[-1])

    # -- steps that are compared

    def _compare(self, pattern: _Pattern, count: int) -> None:
        """Expect so many steps like this one, whose first signal was counted.

        Signals after the last update are counted: recording may begin there.
        """
        if count < 1:
            return
        tokens = [sign.token for sign in pattern.signs]
        expected = [*(tokens * count)[1 : pattern.last - len(tokens)], LAST]
        self._size, self._left = len(expected), iter(expected)
        self.expects = chain(self._left, repeat(None)).__next__

    def catch_up(self, *, unmatched: int = 0) -> None:
        """Count what was compared. unmatched: tokens given for signs that did not come."""
        left, pattern = self._left, self._pattern
        if left is None or pattern is None:
            return
        self._left, self.expects = None, NOTHING
        signs, _, counters, updates, _ = pattern
        ended, last = divmod(self._size - length_hint(left) - unmatched, len(signs))
        times = self._ticks[updates - 1 :: updates][:ended]
        self._ticks.clear()
        if times:
            self._began_ns = times[-1]
        first, self.step = self.step, self.step + ended
        self._clear()
        self._signs = signs[: last + 1]
        for sign in self._signs:
            sign.method(self, *sign.given)
        self._on_caught_up(RepeatedSteps(first, times, counters))
