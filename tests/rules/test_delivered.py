"""A rule that reads observations gets their marks, and not the states that they are made from."""

from __future__ import annotations

import pickle

import pytest

from tests.builders import MLP, TraceBuilder
from traincheck.readings.provider import roles_of
from traincheck.rules.registry import all_rules
from traincheck.schema.claims import Needs
from traincheck.schema.events import StateEvent
from traincheck.schema.protocols import Rule


def test_what_observations_need_is_not_delivered() -> None:
    scans = {"parameter@step", "gradient@backward@some", "buffer@new", "parameter@ranks"}
    asked = Needs(states=frozenset({*scans, "parameter@evaluation", "row@lookup@some"}))
    assert asked.delivered.states == scans


def not_delivered(rule: Rule) -> frozenset[str]:
    return roles_of(rule.needs) - roles_of(rule.needs.delivered)


READING = [  # those with facts are given what their facts are
    rule
    for rule in all_rules()
    if "parameter" in not_delivered(rule) and not getattr(rule.monitor(), "uses", ())
]


def test_there_are_rules_that_only_read_observations() -> None:
    assert {"TC111", "TC114", "TC614"} <= {rule.info.check_id for rule in READING}


@pytest.mark.parametrize("rule", READING, ids=lambda rule: rule.info.check_id)
def test_their_monitors_learn_nothing_from_states(rule: Rule) -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(2)
    states = [event for event in trace.build() if isinstance(event, StateEvent)]
    monitor = rule.monitor()
    before = pickle.dumps(monitor)
    assert {event.role for event in states} >= {"parameter", "gradient"}
    assert not any(monitor.observe(event) for event in states)
    assert pickle.dumps(monitor) == before
