"""The row "gradients": the gradients differ, and the loss does not."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, new_value, numbered, of, state, training, without
from traincheck.schema.events import CallEvent, CollectiveEvent, Event
from traincheck.schema.torch_api import Families

NAMES = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "bn.weight", "bn.bias")


def scaled(events: list[Event], *norms: float) -> list[Event]:
    """The gradients of step 2 have these norms."""
    for name, norm in zip(NAMES, norms, strict=True):
        events = new_value(events, state("gradient", 2, f"Net.{name}"), norm)
    return events


def with_event(events: list[Event], kind: type, **fields: object) -> list[Event]:
    """The run, with one event more before the optimizer steps in step 2."""
    place = next(
        i for i, e in enumerate(events) if of("call", 2, family=Families.OPTIMIZER_STEP)(e)
    )
    made = kind(*events[place].header, **fields)
    return numbered([*events[:place], made, *events[place:]])


def test_fires_on_one_factor(compare: Compare) -> None:
    found = compare(training(), scaled(training(), *[8.0] * 6))
    assert found.cause is not None
    assert found.cause.code == "gradient-scale"
    assert "4 times" in found.cause.text


def test_quiet_about_factors_that_are_not_one(compare: Compare) -> None:
    found = compare(training(), scaled(training(), 8.0, 3.0, 2.5, 7.0, 1.0, 9.0))
    assert found.cause is not None
    assert found.cause.code == "other-gradient"


def test_fires_on_rounding(compare: Compare) -> None:
    found = compare(training(), new_value(training(), state("gradient", 2), 2.0000001))
    assert found.cause is not None
    assert found.cause.code == "backward-not-deterministic"


def test_fires_on_a_missing_gradient(compare: Compare) -> None:
    found = compare(training(), without(training(), state("gradient", 2)))
    assert found.cause is not None
    assert found.cause.code == "gradient-missing"


def test_fires_on_a_missing_reduction(compare: Compare) -> None:
    a = with_event(training(), CollectiveEvent, op="all_reduce")
    found = compare(a, scaled(training(), *[8.0] * 6))
    assert found.cause is not None
    assert found.cause.code == "reduction-missing"
    assert "only A" in found.cause.text


def test_fires_on_clipping(compare: Compare) -> None:
    clip = {"api": "torch.nn.utils.clip_grad_norm_", "span": 30_000}
    b = with_event(scaled(training(), *[0.5] * 6), CallEvent, **clip)
    found = compare(training(), b)
    assert found.cause is not None
    assert found.cause.code == "clipping"


def test_quiet_about_clipping_in_both(compare: Compare) -> None:
    clip = {"api": "torch.nn.utils.clip_grad_norm_", "span": 30_000}
    a = with_event(training(), CallEvent, **clip)
    b = edited(scaled(a, *[0.5] * 6), of("step", 2), counters={})
    found = compare(a, b)
    assert found.cause is not None
    assert found.cause.code == "gradient-scale"
