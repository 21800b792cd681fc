"""Facts of functions of torch that a program calls, and of inputs and outputs of its models.

A line has the class that it has in most steps. One fact stands for all lines of the calm class.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

from traincheck.facts import value_kinds
from traincheck.facts.operation_kinds import APART, FEW, FOLDED, SIZES, SOME, Numbers, Row
from traincheck.facts.operation_kinds import ROWS as FIRST_ROWS
from traincheck.facts.reader import FactReader
from traincheck.readings.operations import Look, Operation, OperationLooks, OperationsSeen
from traincheck.readings.provider import RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.facts import Fact
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.operations import OperationUses
from traincheck.schema.places import short

ROWS: Sequence[Row] = (*FIRST_ROWS, *value_kinds.ROWS)


class Operations(FactReader):
    """Tells in which class each line of the program is."""

    kinds: ClassVar = (*(row.kind for row in ROWS), APART, SIZES)
    needs: ClassVar = needs_of(OperationUses)
    observes: ClassVar = Needs()
    uses: ClassVar = (OperationsSeen,)

    def bind(self, run_states: RunStates) -> None:
        self._seen = run_states.of(OperationsSeen)

    def observe(self, event: Event) -> None:
        """Nothing: the run state follows what is needed."""

    def facts(self) -> Iterator[Fact]:
        for row in ROWS:
            yield from told(row, self._seen.of(*row.looks))
        yield from self._inputs()
        yield from self._sizes()

    def _inputs(self) -> Iterator[Fact]:
        """Whether two lines hand inputs of another scale to one model."""
        by_input: defaultdict[tuple[str, str], list[tuple[Operation, float, float]]]
        by_input = defaultdict(list)
        for key, line in self._seen.of("input"):
            means, deviations = line.values("value_mean"), line.values("value_deviation")
            if means and deviations and not any(line.values("whole")):
                found = key, _mean(means), _mean(deviations)
                by_input[key.function, key.of].append(found)
        alike = 0
        for (function, name), lines in by_input.items():
            if len(lines) == 1:
                continue
            first, *others = lines
            apart = [one for one in others if _is_apart(first[1:], one[1:])]
            alike += len(others) - len(apart)
            for key, mean, deviation in apart:
                values = {
                    "name": name, "mean": mean, "deviation": deviation, "other_mean": first[1],
                    "other_deviation": first[2], "other": short(first[0].where),
                }  # fmt: skip
                yield Fact(
                    kind=APART.name, of=function, seen_as="another scale", values=values,
                    where=key.where,
                )  # fmt: skip
        if alike:
            yield Fact(kind=APART.name, seen_as="alike", values={"lines": alike})

    def _sizes(self) -> Iterator[Fact]:
        """How prediction and target of a loss of numbers compare in the end."""
        alike = 0
        for key, line in self._seen.of("loss"):
            last = line.looks[-1].numbers
            if len(line.looks) < FEW or "classes" in last or last["elements"] < SOME:
                continue
            seen_as = _size(last)
            if seen_as == "alike":
                alike += 1
            elif seen_as:
                values = {
                    "target": last["target_deviation"],
                    "prediction": last["prediction_deviation"],
                    "target_mean": last["target_mean"],
                    "prediction_mean": last["prediction_mean"],
                }
                yield Fact(
                    kind=SIZES.name, of=key.function, seen_as=seen_as, values=values,
                    where=key.where,
                )  # fmt: skip
        if alike:
            yield Fact(kind=SIZES.name, seen_as="alike", values={"lines": alike})


_SIZES = ("target_deviation", "prediction_deviation", "target_mean", "prediction_mean")
_FAR = 10.0


def _size(n: Numbers) -> str | None:
    if any(name not in n for name in _SIZES):
        return None
    target, prediction = n["target_deviation"], n["prediction_deviation"]
    if target == 0:
        return None
    if prediction > _FAR * target:
        return "the prediction is far larger"
    if target > _FAR * prediction:
        return "the target is far larger"
    between = abs(n["target_mean"] - n["prediction_mean"])
    return "their means are far apart" if between > 3 * max(target, prediction) else "alike"


def _is_apart(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two pairs of mean and deviation are of another scale."""
    small, large = sorted((one[1], other[1]))
    return large > 3 * small or abs(one[0] - other[0]) > 2 * large > 0


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers)


def told(row: Row, lines: Iterable[tuple[Operation, OperationLooks]]) -> Iterator[Fact]:
    """The facts of one kind: lines of the calm class together, the others each by itself."""
    calm = next(iter(row.kind.classes))
    folded: Counter[str] = Counter()
    for key, line in lines:
        seen = [(look, row.classify(look.numbers)) for look in line.looks]
        classes = [seen_as for _, seen_as in seen if seen_as is not None]
        if len(classes) < row.least:
            continue
        [(usual, count)] = Counter(classes).most_common(1)
        if usual == calm or (row.kind.name, usual) in FOLDED:
            folded[usual] += 1
            continue
        shown = [look for look, seen_as in seen if seen_as == usual]
        yield Fact(
            kind=row.kind.name,
            of=key.function,
            seen_as=usual,
            values=_values(key, shown[-1]),
            where=key.where,
            count=count,
            looks=len(classes),
            first_step=shown[0].event.step,
        )
    for seen_as, number in folded.items():
        yield Fact(kind=row.kind.name, seen_as=seen_as, values={"lines": number})


def _values(key: Operation, look: Look) -> Mapping[str, str | float]:
    """The numbers of a look by names that a sentence can use."""
    return {**look.numbers, "of_elements": look.numbers.get("of", 0.0), "name": key.of}


READERS = (Operations,)
