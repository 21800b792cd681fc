"""The loaded state of an optimizer belongs to other parameters. Compares sketches by name."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import OptimizerValues
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.words import is_unowned

_SAME = 0.02  # relative distance: a load may round to another dtype
_OTHER = 0.3
_LEAST = 2  # parameters with the state of others: two that are exchanged
_MOST_SAVES = 16
_MOST_NAMES = 3

_Sketch = tuple[float, ...]
_Values = dict[str, Mapping[str, _Sketch]]


class OptimizerStateMisplaced(EventRule, code="TC052", severity="error"):
    """optimizer-state-misplaced: a load gives parameters the optimizer state of others.

    What it checks:
        After Optimizer.load_state_dict(), each parameter has the state that was saved for the
        parameter of its name.

    Why it matters:
        Optimizers save their state by position. If the parameters are in another order when it is
        loaded, each gets the momentum of another one of the same shape. The first updates go in
        wrong directions, without a message.

    Fires on:
        - Two or more parameters whose loaded state is that of another name in a save of this run or
          of an earlier process in the same trace, and differs from that of their own name. Example:
          groups that are built from a set, or with and without decay, after the save.

    Stays quiet on:
        - State that comes back to its own names, in any order of the parameters.
        - Parameters that the save does not have, e.g. after a rename.
        - State that no recorded process has saved.
        - State that is equal for both parameters, e.g. zeros.

    Fix:
        Build the parameter groups in the same order in each run, e.g. sorted by name.

    Source:
        https://github.com/pytorch/pytorch/issues/1489, https://github.com/pytorch/pytorch/pull/6031
    """

    title = "The loaded optimizer state belongs to other parameters"
    likely_cause = (
        "The optimizer gets its parameters in another order than when its state was saved: "
        "{observed}."
    )
    fix = (
        "Build the parameter groups in the same order in each run, e.g. from "
        "sorted(model.named_parameters()), or save the state by name."
    )
    needs = needs_of(OptimizerValues)
    scope = "run"
    _saves: deque[tuple[Event, _Values]] = fresh(lambda: deque(maxlen=_MOST_SAVES))
    _reported: set[tuple[int, str, str]] = fresh(set)  # rank, stream, optimizer

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, OptimizerValues)
        if found is None:
            return []
        values = {_tail(name): state for name, state in found.values.items()}
        if found.moment == "saved":
            self._saves.append((event, values))
            return []
        # The latest save that all loaded state can come from
        for saved_in, saved in reversed(self._saves):
            # Whether each loaded state is in a save, wherever.
            if saved_in.rank == event.rank and all(
                any(_are_same(state, other) for other in saved.values())
                for state in values.values()
            ):
                self.triggered += 1
                wrong = {}
                for name, state in values.items():
                    if name in saved and not is_unowned(name) and _differ(state, saved[name]):
                        sources = [other for other in saved if _are_same(state, saved[other])]
                        if sources:
                            wrong[name] = sources[0]
                key = (event.rank, event.stream, found.owner)
                if len(wrong) < _LEAST or key in self._reported:
                    return []
                self._reported.add(key)
                pairs = [f"{name} has that of {source}" for name, source in sorted(wrong.items())]
                told = "; ".join(pairs[:_MOST_NAMES]) + (
                    "; ..." if len(pairs) > _MOST_NAMES else ""
                )
                line = f" at {short(found.where)}" if found.where else ""
                return self.found(
                    event,
                    subject=Subject(api="torch.optim.Optimizer.load_state_dict"),
                    symptom=Symptom.NOT_RESTORED,
                    message=f"the state that {found.owner} loads{line} was saved for other "
                    f"parameters: {told}",
                    expected="for each parameter the state that was saved under its name",
                    observed=f"{len(wrong)} of {len(values)} parameters have the state of another "
                    f"one ({told})",
                )
        return []


def _tail(name: str) -> str:
    """The name below its model: models of one class are numbered."""
    return name if is_unowned(name) else name.partition(".")[2] or name


def _are_same(one: Mapping[str, _Sketch], other: Mapping[str, _Sketch]) -> bool:
    keys = one.keys() & other.keys()
    return bool(keys) and all(_distance(one[key], other[key]) <= _SAME for key in keys)


def _differ(one: Mapping[str, _Sketch], other: Mapping[str, _Sketch]) -> bool:
    return any(_distance(one[key], other[key]) >= _OTHER for key in one.keys() & other.keys())


def _distance(one: _Sketch, other: _Sketch) -> float:
    """Of two sketches, relative to the larger one; 0 for two of zeros."""
    if len(one) != len(other):
        return math.inf
    size = max(math.hypot(*one), math.hypot(*other))
    return math.dist(one, other) / size if size else 0.0
