"""Profiles as read from the events of a trace, and their numbers as short text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

from traincheck.errors import TraceFormatError, UsageError
from traincheck.profile.layers import (
    OUTSIDE,
    Layer,
    Origin,
    Parameter,
    Peak,
    Spent,
    StepRecord,
    Tensor,
)
from traincheck.schema.events import Event, ProfileEvent
from traincheck.store.reader import TraceReader

_UNITS = ("", "k", "M", "G", "T", "P")
_THOUSAND = 1000
_TEN = 10
_HUNDRED = 100
_NS_PER_MS = 1_000_000


def short(count: float, unit: str = "") -> str:
    """``3.29 M``: three digits and a power of 1000."""
    power = 0
    while abs(count) >= _THOUSAND and power < len(_UNITS) - 1:
        count /= _THOUSAND
        power += 1
    size = abs(count)
    digits = 0 if not power or size >= _HUNDRED else 1 if size >= _TEN else 2
    text = f"{count:.{digits}f}"
    return " ".join(filter(None, (text, _UNITS[power] + unit)))


def size(count: int) -> str:
    """Bytes, in powers of 1000: ``13.2 MB``."""
    return short(count, "B") if count else "0 B"


def milliseconds(nanoseconds: int) -> str:
    """``90.2``; three decimals below 1."""
    spent = nanoseconds / _NS_PER_MS
    return f"{spent:.3f}" if abs(spent) < 1 else f"{spent:.1f}"


def shape(sizes: Iterable[int]) -> str:
    """``4x128x256``; ``scalar`` for a tensor without dims."""
    return "x".join(map(str, sizes)) or "scalar"


def percent(share: float) -> str:
    """``2.1 %``."""
    return f"{100 * share:.1f} %"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The profiled steps of one process.

    Attributes:
        steps: in their order; at least one.
        rank: of the process.
    """

    steps: Sequence[StepRecord]
    rank: int = 0

    @property
    def typical(self) -> StepRecord:
        """The step of median duration: its numbers add up, which medians of each do not."""
        whole = [step for step in self.steps if step.complete] or list(self.steps)
        middle = median_low(step.duration_ns for step in whole)
        return next(step for step in whole if step.duration_ns == middle)

    @property
    def origin(self) -> Origin | None:
        """The first NaN or infinity that spread, of all profiled steps."""
        return next((step.origin for step in self.steps if step.origin is not None), None)

    @property
    def peak(self) -> Peak:
        """The largest memory of all profiled steps."""
        return max((step.peak for step in self.steps), key=lambda peak: peak.bytes)

    @property
    def overhead(self) -> float:
        """Time of the recording relative to that of the step; it is in no other number."""
        step = self.typical
        return step.phases.get("overhead", 0) / max(1, step.duration_ns)


def read_profile(path: Path | str, *, rank: int | None = None) -> Profile:
    """The profile in a trace.

    Args:
        path: the run directory.
        rank: of the process; None for the lowest that has a profile.

    Raises:
        TraceFormatError: ``path`` is not a run.
        UsageError: it has no profile, or none of this rank.
    """
    found = profiles_of(TraceReader(path, may_be_empty=True).events())
    if not found:
        raise UsageError(
            f"{path} has no profiled step",
            fix="record one: traincheck profile --trace DIR train.py; a run with fewer than 12 "
            "steps needs a lower --step",
        )
    if rank is None:
        return found[min(found)]
    if rank not in found:
        ranks = ", ".join(map(str, sorted(found)))
        raise UsageError(f"rank {rank} has no profiled step", fix=f"there are {ranks}")
    return found[rank]


def profiles_of(events: Iterable[Event]) -> dict[int, Profile]:
    """The profiles in these events, by rank."""
    found: dict[int, list[StepRecord]] = {}
    for event in events:
        if isinstance(event, ProfileEvent):
            found.setdefault(event.rank, []).append(step_of(event))
    return {rank: Profile(steps=steps, rank=rank) for rank, steps in sorted(found.items())}


def step_of(event: ProfileEvent) -> StepRecord:
    """One event as objects.

    Raises:
        TraceFormatError: it does not have the form of one.
    """
    try:
        return _step_of(event)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise TraceFormatError(
            f"the profile of step {event.step} cannot be read: {error!r}",
            fix="it was damaged or is not from traincheck; record it again",
        ) from error


def _step_of(event: ProfileEvent) -> StepRecord:
    layers = [_layer(record) for record in event.layers]
    outside = layers[0] if layers else Layer(path=OUTSIDE)
    outside.path = OUTSIDE
    roots: list[Layer] = []
    for layer, record in list(zip(layers, event.layers))[1:]:
        parent = int(record["parent"])
        (layers[parent].children if parent else roots).append(layer)
    number = event.step or 0
    found, origin = event.origin, None
    if found is not None:
        names = ("phase", "module", "operation", "value", "where")
        named = {name: found[name] for name in names}
        origin = Origin(step=number, is_skipped=found["skipped"], **named)
    return StepRecord(
        number=number,
        roots=roots,
        outside=outside,
        phases=event.phases,
        clock=event.clock,
        memory=event.memory,
        origin=origin,
        facts=event.facts,
        uncounted=event.uncounted,
        unseen=event.unseen,
        complete=event.complete,
    )


def _layer(record: Mapping[str, Any]) -> Layer:
    forward_flops, backward_flops = record["flops"]
    return Layer(
        path=record["path"],
        cls=record["class"],
        calls=record["calls"],
        recomputed=record["recomputed"],
        inputs=_tensors(record.get("inputs", ())),
        outputs=_tensors(record.get("outputs", ())),
        input_bytes=record.get("input_bytes", 0),
        output_bytes=record.get("output_bytes", 0),
        gradient_in=tuple(map(tuple, record.get("gradient_in", ()))),
        gradient_out=tuple(map(tuple, record.get("gradient_out", ()))),
        varies=record.get("varies", False),
        output_bad=record.get("output_bad", False),
        gradient_in_bad=record.get("gradient_in_bad", False),
        gradient_out_bad=record.get("gradient_out_bad", False),
        forward=Spent(*record.get("forward", ())),
        backward=Spent(*record.get("backward", ())),
        again=Spent(*record.get("again", ())),
        forward_flops=forward_flops,
        backward_flops=backward_flops,
        retained=record["retained"],
        grown=tuple(record.get("grown", (0, 0))),
        buffers=record.get("buffers", 0),
        parameters=tuple(Parameter(*values) for values in record.get("parameters", ())),
    )


def _tensors(forms: Iterable[Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor(tuple(shape), dtype) for shape, dtype in forms)
