"""Compare a reference with this run, line by line: calls of a window, changes of variables.

The report decides how wide a line may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import SequenceMatcher

from traincheck.check.context.call_tree import Node, landmarks, lines
from traincheck.relations.phrasing import selector_text
from traincheck.schema.claims import Invariant
from traincheck.schema.excerpts import Excerpt, Line, Row
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families

_CONTEXT = 2  # equal lines around different ones
_MAX_ROWS = 16
_MAX_VARIABLES = 3
_GAP = Row(reference="...", observed="...")

PlacedLine = tuple[Line, str | None]


def diff_calls(reference: Excerpt, observed: Sequence[Node]) -> tuple[Row, ...]:
    """Rows that compare the two; none if they are equal."""
    theirs: list[PlacedLine] = [(line, None) for line in reference.lines]
    ours = lines(observed, reference.depth)
    if _models(theirs) and _models(ours) and _models(theirs).isdisjoint(_models(ours)):
        # Another program: only its landmarks can be compared.
        theirs = [(line, where) for line, where in theirs if line.family or not line.api]
        theirs = [(line, where) for line, where in _outermost(theirs)]
        ours = lines(landmarks(observed), 0)
    rows: list[Row] = []
    matcher = SequenceMatcher(None, _keys(theirs), _keys(ours), autojunk=False)
    for what, i, j, k, m in matcher.get_opcodes():
        if what == "equal":
            for left, right in zip(theirs[i:j], ours[k:m]):
                same = (left[0].note, left[0].count) == (right[0].note, right[0].count)
                mark = " " if same else "~"
                rows.append(Row(reference=_label(left), observed=_label(right), mark=mark))
        else:
            rows += [Row(reference=_label(one), observed=None, mark="-") for one in theirs[i:j]]
            rows += [Row(reference=None, observed=_label(one), mark="+") for one in ours[k:m]]
    if all(row.mark == " " for row in rows):
        return ()
    return tuple(rows if len(rows) <= _MAX_ROWS else _shortened(rows))


def _models(found: Iterable[PlacedLine]) -> set[str]:
    return {line.api for line, _ in found if line.family == Families.MODULE}


def _outermost(found: Sequence[PlacedLine]) -> Iterable[PlacedLine]:
    """Without the lines below a call, and without empty repeat counts."""
    below: int | None = None
    kept: list[PlacedLine] = []
    for line, where in found:
        if below is not None and line.depth > below:
            continue
        below = line.depth if line.api else None
        kept.append((line, where))
    for one, after in zip(kept, [*kept[1:], None]):
        if one[0].api or (after is not None and after[0].depth > one[0].depth):
            yield one


def _keys(found: Sequence[PlacedLine]) -> list[tuple[int, str]]:
    """Keys that are equal for lines to be paired, whatever their repeat counts."""
    keys = []
    times: list[int] = []  # depths of the repeat counts above a line
    for line, _ in found:
        times = [depth for depth in times if depth < line.depth]
        keys.append((line.depth - len(times), line.family or line.api))
        times += [] if line.api else [line.depth]
    return keys


def _label(placed: PlacedLine) -> str:
    """``  Linear.forward x3 (in evaluation mode)  train.py:32``."""
    line, where = placed
    indent = "  " * line.depth
    if not line.api:
        return f"{indent}{line.count} times:"
    name = "backward" if line.api == Families.BACKWARD else ".".join(line.api.split(".")[-2:])
    times = f" x{line.count}" if line.count > 1 else ""
    note = f" ({line.note})" if line.note else ""
    place = f"  {short(where)}" if where else ""
    return f"{indent}{name}{times}{note}{place}"


def _shortened(rows: Sequence[Row]) -> list[Row]:
    """The rows that differ, with a little context."""
    marked = [i for i, row in enumerate(rows) if row.mark != " "][: _MAX_ROWS - 2 * _CONTEXT]
    near = {i for at in marked for i in range(at - _CONTEXT, at + _CONTEXT + 1)}
    found: list[Row] = []
    for i, row in enumerate(rows):
        if i in near:
            found.append(row)
        elif not found or found[-1] is not _GAP:
            found.append(_GAP)
    return found


def variable_changes(
    invariant: Invariant, counts: Sequence[tuple[str, int]], steps: int
) -> tuple[Row, ...]:
    """How often variables changed in the reference, and how often they did not here.

    Args:
        invariant: claims that the variables change.
        counts: name of a variable and number of steps in which it did not change.
        steps: number of steps of this run.
    """
    params = invariant.hypothesis.params
    verb = "is cleared" if params.get("change") == "cleared" else "changes"
    kind = selector_text(params)
    every, within = int(params.get("period", 1)), int(params.get("within", 1))
    often = f"{invariant.support.steps} steps" if every == 1 else f"every {every} steps"
    text = f"every {kind} {verb} in all of {often}" if every == 1 else f"{kind} {verb} {often}"
    if within > 1:
        text = f"every {kind} {verb} within {within} steps"
    rows = []
    for name, count in counts[:_MAX_VARIABLES]:
        missed = min(count * within, steps) if within > 1 else count
        seen = f"{name}: not in {missed} of {max(steps, missed)} steps"
        rows.append(Row(reference=text, observed=seen, mark="~"))
        text = ""
    left = len(counts) - _MAX_VARIABLES
    if left > 0:
        rows[-1] = replace(rows[-1], observed=f"{rows[-1].observed}, and {left} more variables")
    return tuple(rows)
