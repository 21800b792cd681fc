"""The loop, as it ran: calls for each update, and the learning rate."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from traincheck.facts.kinds import Kind, number_text
from traincheck.facts.reader import FactReader
from traincheck.readings import recorded
from traincheck.readings.optimizers import Holders
from traincheck.readings.steps import scheduler_class
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.facts import Fact
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_number

_FEW = 3  # updates: fewer show no pattern
_JUMP = 3.0  # a rate that is another by this factor from one update to the next
_NOISE = 1e-9  # a relative change of the rate below it is none
_GONE = 0.02  # of the largest rate, at the end
_LEFT = 2.0
_MOSTLY = 0.5

BACKWARDS = Kind(
    "loop.backward passes",
    {
        "none": "no backward pass before an update of {of}",
        "one": "1 backward pass before each update of {of}",
        "several": "{most} backward passes before each update of {of}",
        "varies": "{least} to {most} backward passes before an update of {of}",
    },
)
CLEARS = Kind(
    "loop.zero_grad",
    {
        "none": "{of} steps without zero_grad() being called between its updates",
        "one": "1 zero_grad() call for each update of {of}",
        "several": "{most} zero_grad() calls for each update of {of}",
        "varies": "{least} to {most} zero_grad() calls for an update of {of}",
    },
    unsaid="Gradients may be cleared by other means, as by setting them to None.",
)
CLIPS = Kind(
    "loop.clipping",
    {
        "none": "gradients are not clipped by torch.nn.utils",
        "never bites": "clip_grad_norm_ at {limit} changes no gradient; the largest norm is {norm}",
        "sometimes bites": "clip_grad_norm_ at {limit} cuts the gradient",
        "always bites": "clip_grad_norm_ at {limit} cuts the gradient; the median norm is {norm}",
        "always bites hard": "clip_grad_norm_ at {limit} cuts the gradient to less than a tenth; "
        "the median norm is {norm}",
        "of no gradient": "clip_grad_norm_ at {limit} gets gradients whose norm is 0",
        "not known": "gradients are clipped",
    },
    look="call",
)
RATE = Kind(
    "loop.learning rate",
    {
        "constant": "the learning rate of {of} is {first} in all {updates:update}",
        "rises": "the learning rate of {of} rises from {first} to {last} until the last update",
        "rises, then stays": "the learning rate of {of} rises from {first} to {last}, and stays",
        "falls to nothing": "the learning rate of {of} falls from {first} to {last}",
        "falls": "the learning rate of {of} falls from {first} to {last}",
        "falls a little": "the learning rate of {of} falls from {first} to {last}",
        "rises, then falls to nothing": "the learning rate of {of} rises from {first} to {top}, "
        "then falls to {last}",
        "rises, then falls": "the learning rate of {of} rises from {first} to {top}, then falls "
        "to {last}",
        "rises, then falls a little": "the learning rate of {of} rises from {first} to {top}, "
        "then falls to {last}",
        "falls, then rises": "the learning rate of {of} falls from {first} to {low}, then rises "
        "to {last}",
        "goes up and down": "the learning rate of {of} goes up and down, from {low} to {top}",
        "jumps up": "the learning rate of {of} jumps from {before} to {after} in update {update}",
        "zero": "the learning rate of {of} is 0 in all {updates:update}",
    },
)
SCHEDULERS = Kind(
    "loop.schedulers",
    {
        "none": "no scheduler of torch is made",
        "never stepped": "{of} is made and never stepped",
        "each update": "{of} is stepped {steps:time}, about once for each update",
        "more often": "{of} is stepped {steps:time} in {updates:update}",
        "less often": "{of} is stepped {steps:time} in {updates:update}",
    },
)
STEPPED = Kind(
    "loop.optimizers",
    {
        "all step": "each of {number:optimizer} steps",
        "one never steps": "{of} is made and never steps",
    },
)
MODES = frozenset({"none", "one", "several", "varies"})


@dataclass(slots=True)
class _Optimizer:
    """Calls since its last update, and in all of them."""

    since: Counter[str] = field(default_factory=Counter)
    updates: list[tuple[int, int]] = field(default_factory=list)  # backward passes, zero_grads
    rates: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Clip:
    """Calls of clip_grad_norm_ in one line."""

    limit: float | None = None
    norms: list[float] = field(default_factory=list)
    calls: int = 0
    bites: int = 0
    first: int | None = None


class Updates(FactReader):
    """Counts calls between the updates of each optimizer, and follows its learning rate."""

    kinds: ClassVar = (BACKWARDS, CLEARS, RATE, STEPPED)
    needs: ClassVar = Needs(
        calls=frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}),
        kinds=frozenset({"step", "optimizer"}),
    )
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._holders = Holders()
        self._known: dict[str, _Optimizer] = {}
        self._stepped: set[str] = set()
        self._backwards = 0

    def observe(self, event: Event) -> None:
        if isinstance(event, OptimizerEvent):
            self._holders.enter(event)
            self._known.setdefault(event.id, _Optimizer())
        elif isinstance(event, CallEvent) and event.exception is None:
            self._call(event)
        elif isinstance(event, StepEvent):
            self._end(event)

    def _call(self, event: CallEvent) -> None:
        family = event.family or event.api
        if family == Families.BACKWARD:
            self._backwards += 1
            for known in self._known.values():
                known.since["backward"] += 1
            return
        mine = self._known.get(event.owner or "")
        if mine is None:
            return
        if family == Families.ZERO_GRAD:
            mine.since["zero_grad"] += 1
        elif family == Families.OPTIMIZER_STEP:
            mine.updates.append((mine.since["backward"], mine.since["zero_grad"]))
            mine.since.clear()
            self._stepped.add(event.owner or "")

    def _end(self, event: StepEvent) -> None:
        if not event.recorded:  # calls of this step are missing
            for known in self._known.values():
                known.since.clear()
        for owner in self._stepped:
            found = [rate for rate in event.lr.get(owner, ()) if is_number(rate)]
            if found:
                self._known[owner].rates.append(max(found))
        self._stepped.clear()

    def facts(self) -> Iterator[Fact]:
        idle = [one for one, known in self._known.items() if not known.updates]
        for owner in idle if self._backwards >= _FEW else ():
            holder = self._holders.by_id[owner]
            yield Fact(
                kind=STEPPED.name,
                of=holder.label,
                seen_as="one never steps",
                where=holder.made.where or "",
            )
        if self._known and not idle:
            number = len(self._known)
            yield Fact(kind=STEPPED.name, seen_as="all step", values={"number": number})
        for owner, known in self._known.items():
            # What came before the first update may belong to no update of this optimizer
            counts = known.updates[1:] if len(known.updates) > _FEW else known.updates
            if len(counts) < _FEW:
                continue
            holder = self._holders.by_id[owner]
            for kind, place in ((BACKWARDS, 0), (CLEARS, 1)):
                yield Fact(
                    kind=kind.name,
                    of=holder.label,
                    where=holder.made.where or "",
                    **_calls([count[place] for count in counts]),
                )
            if len(known.rates) >= _FEW:
                seen_as, values = _course(known.rates)
                yield Fact(
                    kind=RATE.name,
                    of=holder.label,
                    seen_as=seen_as,
                    values=values,
                    where=holder.made.where or "",
                )


class Clips(FactReader):
    """Follows what clip_grad_norm_ does, and whether it is called at all."""

    kinds: ClassVar = (CLIPS,)
    needs: ClassVar = Needs(
        calls=frozenset({Families.CLIP_NORM, Families.CLIP_VALUE, Families.OPTIMIZER_STEP})
    )
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._by_place: dict[str, _Clip] = {}
        self._updates = 0

    def observe(self, event: Event) -> None:
        if not isinstance(event, CallEvent) or event.exception is not None:
            return
        family = event.family or event.api
        if family == Families.OPTIMIZER_STEP:
            self._updates += 1
            return
        clip = self._by_place.setdefault(event.where or "", _Clip())
        clip.calls += 1
        limit, norm = recorded.clip_limit(event), recorded.clipped_norm(event)
        if limit is not None and norm is not None:
            clip.limit = limit
            clip.norms.append(norm)
            if norm > limit:
                clip.bites += 1
                clip.first = event.step if clip.first is None else clip.first

    def facts(self) -> Iterator[Fact]:
        if not self._by_place and self._updates >= _FEW:
            yield Fact(kind=CLIPS.name, seen_as="none")
        for where, clip in self._by_place.items():
            if clip.calls < _FEW:
                continue
            seen_as, count, norm = _bites(clip)
            yield Fact(
                kind=CLIPS.name,
                of="clip_grad_norm_",
                seen_as=seen_as,
                values={"limit": clip.limit, "norm": norm},
                where=where,
                count=count,
                looks=clip.calls,
                first_step=clip.first,
            )


class Schedulers(FactReader):
    """Follows which schedulers are made and stepped."""

    kinds: ClassVar = (SCHEDULERS,)
    needs: ClassVar = Needs(
        calls=frozenset(
            {Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED, Families.OPTIMIZER_STEP}
        )
    )
    observes: ClassVar = needs

    def __init__(self) -> None:
        self._made: dict[str, CallEvent] = {}
        self._steps: Counter[str] = Counter()
        self._updates = 0

    def observe(self, event: Event) -> None:
        if not isinstance(event, CallEvent) or event.exception is not None:
            return
        family = event.family or event.api
        if family == Families.OPTIMIZER_STEP:
            self._updates += 1
        elif family == Families.SCHEDULER_CREATED:
            self._made[scheduler_class(event)] = event
        elif family == Families.SCHEDULER_STEP:
            self._steps[scheduler_class(event)] += 1

    def facts(self) -> Iterator[Fact]:
        if self._updates < _FEW:
            return
        if not self._made and not self._steps:
            yield Fact(kind=SCHEDULERS.name, seen_as="none")
        for name in dict.fromkeys([*self._made, *self._steps]):
            steps = self._steps[name]
            made = self._made.get(name)
            seen_as = (
                "never stepped"
                if not steps
                else "more often"
                if steps > self._updates * 1.5
                else "less often"
                if steps < self._updates * 0.75
                else "each update"
            )
            yield Fact(
                kind=SCHEDULERS.name,
                of=name,
                seen_as=seen_as,
                values={"steps": steps, "updates": self._updates},
                where=(made.where if made is not None else "") or "",
            )


def _calls(counts: list[int]) -> dict[str, Any]:
    """The class of numbers of calls, and what its sentence names."""
    least, most = min(counts), max(counts)
    usual, times = Counter(counts).most_common(1)[0]
    if times < 0.9 * len(counts):
        seen_as = "varies"
    else:
        least = most = usual
        seen_as = "none" if usual == 0 else "one" if usual == 1 else "several"
    return {"seen_as": seen_as, "values": {"least": least, "most": most}}


def _bites(clip: _Clip) -> tuple[str, int, float | None]:
    """The class of a clipping, in how many calls, and the norm that its sentence names."""
    norms = sorted(clip.norms)
    if not norms or clip.limit is None:
        return "not known", clip.calls, None
    median = norms[len(norms) // 2]
    if not norms[-1]:
        return "of no gradient", len(norms), 0.0
    if not clip.bites:
        return "never bites", len(norms), norms[-1]
    if clip.bites < len(norms):
        return "sometimes bites", clip.bites, median
    hard = median > 10 * clip.limit
    return f"always bites{' hard' if hard else ''}", clip.bites, median


def _course(rates: list[float]) -> tuple[str, Mapping[str, Any]]:
    """The class of a course of learning rates, and what its sentence names."""
    if len(rates) > _FEW and rates[1] < rates[0] and rates[1] < rates[2]:
        rates = rates[1:]  # a schedule that is stepped after the first update alone
    first, last, low, top = rates[0], rates[-1], min(rates), max(rates)
    values: dict[str, Any] = {
        "first": first, "last": last, "low": low, "top": top, "updates": len(rates),
    }  # fmt: skip
    if top == 0:
        return "zero", values
    turns = [
        up
        for before, after in itertools.pairwise(rates)
        if abs(after - before) > _NOISE * top
        for up in [after > before]
    ]
    if not turns:
        return "constant", values
    for place, (before, after) in enumerate(itertools.pairwise(rates), 1):
        if before > 0 and after > _JUMP * before and place >= _FEW:
            at = {"before": before, "after": after, "update": number_text(place)}
            return "jumps up", {**values, **at}
    runs = [turn for place, turn in enumerate(turns) if not place or turn != turns[place - 1]]
    if runs == [True]:
        stays = rates[-1 - len(rates) // 4] > (1 - _NOISE) * last
        return "rises, then stays" if stays else "rises", values
    if runs[-1] or len(runs) > 2:  # noqa: PLR2004
        return "falls, then rises" if len(runs) == 2 else "goes up and down", values  # noqa: PLR2004
    # A schedule that ends with the run leaves about one part in its number of updates
    falls = (
        "falls to nothing"
        if last <= max(_GONE, _LEFT / len(rates)) * top
        else "falls a little"
        if last > _MOSTLY * top
        else "falls"
    )
    return f"rises, then {falls}" if runs[0] else falls, values


READERS = (Updates, Clips, Schedulers)
