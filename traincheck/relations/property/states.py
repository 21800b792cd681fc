"""Properties of loads and kept states."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.facts.evaluations import EVALUATIONS, Evaluation, KeptStates
from traincheck.relations.property.base import MANY, EventReader, Property, Reading
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import EmbeddingRows, LoadedGenerators, LoadFollowed
from traincheck.schema.observations.reading import observed

_NEAR = 0.5  # of the distance that the load moved
_FEWEST = 3  # evaluations that show an order
_KEPT, _UNDONE = "kept", "undone"
_ZERO, _NOT_ZERO = "zero", "not zero"
_RESTORED, _NOT_RESTORED = "restored", "not restored"
_LOWEST, _HIGHEST, _OTHER = "lowest", "highest", "other"


def _loads(event: Event) -> Iterable[Reading]:
    found = observed(event, LoadFollowed)
    if found is None or not found.values:
        return
    jump = sum(each.jump**2 for each in found.values.values()) ** 0.5
    back = sum(each.back**2 for each in found.values.values()) ** 0.5
    seen = (
        f"the load moved the weights by {jump:.3g}; after the next update they are {back:.3g} from "
        "their values before the load"
    )
    value = _UNDONE if back < _NEAR * jump else _KEPT
    at = Subject(module=found.model)
    yield Reading(of=found.model, value=value, seen=seen, at=at, event=event, weight=MANY)


class _Kept:
    """Which of the evaluated states the program keeps at the end."""

    def __init__(self) -> None:
        self._states = KeptStates()

    def observe(self, event: Event) -> Iterable[Reading]:
        self._states.observe(event)
        return ()

    def finish(self) -> Iterable[Reading]:
        losses = [one.loss for one in self._states.evaluations.all if one.loss is not None]
        if len(losses) < _FEWEST or max(losses) == min(losses):
            return
        for event, kept in self._states.kept():
            if kept.loss is not None:
                yield _of_kept(event, kept, losses)


def _of_kept(event: CheckpointEvent, kept: Evaluation, losses: list[float]) -> Reading:
    assert kept.loss is not None
    value = {min(losses): _LOWEST, max(losses): _HIGHEST}.get(kept.loss, _OTHER)
    seen = (
        f"the state of step {kept.step} is kept, whose evaluation loss is {kept.loss:.4g}; the "
        f"best state has {min(losses):.4g}, the worst {max(losses):.4g}"
    )
    at = Subject(module=event.target) if event.op == "load_state_dict" else Subject(api="save")
    of = "restored" if event.op == "load_state_dict" else "saved"
    return Reading(of=of, value=value, seen=seen, at=at, event=event, weight=MANY)


def _rows(event: Event) -> Iterable[Reading]:
    found = observed(event, EmbeddingRows)
    if found is None or found.padding is None or not found.padding_ids:
        return
    seen = (
        f"row {found.padding} of {found.name}, the vector of padding, has the norm "
        f"{found.padding_norm:.3g}; other rows have {found.usual_norm:.3g}"
    )
    value = _NOT_ZERO if found.padding_norm else _ZERO
    at = Subject(variable=found.name)
    yield Reading(of=found.name, value=value, seen=seen, at=at, event=event, weight=MANY)


def _generators(event: Event) -> Iterable[Reading]:
    found = observed(event, LoadedGenerators)
    for state in () if found is None else found.states:
        if state.owned or not state.drawn:
            continue
        seen = (
            f"the loaded file holds a state of {state.generator} ({state.key}), and no generator "
            "has it before the next update"
        )
        value = _RESTORED if state.restored else _NOT_RESTORED
        at = Subject(api=f"{state.generator} generator")
        yield Reading(of=state.generator, value=value, seen=seen, at=at, event=event, weight=MANY)


RESTORED_GENERATOR = Property(
    name="restored_random_state",
    needs=needs_of(LoadedGenerators),
    reader=partial(EventReader, _generators),
    claims={_RESTORED: "the states of {of}'s random generator in a loaded file are restored"},
    headline="The state of a random generator in a loaded file is not restored any more",
    cause="The program may not set the state any more, or may seed the generator after it.",
    fix="Set the state after the load, and after everything that seeds.",
    symptom=Symptom.NOT_RESTORED,
)
PADDING_VECTOR = Property(
    name="padding_vector",
    needs=needs_of(EmbeddingRows),
    reader=partial(EventReader, _rows),
    claims={_ZERO: "the padding vector of {of} is zero"},
    headline="The padding vector of an embedding is not zero any more",
    cause="The embedding may have been initialized again after its padding vector was set to zero.",
    fix="After the initialization: embedding.weight[embedding.padding_idx].zero_().",
    symptom=Symptom.INITIALIZATION,
)
LOADED_WEIGHTS = Property(
    name="loaded_weights",
    needs=needs_of(LoadFollowed),
    reader=partial(EventReader, _loads),
    claims={_KEPT: "the first update after a load of {of} starts from the loaded weights"},
    headline="The first update after a load starts from the weights before it",
    cause=(
        "A copy of the weights that was made before the load may be written over the loaded ones."
    ),
    fix="Load the model before the optimizer or average copies its weights.",
    symptom=Symptom.NOT_RESTORED,
)
KEPT_STATE = Property(
    name="kept_state",
    needs=EVALUATIONS,
    reader=_Kept,
    claims={_LOWEST: "the state that is {of} as the best one has the lowest evaluation loss"},
    headline="The state that is kept as the best one is not the best any more",
    cause="The comparison that decides which state is kept may have the wrong direction.",
    fix="Keep the state if loss < best.",
    symptom=Symptom.NOT_RESTORED,
)
