"""Propose how often each call happens in every window of a program, by keys and bounds."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.readings.steps import is_judged, is_skipped, scheduler_class
from traincheck.relations.base import ProposerBase, asked
from traincheck.relations.phrasing import STEP, is_library
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, CollectiveEvent, Event, StepEvent
from traincheck.schema.torch_api import LOSS_MODULES, Families
from traincheck.schema.values import tensor_summary

# An API or family, and the owner or module of the call where these differ
Key = tuple[str, str | None]
BACKWARD: Key = (Families.BACKWARD, None)
DETACH = "torch.Tensor.detach"
LOOP_DETACH: Key = (DETACH, "the loop")  # detaches outside other calls, such as for a log
REDUNDANT_ZERO_GRAD: Key = (
    Families.ZERO_GRAD,
    "redundant",
)  # clears gradients that no step applied
ROOT: Key = (Families.MODULE, "from outside")  # forwards of a model
MARKERS = frozenset({LOOP_DETACH, REDUNDANT_ZERO_GRAD, ROOT})  # no claims are about these
_OWNED = frozenset({Families.OPTIMIZER_STEP, Families.SCHEDULER_STEP})
# Calls of a loop, whether gradients are recorded or not.
LANDMARKS = _OWNED | {
    Families.BACKWARD,
    Families.ZERO_GRAD,
    Families.SCALE,
    Families.SCALER_STEP,
    Families.SCALER_UPDATE,
    Families.UNSCALE,
    Families.CLIP_NORM,
    Families.CLIP_VALUE,
}
UPDATES = frozenset({Families.OPTIMIZER_STEP, Families.SCALER_STEP})
MODES = frozenset({Families.TRAIN, Families.EVAL})
INIT = "torch.nn.init."
COLLECTIVE = "torch.distributed."
CLEARED: Key = (Families.ZERO_GRAD, None)
OPENINGS = frozenset({CLEARED, ROOT})
# Calls that show where a window ends, when a model is evaluated, and whether an iteration was left
# before its end.
FRAME = frozenset({Families.BACKWARD, Families.MODULE, Families.ZERO_GRAD, *UPDATES, *MODES})
# Without these the model does not learn as intended.
ESSENTIAL = frozenset(
    {Families.BACKWARD, Families.OPTIMIZER_STEP, Families.SCALER_STEP, Families.ZERO_GRAD}
)


def key_of(event: CallEvent) -> Key:
    """The key of a call: a landmark by its family, anything else by its name."""
    family = event.family
    if family in LANDMARKS:
        return family, event.owner if family in _OWNED else None
    return event.api, None


def is_listed(module: str | None) -> bool:
    """Whether a module is an item of a list or a part of one, such as an expert."""
    return module is not None and any(part.isdecimal() for part in module.split("."))


def takes_part(event: CallEvent) -> bool:
    """Whether a gradient may flow through a call: not through a transform of a sample."""
    result = tensor_summary(event.result)
    if result is None or result.requires_grad:
        return True
    given = map(tensor_summary, event.args.values())
    return any(tensor is not None and tensor.requires_grad for tensor in given)


_MOST_SINCE = 1 << 16


@dataclass(frozen=True, slots=True)
class CallWindow:
    """The calls from one update to the next.

    Attributes:
        step: the step in which the window began.
        first: the calls before it are not known.
        is_free: a closure ran several times, or a scaler skipped the step.
    """

    step: int | None
    rank: int
    counts: Counter[Key]
    event: StepEvent
    first: bool
    is_free: bool

    @property
    def forwards(self) -> int:
        """Calls of models, and of losses that are modules."""
        return self.counts[ROOT]

    @property
    def backwards(self) -> int:
        return self.counts[BACKWARD]

    def begins_like(self, other: CallWindow) -> bool:
        """Whether gradients are cleared before the first forward, or after it, as in ``other``."""
        return self._opening == other._opening

    @property
    def _opening(self) -> Key | None:
        return next((key for key in self.counts if key in OPENINGS), None)

    def asked(self, params: Mapping[str, Any]) -> int:
        """The number of calls that a claim requires in this window."""
        times: int = params["times"]
        return times * self.backwards if params["per"] == Families.BACKWARD else times


@dataclass(slots=True)
class CallWindows:
    """Cuts the calls of a process where its optimizers step.

    Windows do not end where steps end: the calls between an update and the first sign of the next
    iteration (draw a batch, step a schedule) are counted with the calls that follow. Calls of an
    evaluation are left out. So are calls within backward: activation checkpointing repeats some.

    wanted: keys to be counted; None for all.
    """

    wanted: Collection[Key] | None = None
    _now: Counter[Key] = field(default_factory=Counter)  # since the last update
    _done: Counter[Key] = field(default_factory=Counter)  # up to it
    _backward_ns: tuple[int, int] = (-1, -1)  # when the last two backwards began
    # Calls since the last, and their start; the latest if there are too many
    _since: deque[tuple[int, Key]] = field(default_factory=lambda: deque(maxlen=_MOST_SINCE))
    _has_forward: bool = False  # a model has computed something since the last backward
    _began: StepEvent | None = None  # the first step of the window, once it has ended
    _is_first: bool = True
    _is_free: bool = False
    _has_trained: bool = False
    _is_evaluating: bool = False
    _searching: set[str | None] = field(default_factory=set)  # optimizers that call one so
    # Optimizers that were cleared and have not stepped since -> whether a backward came since
    _cleared: dict[str | None, bool] = field(default_factory=dict)

    def call(self, event: CallEvent) -> Key | None:
        """Count a call; its key, if it counts."""
        family = event.family or event.api
        if event.exception is not None or event.api.startswith(INIT):
            return None
        if family in MODES:
            if family != Families.EVAL or "." not in (event.module or ""):  # a part may be frozen
                self._is_evaluating = family == Families.EVAL and self._has_trained
            return None
        key = key_of(event)
        if family in LANDMARKS:
            if family == Families.BACKWARD:
                self._backward_ns = (self._backward_ns[1], event.start_ns)
                self._has_trained, self._has_forward = True, False
                self._cleared = dict.fromkeys(self._cleared, True)
                self._take_back(event.start_ns)
            elif family == Families.OPTIMIZER_STEP:
                if self._backward_ns[0] >= event.start_ns:
                    self._searching.add(event.owner)  # a closure, called more than once
                # Or the mode was not set back: the calls are not known
                self._is_free |= event.owner in self._searching or self._is_evaluating
        elif self._is_left_out(event):
            return None
        self._has_forward |= event.root
        for counted_as in self._keys(event, key):
            self._now[counted_as] += 1
            if family not in LANDMARKS:
                self._since.append((event.start_ns, counted_as))
        if family in UPDATES:
            self._cleared.pop(event.owner, None)
            self._cleared.pop(None, None)  # of a module: any step applies its gradients
            self._done.update(self._now)
            self._now.clear()
            self._since.clear()
        return key

    def _keys(self, event: CallEvent, key: Key) -> list[Key]:
        """All keys that a call counts for."""
        wanted, module, api = self.wanted, event.module, key[0]
        found = [ROOT] if event.root else []
        if wanted is not None and key not in wanted and key != BACKWARD:
            return found
        found.append(key)
        if api == DETACH:
            if event.parent is None:
                found.append(LOOP_DETACH)
        elif api == Families.ZERO_GRAD:
            if self._cleared.get(event.owner):
                found.append(REDUNDANT_ZERO_GRAD)
            self._cleared[event.owner] = False
        if wanted is not None and module is not None and (api, module) in wanted:
            found.append((api, module))
        return found

    def _is_left_out(self, event: CallEvent) -> bool:
        if self._is_evaluating or not event.grad_enabled or event.stage in ("init", "checkpoint"):
            return True
        return event.api == DETACH and not self._may_cut(event)

    def _may_cut(self, event: CallEvent) -> bool:
        """Whether a detach can stop a gradient.

        It cannot for a loss that is logged, for gradients, or for parameters after an update.
        """
        tensor = tensor_summary(event.args.get("self"))
        is_deaf = tensor is not None and not (tensor.requires_grad and tensor.shape)
        return not is_deaf and (event.parent is not None or self._has_forward)

    def _take_back(self, start_ns: int) -> None:
        """Remove calls within a backward that began then: they were counted before it ended."""
        while self._since and self._since[-1][0] >= start_ns:
            key = self._since.pop()[1]
            self._now[key] -= 1
            if not self._now[key]:
                del self._now[key]
        self._since.clear()

    def collective(self, event: CollectiveEvent) -> None:
        """Count a collective operation, also in an evaluation."""
        key = (COLLECTIVE + event.op, None)
        if self.wanted is None or key in self.wanted:
            self._now[key] += 1

    def step(self, event: StepEvent) -> CallWindow | None:
        """The window that ends with this step; None if it cannot be judged."""
        if not is_judged(event):
            # Calls since its update count in the next step, and some are not known
            is_torn = event.is_gap or self._is_free or bool(self._now or self._done)
            for known in (self._now, self._done, self._since, self._cleared):
                known.clear()
            self._is_first, self._began = True, None
            self._is_free = is_torn and not event.recorded
            self._is_evaluating &= not any(event.modes.values())  # `train` may have been missed
            return None
        if self._began is None:
            self._began = event
        if not (event.counters.get("optimizer_step", 0) or event.counters.get("scaler_step", 0)):
            return None  # no update was made: the next one has these calls, too
        counts, self._done = self._done, Counter()
        window = CallWindow(
            step=self._began.step,
            rank=event.rank,
            counts=counts,
            event=event,
            first=self._is_first,
            is_free=self._is_free or is_skipped(event),
        )
        self._is_first = self._is_free = False
        self._began = None
        return window


_MIN_MEAN = 12.0  # of calls that come at random, one step in 160 000 has none
_METHOD, _MOST_CALLS = "torch.Tensor.", 8
_MIN_DISTINCT = 3  # counts, before what divides them all means anything


@dataclass(slots=True)
class CallCounts:
    """Counts of one key.

    Attributes:
        first: the count of the first window.
        later: count -> number of later windows.
        ratios: calls for each backward, if that is a whole number, else 0.
    """

    first: int = 0
    later: Counter[int] = field(default_factory=Counter)
    ratios: Counter[int] = field(default_factory=Counter)

    def enter(self, count: int, window: CallWindow) -> None:
        """Enter one window."""
        ratio, rest = divmod(count, window.backwards) if window.backwards else (0, 1)
        self.ratios[0 if rest else ratio] += 1
        if window.first:
            self.first = count
        else:
            self.later[count] += 1


def bound(
    key: Key, seen: CallCounts, backwards: int, *, is_echo: bool = False
) -> dict[str, Any] | None:
    """The common bounds of the counts of one key, as parameters of a claim; None if nothing.

    Args:
        key: what is counted.
        seen: its counts.
        backwards: how many backwards one optimizer applies at most; 0 with several optimizers.
        is_echo: be as exact as the counts, however few they are.
    """
    later = seen.later
    windows = sum(later.values())
    if not windows:
        return None
    mode, often = later.most_common(1)[0]
    if key[0].startswith(COLLECTIVE):  # more of them where ranks evaluate together
        low = min(later)
        is_usual = 2 * later[low] >= windows
        return _claim("least", low, STEP, skips_first=seen.first < low) if is_usual else None
    is_even = len(seen.ratios) == 1 and min(seen.ratios) > 0
    # The number of accumulated batches is a setting: each has a backward and its scaling.
    if is_even and (key[0] == Families.SCALE or (key[0] not in LANDMARKS and backwards > 1)):
        return _claim("exactly", min(seen.ratios), Families.BACKWARD, skips_first=False)
    # The last windows of epochs may be short.
    is_mostly = key == BACKWARD and mode == max(later) and 2 * often > windows
    if len(later) == 1 or is_mostly:
        if key == BACKWARD and backwards == 1 and not is_echo:  # another run may accumulate
            return _claim("least", 1, STEP, skips_first=False)
        if key[0].startswith(_METHOD) and mode > _MOST_CALLS:  # such as one for each sample
            return _claim("least", 1, STEP, skips_first=not seen.first)
        # The first window has nothing to clear yet: a missing zero_grad does no harm.
        is_less = seen.first < mode and key[0] == Families.ZERO_GRAD
        claim = _claim("exactly", mode, STEP, skips_first=seen.first != mode and not is_less)
        # A schedule continues after an update: it cannot before the first.
        is_late = key[0] == Families.SCHEDULER_STEP and not seen.first
        return {**claim, "late": True} if is_late else claim
    divisor = math.gcd(*later)
    if divisor > 1 and (is_echo or len(later) >= _MIN_DISTINCT):
        return _claim("multiple", divisor, STEP, skips_first=bool(seen.first % divisor))
    mean = sum(count * often for count, often in later.items()) / windows
    return _claim("least", 1, STEP, skips_first=not seen.first) if mean >= _MIN_MEAN else None


def _claim(form: str, times: int, per: str, *, skips_first: bool) -> dict[str, Any]:
    return {"form": form, "times": times, "per": per, "skips_first": skips_first}


_MIN_STEPS = 2
# A module that is called so often for each backward is called in a loop. Its length may be that of
# the longest sample of a batch, so an exact number needs more windows.
_LOOP = 4
_LOOP_STEPS = 300
LATER = "updates after the first"


def word(api: str, owner: str) -> str:
    """The term for a call of an optimizer or scheduler."""
    return f"count {api} {owner}"


class CountProposer(ProposerBase):
    """Proposes one count for each key that has one."""

    observes = asked("call", "collective", "step")

    def __init__(self) -> None:
        self._windows = CallWindows()
        self._open: dict[int, set[str]] = defaultdict(set)  # parent -> what it calls
        self._own: set[str] = set()  # called by the program itself
        self._modules: dict[str, set[str]] = defaultdict(set)  # whose forward an API was
        self._seen: dict[Key, CallCounts] = defaultdict(CallCounts)
        # Classes of outermost modules: those that a gradient flows through, and others, which may
        # run for each sample of a batch
        self._models: set[str] = set()
        self._transforms: set[str] = set()
        self._later = 0
        self._calls: Counter[str] = Counter()  # of each module, since the last window
        self._schedulers: dict[str | None, set[str]] = defaultdict(set)  # optimizer -> classes
        self._loop = 0  # how often, for each backward, one was called at the most

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            inside = self._open.pop(event.span, ())
            is_loss = event.api.startswith(LOSS_MODULES)
            if event.family == Families.MODULE and (is_loss or not is_library(event.api)):
                self._own.update(inside)
            if event.parent is None:
                self._own.add(event.api)
            else:
                self._open[event.parent].add(event.api)
            if event.family == Families.SCHEDULER_STEP:
                self._schedulers[event.owner].add(scheduler_class(event))
            key = self._windows.call(event)
            if key is not None and event.family == Families.MODULE:
                if event.parent is None:
                    (self._models if takes_part(event) else self._transforms).add(key[0])
                self._modules[key[0]].add(event.module or "")
                self._calls[event.module or ""] += 1
        elif isinstance(event, CollectiveEvent):
            self._windows.collective(event)
        elif isinstance(event, StepEvent):
            self._open.clear()
            window = self._windows.step(event)
            if window is not None and not window.is_free:
                self._enter(window)
            self._calls.clear()

    def _enter(self, window: CallWindow) -> None:
        for key, count in window.counts.items():
            self._seen[key].enter(count, window)
        self._later += not window.first
        most = max(self._calls.values(), default=0)
        self._loop = max(self._loop, most // max(window.backwards, 1))

    def hypotheses(self) -> Iterator[Hypothesis]:
        return self._claims(is_echo=False) if self._later >= _MIN_STEPS else iter(())

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """Claims that few updates support, and all claims without a limit to the backwards."""
        for claim in self._claims(is_echo=True):
            yield claim
            if "backwards" in claim.params:
                params = {key: v for key, v in claim.params.items() if key != "backwards"}
                yield Hypothesis(relation="count", params=params)

    def observed_terms(self) -> Iterator[str]:
        """Terms for the owners of calls, and for more than one update."""
        owned = self._seen.keys() - MARKERS
        yield from (word(api, owner) for api, owner in owned if owner is not None)
        if self._later:
            yield LATER

    def _claims(self, *, is_echo: bool) -> Iterator[Hypothesis]:
        if self._program.name is None:
            return
        for key, seen in sorted(
            self._seen.items(), key=lambda item: (item[0][0], item[0][1] or "")
        ):
            api, owner = key
            is_called = api in LANDMARKS or api in self._own or api.startswith(COLLECTIVE)
            # A loss is the same as a module and as a function: the function is counted.
            if key in MARKERS or not is_called or api.startswith(LOSS_MODULES):
                continue
            if api in self._transforms - self._models:
                continue
            found = bound(key, seen, self._backwards(), is_echo=is_echo)
            if found is not None and self._is_of_loop(key, found):
                found = {**found, "per": STEP, "form": "least", "times": 1}
            # There must be no step without any.
            if found is not None and sum(seen.later.values()) == self._later:
                params = {"api": api, "program": self._program.name, **found}
                if self._backwards() == 1 and api not in LANDMARKS:
                    params["backwards"] = 1  # what comes with each further one is not known
                if owner is not None:
                    params["owner"] = owner
                if api == Families.SCHEDULER_STEP:
                    params["schedulers"] = sorted(self._schedulers[owner])
                if len(self._modules.get(api, ())) == 1:
                    (params["module"],) = self._modules[api]
                yield Hypothesis(relation="count", params=params)

    def _is_of_loop(self, key: Key, found: Mapping[str, Any]) -> bool:
        is_inner = key[0] not in LANDMARKS and not key[0].startswith(COLLECTIVE)
        is_loop = self._loop >= _LOOP and self._later < _LOOP_STEPS
        return is_inner and is_loop and found["times"] >= self._loop

    def _backwards(self) -> int:
        """How many, at most, one optimizer applies; 0 where there are several optimizers."""
        optimizers = sum(api == Families.OPTIMIZER_STEP for api, _ in self._seen)
        return max(self._seen[BACKWARD].later, default=0) if optimizers == 1 else 0
