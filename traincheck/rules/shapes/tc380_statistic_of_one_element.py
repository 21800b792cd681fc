"""Statistics and normalizations that are taken over one element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.readings.operations import Look, Operation
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.operations import OperationUse, OperationUses
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short

_LOOKS = 3
_LINES = 1024  # that are followed
_SPREAD = "NaN, or 0 without correction"
_SIGN = "nothing but the sign"
_ZERO = "0, whatever the input is"
# What such a function returns
_RESULTS: Mapping[str, str] = {
    "std": _SPREAD, "var": _SPREAD, "std_mean": _SPREAD, "var_mean": _SPREAD, "normalize": _SIGN,
    "rms_norm": _SIGN, "layer_norm": _ZERO, "group_norm": _ZERO,
}  # fmt: skip


class StatisticOfOneElement(EventRule, code="TC380"):
    """statistic-of-one-element: a deviation or a normalization is taken over one element.

    What it checks:
        std, var, normalize, layer_norm, group_norm, rms_norm, and a value minus its mean are not
        taken over dims that have one element together.

    Why it matters:
        The deviation of one element is NaN or 0. One element minus its mean is 0, and divided by
        its length it is 1 or -1. The result does not depend on the size of the input, so the
        layers before it cannot learn through it. No error is raised.

    Fires on:
        - A wrong dim, e.g. normalize(x) of x with shape (batch, 1, features), which is taken over
          dim 1.
        - nn.LayerNorm(1) after a layer with one output.
        - x - x.mean(dim) over a dim of size 1.

        In at least three steps, and in all that were looked at, a line calls such a function for
        inputs that require a gradient. These steps are the first six, and every fiftieth.

    Stays quiet on:
        - Lines that take it over more elements in some steps, e.g. if only the last batch has one
          row.
        - Inputs of one element.
        - Inputs without a gradient.
        - mean, sum and norm over a dim of size 1.
        - A value minus the mean of another one.
        - normalize with another p than 2.

    Fix:
        Pass the dim of the features, or of the positions. Remove the normalization if there is one
        feature.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.normalize.html
    """

    title = "A statistic is taken over one element"
    likely_cause = "{observed}: the dim may be the wrong one, or there is one feature."
    fix = "Pass the dim of the features or positions, or remove the normalization."
    needs = needs_of(OperationUses)
    _lines: dict[tuple[int, Operation], _Line] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, OperationUses)
        if found is None or not isinstance(event, MarkEvent):
            return []
        for use in found.uses:
            numbers = use.numbers
            if use.look != "statistic" or numbers["gradient"] < 1:
                continue
            self.triggered += 1
            place = Operation(use.look, use.function, use.where)
            line = self._lines.get((event.rank, place))
            if line is None and len(self._lines) < _LINES:
                line = _Line(Look(event, use.calls, numbers).alone(place))
                self._lines[event.rank, place] = line
            if line is not None:
                line.steps += 1
                line.is_whole &= _is_of_one(use)
        return []

    def finish(self) -> list[Violation]:
        """A later step may show that a line takes it over more elements."""
        found = []
        for (_, place), line in self._lines.items():
            if line.steps < _LOOKS or not line.is_whole or place in self.reported:
                continue
            self.reported.add(place)
            where = short(place.where)
            result = _RESULTS.get(place.function)
            observed = (
                f"x - x.mean() at {where} subtracts the mean of one element, and returns {_ZERO}"
                if result is None
                else f"{place.function} at {where} is taken over one element, and returns {result}"
            )
            found.append(
                self.violation(
                    line.first,
                    stage="train",
                    subject=Subject(variable=f"{place.function} ({where})"),
                    symptom=Symptom.WRONG_VALUE,
                    message=observed,
                    expected="a dim with several elements",
                    observed=observed,
                )
            )
        return found


@dataclass(slots=True)
class _Line:
    """A line that calls such a function.

    Attributes:
        first: the first step in which it was looked at.
        steps: in which it was.
        is_whole: whether in all of them it was taken over one element.
    """

    first: Event
    steps: int = 0
    is_whole: bool = True


def _is_of_one(use: OperationUse) -> bool:
    """Whether one of several elements was taken in each call that was read."""
    return use.numbers["over"] == 1 and use.numbers["of"] > 1
