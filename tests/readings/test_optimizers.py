"""What optimizers hold, as they are now."""

from __future__ import annotations

from tests.checking import net
from traincheck.readings.optimizers import Holders
from traincheck.readings.training_state import TrainingState
from traincheck.readings.variables import Variables
from traincheck.schema.events import OptimizerEvent, StateEvent


def made() -> OptimizerEvent:
    return next(e for e in net().build() if isinstance(e, OptimizerEvent))


def test_an_optimizer_is_known_as_it_is_now_and_by_where_it_was_made() -> None:
    holders, first = Holders(), made()
    holders.enter(first)
    (group,) = first.groups
    now = first.replace(groups=[group.replace(params=group.params[:1], ids=group.ids[:1])])
    holder = holders.enter(now)
    assert (holder.event, holder.made) == (now, first)
    assert holders.held() == set(group.ids[:1])
    assert holders.of(group.ids[0]) == {first.id}
    assert holders.of(group.ids[1]) == set()
    assert holder.groups == {group.ids[0]: 0}


def test_tensors_that_no_module_owns_are_not_of_models() -> None:
    holders, first = Holders(), made()
    (group,) = first.groups
    loose = group.replace(params=["opt0[0].0"], ids=[1])
    assert holders.enter(first.replace(groups=[loose])).is_unowned(1)
    assert not holders.is_of_models
    holders.enter(first)
    assert holders.is_of_models


def test_rules_and_relations_know_the_same() -> None:
    state, variables = TrainingState(), Variables()
    for event in net().steps(1).build():
        state.observe(event)
        if isinstance(event, OptimizerEvent):
            variables.hold(event)
        elif isinstance(event, StateEvent):
            variables.observe(event)
    assert state.held() == {v.identity for v in variables.held_parameters()} != set()
