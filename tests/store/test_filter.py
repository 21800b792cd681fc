"""What nobody needs is left out undecoded; what somebody needs never is."""

from __future__ import annotations

from itertools import product

import pytest

from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.codec import encode
from traincheck.schema.events import CallEvent, Event, StateEvent
from traincheck.store.filter import LineFilter


def run() -> list[Event]:
    builder = TraceBuilder().process().seed().model("Net", MLP_BN, buffers=BN_BUFFERS)
    return builder.optimizer().train().warning("UserWarning", "x").steps(3, eval_every=2).build()


def is_needed(event: Event, needs: Needs) -> bool:
    """The meaning of needs, on decoded events."""
    if event.kind in ("step", "stage", "mark") or event.kind in needs.kinds:
        return True
    if isinstance(event, CallEvent):
        return "*" in needs.calls or bool({event.api, event.family} & needs.calls)
    if isinstance(event, StateEvent):
        return bool({s.split("@")[0] for s in needs.states} & {event.role, "*"})
    return False


CALLS = ((), (Families.OPTIMIZER_STEP,), ("torch.nn.functional.linear", Families.MODULE), ("*",))
STATES = ((), ("gradient@backward",), ("parameter@*", "buffer@forward"), ("*@*",))
KINDS = ((), ("batch",), ("optimizer", "warning"), ("call",), ("state",))


@pytest.mark.parametrize(("calls", "states", "kinds"), [*product(CALLS, STATES, KINDS)])
def test_exactly_what_is_needed_is_let_through(
    calls: tuple[str, ...], states: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    needs = Needs(calls=frozenset(calls), states=frozenset(states), kinds=frozenset(kinds))
    tested = LineFilter(needs)
    events = run()
    kept = [event for event in events if not tested.leaves_out(encode(event))]
    assert kept == [event for event in events if is_needed(event, needs)]
    assert tested.left_out == len(events) - len(kept)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not JSON",
        b'{"k":"call","n":1',
        b'{"k":"calls","n":1,"t":1,"s":1,"g":"train"}',
        b'{"n":1,"t":1,"s":1,"g":"train","k":"call"}',
    ],
)
def test_malformed_lines_are_let_through_to_be_counted(line: bytes) -> None:
    assert not LineFilter(Needs()).leaves_out(line)


def test_arguments_named_like_fields_are_not_mistaken_for_them() -> None:
    tested = LineFilter(Needs(calls=frozenset({"wanted"})))
    args = {"api": "wanted", "family": "wanted"}
    other = CallEvent(0, 1, 0, "train", 0, "p1-t0", api="other", span=1, args=args)
    wanted = other.replace(api="a", family="wanted", args={"family": "other"})
    late = b'{"k":"call","n":0,"t":1,"s":0,"g":"t","id":1,"api":"a","args":{"family":"x"},'
    assert not tested.leaves_out(encode(wanted))
    assert not tested.leaves_out(late + b'"family":"wanted"}')
