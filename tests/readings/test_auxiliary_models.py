"""For how long the weights of models that serve others stay the same."""

from __future__ import annotations

import pytest

from traincheck.readings.modal_modules import AuxiliaryModels, auxiliary_call
from traincheck.schema.events import MarkEvent
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
    ModelStructure,
)


def look(step: int | None, weights: str, text: str = AuxiliaryTraining.text) -> MarkEvent:
    data = {"model": "Target", "name": "Target", "weights": weights}
    return MarkEvent(seq=0, time_ns=0, step=step, stage="train", text=text, data=data)


def test_rest_is_counted_from_the_look_that_saw_it_move() -> None:
    models = AuxiliaryModels()
    seen = []
    for step, weights in [(2, "a"), (5, "a"), (9, "b"), (10, "b"), (12, "b")]:
        call = auxiliary_call(look(step, weights))
        assert call is not None
        model = models.look(call, step)
        seen.append((model.moved, model.rest, model.has_moved))
    assert seen == [
        (False, 0, False),
        (False, 3, False),
        (True, 7, True),
        (False, 1, True),
        (False, 3, True),
    ]
    model = models.by_name["Target"]
    assert (model.first, model.looks) == (2, 5)


@pytest.mark.parametrize(
    ("text", "is_one"),
    [(AuxiliaryEval.text, True), (AuxiliaryInitialNorms.text, True), (ModelStructure.text, False)],
)
def test_what_tells_that_one_was_called(text: str, is_one: bool) -> None:
    assert (auxiliary_call(look(1, "a", text)) is not None) is is_one
