"""TC510: the same seed again in the loop."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import Event, RngEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.places import where


def run(
    seeds: list[int | None], *, draws: bool = True, restored: bool = False, anew: bool = False
) -> list[Event]:
    """Steps that seed, draw, and end; what they draw depends on the seed and steps before."""
    builder: TraceBuilder = net()
    state = "start"
    for seed in seeds:
        builder.begin_step()
        before = state
        if seed is not None:
            state = f"seed {seed}"
            builder.add(RngEvent, change="seed", seed=seed, fingerprint=state)
            if anew:
                builder.optimizer()
        if restored:
            state = before
        builder.zero_grad().forward().backward().optimizer_step()
        state = f"{state}+" if draws else state
        builder.add(RngEvent, change="state", fingerprint=state)
    return builder.build()


BROKEN = run([7, 7, 7, None])


def test_fires_at_the_first_step_that_draws_again(golden: Golden) -> None:
    finding = fires("TC510", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    golden(finding)
    assert mentions(finding, 0, 1)


def test_fires_on_a_seed_at_the_head_of_each_epoch() -> None:
    assert fires("TC510", run([7, None, 7, None, None])).first_step == 2


def test_quiet_on_one_seed_and_on_different_ones() -> None:
    assert quiet("TC510", run([7, None, None])) is Verdict.HELD
    assert quiet("TC510", run([7, 8, 9])) is Verdict.HELD


def test_quiet_where_nothing_is_drawn() -> None:
    assert quiet("TC510", run([7, 7, 7], draws=False)) is Verdict.HELD


def test_quiet_where_the_state_is_put_back() -> None:
    assert quiet("TC510", run([7, 7, 7], restored=True)) is Verdict.HELD


def test_quiet_where_each_training_of_several_seeds_once() -> None:
    assert quiet("TC510", run([7, None, None, 7, None], anew=True)) is Verdict.HELD


def trainings(*, makes: bool) -> list[Event]:
    """Three trainings after one another, each seeded with one number behind the last update.

    makes: each makes its optimizer then; else all were made before.
    """
    builder = TraceBuilder().process().model("Net", MLP)
    owners = ["opt0"] if makes else ["opt0", "opt1", "opt2"]
    for _ in owners:
        builder.optimizer()
    for number in range(3):
        owner = f"opt{number}"
        for step in range(3):
            builder.begin_step().zero_grad(owner).forward().backward().optimizer_step(owner)
            if step == 2:
                builder.add(RngEvent, change="seed", seed=7, fingerprint="seed 7")
                builder.add(RngEvent, change="state", fingerprint="of the next model")
        if makes and number < 2:
            builder.begin_step().optimizer()
    return builder.begin_step().forward().build(last_complete=False)


@pytest.mark.parametrize("makes", [True, False])
def test_quiet_where_the_seed_is_that_of_the_next_training(makes: bool) -> None:
    assert quiet("TC510", trainings(makes=makes)) is Verdict.HELD


def test_the_place_is_the_line_that_seeds() -> None:
    seeds = [e for e in BROKEN if isinstance(e, RngEvent) and e.change == "seed"]
    events = [e.replace(where="train.py:12") if e in seeds else e for e in BROKEN]
    assert where(fires("TC510", events).evidence) == "train.py:12"
