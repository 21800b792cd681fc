"""Facts of rows that functions and models get: which are picked, written, paired and repeated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from traincheck.facts.kinds import Kind
from traincheck.facts.operation_kinds import FEW, Numbers, Row
from traincheck.facts.operations import told
from traincheck.facts.reader import FactReader
from traincheck.readings.operations import OperationsSeen
from traincheck.readings.provider import RunStates
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.facts import Fact
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.operations import OperationUses
from traincheck.schema.places import short

_TABLE = 32  # rows that are written: fewer may be written by chance alone
_CHANGES = 4  # in a row of numbers: fewer are sorted by chance
_KNOWN = 3.0  # draws for each id of a line, after which it has drawn nearly all
_IDS = 16
_HALF = 0.5
_SOME = 0.02
_DEVIATIONS = 2.0
_STEP = "step"
_IN = "in {lines:line}"


def _written(n: Numbers) -> str | None:
    if n["rows"] < _TABLE:
        return None
    return "a part" if n["highest"] + 1 <= _HALF * n["rows"] else "to the end"


def _order(n: Numbers) -> str | None:
    if n["changes"] < _CHANGES:
        return None
    return "sorted" if n["sorted"] == 1 else "in another order"


def _targets(n: Numbers) -> str | None:
    if n["alone"] or "agree" not in n:
        return None
    chance = n["chance"]
    noise = _DEVIATIONS * (chance * (1 - chance) / n["rows"]) ** 0.5
    return "as by chance" if n["agree"] <= chance + noise else "agree"


def _ids(n: Numbers) -> str | None:
    if "only_here" not in n or n["other_distinct"] < _IDS:
        return None
    if n["other_drawn"] < _KNOWN * n["other_distinct"]:
        return None  # it may draw others still
    return "never in the other" if n["only_here"] >= _HALF else "in both"


def _pairs(n: Numbers) -> str:
    return "in training" if n["exchanged"] > max(_SOME, n["equal"]) else "none"


def _groups(n: Numbers) -> str:
    if not n["groups"]:
        return "no groups"
    return "neighbours" if n["neighbours"] else "apart"


ROWS: Sequence[Row] = (
    Row(
        Kind(
            "operators.rows that are written",
            {
                "to the end": f"indices reach the second half of the rows that they write {_IN}",
                "a part": "no index of {of}() that was read is above {highest}, of {rows} rows: "
                "the rows above are never written there",
            },
            _STEP,
        ),
        ("written rows",),
        _written,
        least=FEW,
    ),
    Row(
        Kind(
            "operators.numbers of rows",
            {
                "in another order": f"numbers that rows are divided by are in no order {_IN}",
                "sorted": "each row is divided by a number of `{name}`, and these numbers are "
                "sorted in each call that was read",
            },
            _STEP,
            unsaid="Batches may be sorted by design, as by length.",
        ),
        ("number of rows",),
        _order,
        least=FEW,
    ),
    Row(
        Kind(
            "loss.two targets of a batch",
            {
                "agree": f"labels and soft targets of one batch agree {_IN}",
                "as by chance": "the likely classes of the soft targets agree with the labels of "
                "the batch in {agree} of the rows; in another order of rows they would in {chance}",
            },
            _STEP,
        ),
        ("two targets",),
        _targets,
        least=2,
    ),
    Row(
        Kind(
            "values.equal rows of an input",
            {
                "no groups": f"rows of inputs are not groups of equal rows {_IN}",
                "neighbours": "the rows of the input `{name}` of {of} are groups of equal rows, "
                "side by side",
                "apart": "the rows of the input `{name}` of {of} are groups of equal rows, and no "
                "row is equal to the next one: equal rows stand apart",
            },
            _STEP,
        ),
        ("equal rows",),
        _groups,
    ),
    Row(
        Kind(
            "values.ids of two lines",
            {
                "in both": f"lines that hand ids to one input hand over the same ones {_IN}",
                "never in the other": "{only_here} of the ids of the input `{name}` of {of} that "
                "were read never occur in the other lines, where {other_distinct} ids were read",
            },
            _STEP,
        ),
        ("ids of a line",),
        _ids,
    ),
    Row(
        Kind(
            "rows.exchanged ids",
            {
                "none": f"evaluated pairs of ids are not those of training, exchanged {_IN}",
                "in training": "{exchanged} of the rows of `{name}` that are evaluated were read "
                "in training with both ids swapped",
            },
            _STEP,
        ),
        ("pairs of ids",),
        _pairs,
    ),
)
PICKED = Kind(
    "loss.rows that an evaluation picks",
    {
        "none": "no evaluation is seen to pick rows by a mask",
        "a part": "an evaluation picks some of {rows} rows by a mask, and no loss counts all of "
        "them",
        "all": "{of} counts all {rows} rows in training; of as many rows, a mask picks {share} in "
        "an evaluation, in {other}",
    },
)


class RowsOfCalls(FactReader):
    """Tells in which class each line of the program is, by the rows that it handles."""

    kinds: ClassVar = (*(row.kind for row in ROWS), PICKED)
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
        if self._seen.lines:
            yield self._picked()

    def _picked(self) -> Fact:
        """Whether a loss counts as many rows as an evaluation picks from."""
        picks = [(key.where, line.looks[-1].numbers) for key, line in self._seen.of("picked rows")]
        picks = [(where, n) for where, n in picks if 0 < n["share"] < 1]
        if not picks:
            return Fact(kind=PICKED.name, seen_as="none")
        for where, numbers in picks:
            for key, line in self._seen.of("loss"):
                last = line.looks[-1].numbers
                if last.get("elements") == numbers["rows"] and last.get("gradient"):
                    values = {**numbers, "other": short(where)}
                    return Fact(
                        kind=PICKED.name, of=key.function, seen_as="all", values=values,
                        where=key.where,
                    )  # fmt: skip
        return Fact(kind=PICKED.name, seen_as="a part", values={"rows": picks[0][1]["rows"]})


READERS = (RowsOfCalls,)
