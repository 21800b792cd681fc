"""Whether one run continues another: the step at which it begins with the state of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from traincheck.diff.difference import Resume
from traincheck.diff.lookup import Lookup
from traincheck.diff.names import Names
from traincheck.diff.run_facts import Run
from traincheck.schema.events import CheckpointEvent

_MOST_LOOKED_UP = 8  # parameters


def find_resume(a: Run, b: Run, ranks: tuple[int, int], names: Names) -> Resume | None:
    """The step of A that B continues from; None if B does not load a state of A.

    B loads a state before its first step. Its parameters are those of A after some step, or its
    file is one that A wrote.
    """
    file = model = None
    for load in _first_loads(b, ranks[1]):
        if load.op == "load_state_dict" and load.values and model is None:
            model = load
        elif load.op == "load" and load.path and file is None:
            file = load
    if model is None or any(load.values == model.values for load in _first_loads(a, ranks[0])):
        return None  # both begin so
    by_values = _by_values(Lookup(a.reader, ranks[0]), model, names)
    path = None if file is None else file.path
    where = model.where or ""
    if by_values is not None:
        step, matching, of = by_values
        return (
            Resume(step=step, path=path, parameters=matching, of=of, where=where) if step else None
        )
    saved_in = [
        event.step
        for event in (a.reader.rank_events(ranks[0]) if path is not None else ())
        if isinstance(event, CheckpointEvent) and event.op == "save" and event.path == path
        if event.step is not None
    ]
    if not saved_in:
        return None
    of = min(len(model.values), _MOST_LOOKED_UP)
    return Resume(step=saved_in[-1] + 1, path=path, parameters=0, of=of, where=where)


def _first_loads(run: Run, rank: int) -> Iterator[CheckpointEvent]:
    """The loads of a run before its first step ends."""
    for view in run.views(rank):
        yield from view.checkpoints
        return


def _by_values(lookup: Lookup, load: CheckpointEvent, names: Names) -> tuple[int, int, int] | None:
    """The step that begins with these parameters, how many are found, and of how many."""
    begins: Counter[int] = Counter()
    looked_up = 0
    for given, fingerprint in list(load.values.items())[:_MOST_LOOKED_UP]:
        name = names.of_b(given)
        if name is None or not isinstance(fingerprint, str):
            continue
        looked_up += 1
        # A step begins with the value that was recorded in the one before it, or at the start.
        begins.update(
            {
                0 if place.record.get("g") == "init" else place.step + 1
                for place in lookup.of_value(fingerprint)
                if (place.kind, place.role, place.name) == ("state", "parameter", name)
                and isinstance(place.step, int)
            }
        )
    if not begins:
        return None
    # A frozen parameter is found once, at the start, and goes with any step.
    best = max(begins, key=lambda step: (step > 0, begins[step], -step))
    matching = begins[best] + (begins[0] if best else 0)
    return best, matching, looked_up
