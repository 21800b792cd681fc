"""How often each call happens from one update to the next, and what such counts share.

Judges nothing.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.facts.steps import is_judged, is_skipped
from traincheck.relations.phrasing import STEP, short
from traincheck.schema.events import CallEvent, CollectiveEvent, StepEvent
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary
from traincheck.schema.words import counted

_F = Families
# An API or family, and whose call it is where owners are told apart, or by which module
Key = tuple[str, str | None]
BACKWARD: Key = (_F.BACKWARD, None)
DETACH = "torch.Tensor.detach"
LOOSE: Key = (DETACH, "the loop")  # of these, what no other call makes: it may be for a log
IN_VAIN: Key = (_F.ZERO_GRAD, "in vain")  # of these, what clears gradients that none applied
ROOT: Key = (_F.MODULE, "from outside")  # what a model computes of a batch
SIGNS = frozenset({LOOSE, IN_VAIN, ROOT})  # count nothing by themselves
_OWNED = frozenset({_F.OPTIMIZER_STEP, _F.SCHEDULER_STEP})
# What a loop does, whether gradients are recorded or not.
LANDMARKS = _OWNED | {
    _F.BACKWARD,
    _F.ZERO_GRAD,
    _F.SCALE,
    _F.SCALER_STEP,
    _F.SCALER_UPDATE,
    _F.UNSCALE,
    _F.CLIP_NORM,
    _F.CLIP_VALUE,
}
_UPDATES = frozenset({_F.OPTIMIZER_STEP, _F.SCALER_STEP})
_MODES = frozenset({_F.TRAIN, _F.EVAL})
_MIN_MEAN = 12.0  # of calls that come at random, one step in 160 000 has none
_METHOD, _MOST_CALLS = "torch.Tensor.", 8
_MOST_SINCE = 1 << 16
_MIN_DISTINCT = 3  # counts, before what divides them all means anything
_INIT = "torch.nn.init."
COLLECTIVE = "torch.distributed."
CLEARED: Key = (_F.ZERO_GRAD, None)
_OPENINGS = frozenset({CLEARED, ROOT})
# Whoever counts must hear of these, to know where a window ends, when a model is evaluated, and
# whether an iteration was left before its end.
FRAME = frozenset({_F.BACKWARD, _F.MODULE, _F.ZERO_GRAD, *_UPDATES, *_MODES})
# Without these nothing is learned, or nothing that was meant.
ESSENTIAL = frozenset({_F.BACKWARD, _F.OPTIMIZER_STEP, _F.SCALER_STEP, _F.ZERO_GRAD})


def key_of(event: CallEvent) -> Key:
    """What a call counts as: a landmark by its family, anything else by its own name."""
    family = event.family
    if family in LANDMARKS:
        return family, event.owner if family in _OWNED else None
    return event.api, None


def scheduler_of(event: CallEvent) -> str:
    """The class of a scheduler that is made or stepped: ``CosineAnnealingLR``."""
    return event.api.split(".")[-2]


def is_listed(module: str | None) -> bool:
    """Whether a module is one of a list, or a part of one, as experts are."""
    return module is not None and any(part.isdecimal() for part in module.split("."))


@dataclass(frozen=True, slots=True)
class Page:
    """One window. step: in which it began. first: nothing is known of what came before it.

    is_free: a closure ran as often as its optimizer liked, or a scaler left the step out.
    """

    step: int | None
    rank: int
    counts: Counter[Key]
    event: StepEvent
    first: bool
    is_free: bool

    @property
    def forwards(self) -> int:
        """Of models, and of losses that are modules."""
        return self.counts[ROOT]

    @property
    def backwards(self) -> int:
        return self.counts[BACKWARD]

    def begins_like(self, other: Page) -> bool:
        """Whether gradients are cleared before the first forward, or after it, as in another."""
        return self._opening == other._opening

    @property
    def _opening(self) -> Key | None:
        return next((key for key in self.counts if key in _OPENINGS), None)

    def asked(self, params: Mapping[str, Any]) -> int:
        """How many calls a claim asks for in this window."""
        times: int = params["times"]
        return times * self.backwards if params["per"] == _F.BACKWARD else times


@dataclass(slots=True)
class Windows:
    """Cuts the calls of a process where its optimizers step.

    Not where steps end: what a loop does between an update and the first sign of the next
    iteration (draw a batch, step a schedule) belongs to no side for certain, and is counted with
    what follows it. Calls that evaluate are left out, and those within backward: what a checkpoint
    of activations computes again there depends on what it kept.

    wanted: keys to be counted; None for all.
    """

    wanted: Collection[Key] | None = None
    _now: Counter[Key] = field(default_factory=Counter)  # since the last update
    _done: Counter[Key] = field(default_factory=Counter)  # up to it
    _backward_ns: tuple[int, int] = (-1, -1)  # when the last two backwards began
    # Calls since the last, and their start; where none ever comes, the latest
    _since: deque[tuple[int, Key]] = field(default_factory=lambda: deque(maxlen=_MOST_SINCE))
    _has_forward: bool = False  # a model has computed something since the last backward
    _began: StepEvent | None = None  # the first step of the window, once it has ended
    _is_first: bool = True
    _is_free: bool = False
    _has_trained: bool = False
    _is_evaluating: bool = False
    _searching: set[str | None] = field(default_factory=set)  # optimizers that call one so
    # Who was cleared and has not stepped since -> whether a backward came since
    _cleared: dict[str | None, bool] = field(default_factory=dict)

    def call(self, event: CallEvent) -> Key | None:
        """Count a call; its key, if it counts."""
        family = event.family or event.api
        if event.exception is not None or event.api.startswith(_INIT):
            return None
        if family in _MODES:
            if family != _F.EVAL or "." not in (event.module or ""):  # a part may be frozen
                self._is_evaluating = family == _F.EVAL and self._has_trained
            return None
        key = key_of(event)
        if family in LANDMARKS:
            if family == _F.BACKWARD:
                self._backward_ns = (self._backward_ns[1], event.start_ns)
                self._has_trained, self._has_forward = True, False
                self._cleared = dict.fromkeys(self._cleared, True)
                self._take_back(event.start_ns)
            elif family == _F.OPTIMIZER_STEP:
                self._optimizer_step(event)
        elif self._is_left_out(event):
            return None
        self._has_forward |= event.root
        for counted_as in self._keys(event, key):
            self._now[counted_as] += 1
            if family not in LANDMARKS:
                self._since.append((event.start_ns, counted_as))
        if family in _UPDATES:
            self._cleared.pop(event.owner, None)
            self._cleared.pop(None, None)  # of a module: whoever steps applies its gradients
            self._done.update(self._now)
            self._now.clear()
            self._since.clear()
        return key

    def _keys(self, event: CallEvent, key: Key) -> list[Key]:
        """All that a call counts as."""
        wanted, module, api = self.wanted, event.module, key[0]
        found = [ROOT] if event.root else []
        if wanted is not None and key not in wanted and key != BACKWARD:
            return found
        found.append(key)
        if api == DETACH:
            if event.parent is None:
                found.append(LOOSE)
        elif api == _F.ZERO_GRAD:
            if self._cleared.get(event.owner):
                found.append(IN_VAIN)
            self._cleared[event.owner] = False
        if wanted is not None and module is not None and (api, module) in wanted:
            found.append((api, module))
        return found

    def _is_left_out(self, event: CallEvent) -> bool:
        if self._is_evaluating or not event.grad_enabled or event.stage in ("init", "checkpoint"):
            return True
        return event.api == DETACH and not self._may_cut(event)

    def _may_cut(self, event: CallEvent) -> bool:
        """Whether a detach can keep a gradient from going anywhere.

        Not that of a loss that is logged, of gradients, or of parameters after an update.
        """
        tensor = tensor_summary(event.args.get("self"))
        is_deaf = tensor is not None and not (tensor.requires_grad and tensor.shape)
        return not is_deaf and (event.parent is not None or self._has_forward)

    def _optimizer_step(self, event: CallEvent) -> None:
        if self._backward_ns[0] >= event.start_ns:
            self._searching.add(event.owner)  # a closure, called more than once
        # Or nobody set the mode back: what was called is not known
        self._is_free |= event.owner in self._searching or self._is_evaluating

    def _take_back(self, start_ns: int) -> None:
        """A backward ended that began then: calls are told of when they end, so before it."""
        while self._since and self._since[-1][0] >= start_ns:
            key = self._since.pop()[1]
            self._now[key] -= 1
            if not self._now[key]:
                del self._now[key]
        self._since.clear()

    def collective(self, event: CollectiveEvent) -> None:
        """Count what ranks do together; whether to evaluate is not known of it."""
        key = (COLLECTIVE + event.op, None)
        if self.wanted is None or key in self.wanted:
            self._now[key] += 1

    def step(self, event: StepEvent) -> Page | None:
        """The window that ends with this step; None when it says nothing."""
        if not is_judged(event):
            # What was called since its update counts in the next step, and not all of it is known
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
        page = Page(
            step=self._began.step,
            rank=event.rank,
            counts=counts,
            event=event,
            first=self._is_first,
            is_free=self._is_free or is_skipped(event),
        )
        self._is_first = self._is_free = False
        self._began = None
        return page


def takes_part(event: CallEvent) -> bool:
    """Whether a gradient may flow through a call: not through a transform of a sample."""
    result = tensor_summary(event.result)
    if result is None or result.requires_grad:
        return True
    given = map(tensor_summary, event.args.values())
    return any(tensor is not None and tensor.requires_grad for tensor in given)


@dataclass(slots=True)
class Seen:
    """Counts of one key. first: in the first window. later: count -> windows, the first left out.

    ratios: calls for each backward, where that is a whole number; 0 elsewhere.
    """

    first: int = 0
    later: Counter[int] = field(default_factory=Counter)
    ratios: Counter[int] = field(default_factory=Counter)

    def enter(self, count: int, page: Page) -> None:
        """Take note of one window."""
        ratio, rest = divmod(count, page.backwards) if page.backwards else (0, 1)
        self.ratios[0 if rest else ratio] += 1
        if page.first:
            self.first = count
        else:
            self.later[count] += 1


def bound(key: Key, seen: Seen, backwards: int, *, is_echo: bool = False) -> dict[str, Any] | None:
    """What the counts of one key have in common, as parameters of a claim; None if nothing.

    backwards: how many of them, at most, one optimizer applies; 0 where there are several.
    is_echo: as exact as what was seen, however little that was.
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
    # How many batches are accumulated is a setting: each has a backward and its scaling.
    if is_even and (key[0] == _F.SCALE or (key[0] not in LANDMARKS and backwards > 1)):
        return _claim("exactly", min(seen.ratios), _F.BACKWARD, skips_first=False)
    # The last windows of epochs may be short.
    is_mostly = key == BACKWARD and mode == max(later) and 2 * often > windows
    if len(later) == 1 or is_mostly:
        if (
            key == BACKWARD and backwards == 1 and not is_echo
        ):  # it may be told to accumulate some other time
            return _claim("least", 1, STEP, skips_first=False)
        if key[0].startswith(_METHOD) and mode > _MOST_CALLS:  # one for each sample, say
            return _claim("least", 1, STEP, skips_first=not seen.first)
        # In the first window there is nothing to clear yet: its lack does no harm.
        is_less = seen.first < mode and key[0] == _F.ZERO_GRAD
        claim = _claim("exactly", mode, STEP, skips_first=seen.first != mode and not is_less)
        # A schedule goes on after an update: before the first one there is nothing to go on from.
        is_late = key[0] == _F.SCHEDULER_STEP and not seen.first
        return {**claim, "late": True} if is_late else claim
    divisor = math.gcd(*later)
    if divisor > 1 and (is_echo or len(later) >= _MIN_DISTINCT):
        return _claim("multiple", divisor, STEP, skips_first=bool(seen.first % divisor))
    mean = sum(count * often for count, often in later.items()) / windows
    return _claim("least", 1, STEP, skips_first=not seen.first) if mean >= _MIN_MEAN else None


def _claim(form: str, times: int, per: str, *, skips_first: bool) -> dict[str, Any]:
    return {"form": form, "times": times, "per": per, "skips_first": skips_first}


def subject_of(params: Mapping[str, Any]) -> str:
    """What a claim counts, in words."""
    name, whose = short(params["api"]), params.get("owner") or params.get("module")
    return name if not whose or name == f"{whose}.forward" else f"{name} of {whose}"


def often_of(params: Mapping[str, Any]) -> str:
    """How often, in words."""
    times = params["times"]
    plural = counted(times, "time")
    return {
        "exactly": "once" if times == 1 else f"exactly {plural}",
        "least": f"at least {plural}",
        "multiple": f"a multiple of {plural}",
    }[params["form"]]
