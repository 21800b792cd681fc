"""TC510: the same seed again in the loop."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from traincheck.schema.events import Event, RngEvent
from traincheck.schema.findings import Verdict


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
            builder._add(RngEvent, change="seed", seed=seed, fingerprint=state)
            if anew:
                builder.optimizer()
        if restored:
            state = before
        builder.zero_grad().forward().backward().optimizer_step()
        state = f"{state}+" if draws else state
        builder._add(RngEvent, change="state", fingerprint=state)
    return builder.build()


BROKEN = run([7, 7, 7])


def test_fires_at_the_first_step_that_draws_again() -> None:
    finding = fires("TC510", BROKEN)
    assert (finding.first_step, finding.violations) == (1, 1)
    assert "steps 0 and 1" in finding.observed


def test_fires_on_a_seed_at_the_head_of_each_epoch() -> None:
    assert fires("TC510", run([7, None, 7, None])).first_step == 2


def test_quiet_on_one_seed_and_on_different_ones() -> None:
    assert quiet("TC510", run([7, None, None])) is Verdict.HELD
    assert quiet("TC510", run([7, 8, 9])) is Verdict.HELD


def test_quiet_where_nothing_is_drawn() -> None:
    assert quiet("TC510", run([7, 7, 7], draws=False)) is Verdict.HELD


def test_quiet_where_the_state_is_put_back() -> None:
    assert quiet("TC510", run([7, 7, 7], restored=True)) is Verdict.HELD


def test_quiet_where_each_training_of_several_seeds_once() -> None:
    assert quiet("TC510", run([7, None, None, 7, None], anew=True)) is Verdict.HELD
