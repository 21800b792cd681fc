import pytest

from traincheck.collect.steps.sampling import EveryNth, OnDemand


@pytest.mark.parametrize(
    ("every", "warmup", "wanted"),
    [
        (1, 0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (3, 0, [0, 3, 6]),
        (4, 2, [0, 1, 4]),
        (100, 3, [0, 1, 2]),
        (1, 5, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_steps_that_are_recorded(every, warmup, wanted):
    sampling = EveryNth(every, warmup)
    assert [step for step in range(8) if sampling.wants(step)] == wanted


def test_the_number_alone_decides():
    """Ranks that count alike record alike, whatever they were asked before."""
    one, other = EveryNth(3, 1), EveryNth(3, 1)
    for step in (7, 8, 9):
        other.wants(step)
    assert [one.wants(step) for step in range(20)] == [other.wants(step) for step in range(20)]


@pytest.mark.parametrize(
    ("limit", "asked_at", "wanted"),
    [
        (None, [], [0, 3, 6]),
        (2, [], [0, 3]),
        (0, [], []),
        (1, [5], [0, 5]),
        (2, [1, 3], [0, 1, 3, 6]),  # what was asked for does not count
    ],
)
def test_a_limit_and_steps_on_demand(limit, asked_at, wanted):
    sampling = OnDemand(3, 0, limit)
    found = []
    for step in range(8):
        if step in asked_at:
            sampling.ask()
        if sampling.wants(step):
            found.append(step)
    assert found == wanted
