"""Routing: who gets which event."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from traincheck.readings.provider import Router, roles_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.marks import LIFECYCLE_CHANGES
from traincheck.schema.torch_api import Families

HEAD = (0, 0, 0, "train", 0, "p1-t0")


def needs(**sets: set[str]) -> Needs:
    return Needs(**{name: frozenset(found) for name, found in sets.items()})


def call(api: str, family: str | None = None) -> CallEvent:
    return CallEvent(*HEAD, api=api, span=0, family=family)


def state(role: str) -> StateEvent:
    return StateEvent(*HEAD, name="Net.fc1.weight", role=role)


ADAM_STEP = call("torch.optim.adam.Adam.step", Families.OPTIMIZER_STEP)


@pytest.mark.parametrize(
    ("wanted", "event"),
    [
        (needs(calls={"torch.optim.adam.Adam.step"}), ADAM_STEP),
        (needs(calls={Families.OPTIMIZER_STEP}), ADAM_STEP),
        (needs(calls={"*"}), ADAM_STEP),
        (needs(kinds={"call"}), ADAM_STEP),
        (needs(states={"gradient@backward"}), state("gradient")),
        (needs(states={"gradient@*"}), state("gradient")),
        (needs(states={"*@step"}), state("gradient")),
        (needs(kinds={"state"}), state("gradient")),
        (needs(kinds={"step"}), StepEvent(*HEAD)),
    ],
)
def test_brings_what_is_asked_for(wanted: Needs, event: Event) -> None:
    assert Router([(wanted, "it")]).route(event) == ("it",)


@pytest.mark.parametrize(
    ("wanted", "event"),
    [
        (needs(calls={"torch.optim.sgd.SGD.step"}), ADAM_STEP),
        (needs(calls={Families.ZERO_GRAD}), ADAM_STEP),
        (needs(kinds={"step", "state"}), ADAM_STEP),
        (needs(states={"parameter@backward"}), state("gradient")),
        (needs(calls={"*"}), state("gradient")),
        (needs(states={"*@*"}, calls={"*"}), StepEvent(*HEAD)),
        (needs(kinds={"batch"}), StepEvent(*HEAD)),
    ],
)
def test_brings_nothing_else(wanted: Needs, event: Event) -> None:
    assert Router([(wanted, "it")]).route(event) == ()


def test_receivers_keep_their_order_and_get_an_event_once() -> None:
    both = needs(calls={"torch.optim.adam.Adam.step", Families.OPTIMIZER_STEP, "*"})
    other = needs(calls={Families.ZERO_GRAD})
    router = Router([(both, "b"), (other, "x"), (both, "a")])
    assert router.route(ADAM_STEP) == ("b", "a")
    assert router.route(ADAM_STEP) == ("b", "a")  # also when it is known by then


def test_one_api_may_have_several_families() -> None:
    router = Router([(needs(calls={"family one"}), 1), (needs(calls={"family two"}), 2)])
    assert router.route(call("same", "family one")) == (1,)
    assert router.route(call("same", "family two")) == (2,)
    assert router.route(call("same")) == ()


@pytest.mark.parametrize("change", ["new", "replaced", "flags", "gone"])
def test_who_asks_which_variables_there_are_is_told(change: str) -> None:
    event = state("parameter").replace(change=change)
    assert Router([(needs(states={"parameter@new"}), "it")]).route(event) == ("it",)


@pytest.mark.parametrize("change", ["content", "unknown"])
def test_and_is_not_told_what_they_do(change: str) -> None:
    event = state("parameter").replace(change=change)
    assert Router([(needs(states={"parameter@new"}), "it")]).route(event) == ()
    both = needs(states={"parameter@new", "parameter@step"})
    assert Router([(both, "it")]).route(event) == ("it",)


def test_roles_do_not_depend_on_the_moment() -> None:
    assert roles_of(needs(states={"gradient@backward", "gradient@*", "parameter@new"})) == {
        "gradient",
        "parameter",
    }


def test_agrees_with_asking_every_receiver() -> None:
    wanted = [
        needs(calls={Families.OPTIMIZER_STEP}, states={"parameter@step"}, kinds={"step"}),
        needs(calls={"torch.nn.functional.linear"}),
        needs(states={"gradient@backward", "optimizer_state@*"}, kinds={"optimizer", "mark"}),
        needs(states={"parameter@new", "buffer@new"}),
        needs(states={"parameter@new", "parameter@evaluation"}),
        Needs(),
    ]

    def asks(ask: Needs, event: Event) -> bool:
        if isinstance(event, CallEvent):
            return event.api in ask.calls or event.family in ask.calls
        if isinstance(event, StateEvent):
            of_role = {s for s in ask.states if s.startswith(f"{event.role}@")}
            return bool(
                of_role if event.change in LIFECYCLE_CHANGES else of_role - {f"{event.role}@new"}
            )
        return event.kind in ask.kinds

    router = Router([(ask, index) for index, ask in enumerate(wanted)])
    events = TraceBuilder().process().model("Net", MLP).optimizer().steps(3, eval_every=2).build()
    for event in events:
        expected = tuple(i for i, ask in enumerate(wanted) if asks(ask, event))
        assert router.route(event) == expected
