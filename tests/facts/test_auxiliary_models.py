"""For how long the weights of models that serve others stay the same."""

from __future__ import annotations

import pytest

from traincheck.facts.auxiliary_models import AuxiliaryModels, is_look
from traincheck.schema.events import MarkEvent
from traincheck.schema.marks import Marks


def look(step: int | None, weights: str, text: str = Marks.UNTRAINED) -> MarkEvent:
    data = {"model": "Target", "weights": weights}
    return MarkEvent(seq=0, time_ns=0, step=step, stage="train", text=text, data=data)


def test_rest_is_counted_from_the_look_that_saw_it_move() -> None:
    models = AuxiliaryModels()
    seen = []
    for step, weights in [(2, "a"), (5, "a"), (9, "b"), (10, "b"), (12, "b")]:
        model = models.look(look(step, weights))
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
    ("text", "is_one"), [(Marks.SERVES, True), (Marks.NORMS, True), (Marks.MODEL, False)]
)
def test_what_tells_that_one_was_called(text: str, is_one: bool) -> None:
    assert is_look(look(1, "a", text)) is is_one
