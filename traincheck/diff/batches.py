"""The batches of a step in two runs: the samples that were drawn, and their contents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from traincheck.diff.items import Answer, Comparison, Item, Phase, compare_values
from traincheck.diff.messages import A, B
from traincheck.readings.quantities import QUANTITIES
from traincheck.schema.events import BatchEvent


@dataclass(slots=True)
class BatchItems:
    """Differences of the batches of a step.

    is_split: the rows are the same, in another number of batches.
    notes: numbers that differ.
    """

    items: list[Item] = field(default_factory=list)
    compared: int = 0
    unknown: int = 0
    is_split: bool = False
    notes: list[str] = field(default_factory=list)


def compare_batches(a: Sequence[BatchEvent], b: Sequence[BatchEvent]) -> BatchItems:
    """Compare the batches of one step, in the order in which they reached the loop.

    Loaders have no names in a program: the order tells them apart.
    """
    found = BatchItems()
    if len(a) != len(b):
        rows_a, rows_b = rows_of(a), rows_of(b)
        found.compared += 1
        found.is_split = bool(rows_a) and rows_a == rows_b
        if not found.is_split:
            found.items.append(
                Item(phase=Phase.BATCH, name=(a or b)[0].loader, what="count",
                     a=a[0] if a else None, b=b[0] if b else None,
                     note=f"{len(a)} batches in {A}, {len(b)} in {B}")
            )  # fmt: skip
        return found
    for number, (one, other) in enumerate(zip(a, b, strict=True)):
        found.compared += 1
        result = _compare_one(one, other)
        if result.answer is Answer.UNKNOWN:
            found.unknown += 1
        elif result.answer is Answer.DIFFERENT:
            note = result.a or result.b or "" if result.what == "key" else ""
            found.notes += numbers(one, other)
            found.items.append(
                Item(phase=Phase.BATCH, name=one.loader, what=result.what, leaf=result.leaf, a=one,
                     b=other, index=number, position=(0, number), note=note)
            )  # fmt: skip
    return found


def numbers(a: BatchEvent, b: BatchEvent) -> Iterator[str]:
    """The numbers that two batches have differently, if a row of the table has words for that."""
    for row in QUANTITIES.values():
        if row.differs:
            mine, yours = ({one.key: one for one in row.reader().observe(e)} for e in (a, b))
            for key in mine.keys() & yours.keys():
                values = mine[key].value, yours[key].value
                if values[0] != values[1]:
                    of = row.differs.format(of=key.of)
                    yield f"{of}: {values[0]:.6g} in {A}, {values[1]:.6g} in {B}"


def rows_of(batches: Sequence[BatchEvent]) -> list[str]:
    """The fingerprints of the rows of several batches; empty if some are not recorded."""
    rows: list[str] = []
    for batch in batches:
        leaf = next(iter(batch.leaves.values()), None)
        shape = leaf.get("shape") if isinstance(leaf, dict) else None
        if not shape or shape[0] != len(batch.samples):
            return []
        rows += batch.samples
    return rows


def _compare_one(a: BatchEvent, b: BatchEvent) -> Comparison:
    """The first thing that two batches have differently; the leaves by name."""
    if a.indices and b.indices and (list(a.indices) != list(b.indices) or a.drawn != b.drawn):
        return Comparison(Answer.DIFFERENT, "indices")
    if len(a.leaves) == len(b.leaves) and a.leaves.keys() != b.leaves.keys():
        pairs = [(x, y) for x, y in zip(a.leaves, b.leaves, strict=True) if x != y]
        return Comparison(Answer.DIFFERENT, "key", a=pairs[0][0], b=pairs[0][1])
    result = compare_values(dict(a.leaves), dict(b.leaves))
    if result.answer is Answer.DIFFERENT and result.what == "bits":
        return replace(result, what="rows", leaf=differing_leaves(a, b))
    if result.answer is Answer.UNKNOWN and a.samples and b.samples:
        same = list(a.samples) == list(b.samples)
        return Comparison(Answer.SAME) if same else Comparison(Answer.DIFFERENT, "rows")
    return result


def differing_leaves(a: BatchEvent, b: BatchEvent) -> str:
    """The names of the leaves with another content, if others are alike; else ""."""
    differ = [
        name
        for name, leaf in a.leaves.items()
        if compare_values(leaf, b.leaves.get(name)).answer is Answer.DIFFERENT
    ]
    return ", ".join(differ) if len(differ) < len(a.leaves) else ""
