"""Whether one run continues another: the step at which it begins with the state of the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from traincheck.diff.difference import Resume
from traincheck.diff.lookup import Lookup
from traincheck.diff.names import Names
from traincheck.diff.run_facts import Run
from traincheck.schema.events import CheckpointEvent, Event

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
    step_of_save = _by_path(a, ranks[0], path)
    if step_of_save is None:
        return None
    of = min(len(model.values), _MOST_LOOKED_UP)
    return Resume(step=step_of_save, path=path, parameters=0, of=of, where=where)


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
        steps = {
            _step_after(place.record)
            for place in lookup.of_value(fingerprint)
            if place.kind == "state" and place.name == name and place.role == "parameter"
        }
        begins.update(step for step in steps if step is not None)
    if not begins:
        return None
    # A frozen parameter is found once, at the start, and goes with any step.
    best = max(begins, key=lambda step: (step > 0, begins[step], -step))
    matching = begins[best] + (begins[0] if best else 0)
    return best, matching, looked_up


def _step_after(record: dict[str, object]) -> int | None:
    """The step that a recorded value is there at the beginning of."""
    step = record.get("s")
    if not isinstance(step, int):
        return None
    return 0 if record.get("g") == "init" else step + 1


def _by_path(a: Run, rank: int, path: str | None) -> int | None:
    """The step after the last save of A to a file; None if A never wrote it."""
    if path is None:
        return None
    found = None
    for event in a.reader.rank_events(rank):
        if _is_save_to(event, path) and event.step is not None:
            found = event.step + 1
    return found


def _is_save_to(event: Event, path: str) -> bool:
    return isinstance(event, CheckpointEvent) and event.op == "save" and event.path == path
