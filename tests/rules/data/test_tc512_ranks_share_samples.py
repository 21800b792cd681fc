"""TC512: ranks that draw the same samples, each in a different order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden
from tests.ranks import merged
from tests.rules.batches import DISTRIBUTED, leaf
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

RANDOM = "torch.utils.data.sampler.RandomSampler"
SIZE = 16


def rank(
    number: int,
    indices: Sequence[int],
    *,
    sampler: str = RANDOM,
    names: Sequence[str] | None = None,
    wrapped: bool = True,
    has_indices: bool = True,
) -> list[Event]:
    """One rank that trains on these samples. names: their contents."""
    names = [f"s{i}" for i in indices] if names is None else names
    trace = TraceBuilder(rank=number).process().model("Net", MLP).optimizer()
    if wrapped:
        trace.call("torch.nn.parallel.DistributedDataParallel.__init__")
    for place in range(0, len(indices), SIZE):
        end = place + SIZE
        trace.begin_step().batch(
            index=place // SIZE,
            sampler=sampler,
            samples=list(names[place:end]),
            indices=list(indices[place:end]) if has_indices else [],
            drawn=len(indices[place:end]) if has_indices else 0,
            leaves={"batch[0]": leaf("-".join(names[place:end]))},
        )
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.build()


def order(seed: int, count: int = 128) -> list[int]:
    return random.Random(seed).sample(range(count), count)


def halves(seed: int, count: int = 128) -> tuple[list[int], list[int]]:
    whole = order(seed, count)
    return whole[::2], whole[1::2]


def two(first: list[Event], second: list[Event]) -> list[Event]:
    return merged(first, second)


BROKEN = two(rank(0, order(1)), rank(1, order(2)))


def test_fires_when_each_rank_shuffles_everything(golden: Golden) -> None:
    finding = fires("TC512", BROKEN)
    assert finding.variables == ("loader0",)
    assert finding.first_step is not None
    assert finding.first_step <= 2
    golden(finding)


def test_fires_when_samplers_have_other_seeds(golden: Golden) -> None:
    first, second = halves(1, 256)[0], halves(2, 256)[1]
    events = two(rank(0, first, sampler=DISTRIBUTED), rank(1, second, sampler=DISTRIBUTED))
    golden(fires("TC512", events))


def test_fires_when_the_data_has_another_order_on_each_rank() -> None:
    first, second = halves(1, 256)
    other = [f"s{i}" for i in order(7, 256)]
    events = two(rank(0, first), rank(1, second, names=[other[i] for i in second]))
    assert fires("TC512", events).first_step is not None


def test_fires_on_streams() -> None:
    events = two(rank(0, order(1), has_indices=False), rank(1, order(2), has_indices=False))
    assert fires("TC512", events).variables == ("loader0",)


def test_quiet_when_the_data_is_shared_out() -> None:
    first, second = halves(1)
    assert quiet("TC512", two(rank(0, first), rank(1, second))) is Verdict.HELD


def test_quiet_when_the_last_batches_are_filled_up() -> None:
    first, second = halves(1)
    events = two(rank(0, [*first, *second[:SIZE]]), rank(1, [*second, *first[:SIZE]]))
    assert quiet("TC512", events) is Verdict.HELD


def test_quiet_on_replacement_and_on_shards_with_numbers_of_their_own() -> None:
    drawn = [random.Random(seed).choices(range(64), k=256) for seed in (1, 2)]
    assert quiet("TC512", two(rank(0, drawn[0]), rank(1, drawn[1]))) is Verdict.HELD
    other = [f"t{i}" for i in order(2)]
    assert quiet("TC512", two(rank(0, order(1)), rank(1, order(2), names=other))) is Verdict.HELD


def test_quiet_on_data_that_holds_everything_twice() -> None:
    first, second = halves(1, 256)
    names = [[f"s{i % 128}" for i in half] for half in (first, second)]
    events = two(rank(0, first, names=names[0]), rank(1, second, names=names[1]))
    assert quiet("TC512", events) is Verdict.HELD
    inorder = [list(range(0, 254, 2)), list(range(1, 254, 2))]
    odd = [[f"s{i % 127}" for i in half] for half in inorder]
    events = two(rank(0, inorder[0], names=odd[0]), rank(1, inorder[1], names=odd[1]))
    assert quiet("TC512", events) is Verdict.HELD


def test_quiet_on_the_same_batches_and_without_ddp() -> None:
    assert quiet("TC512", two(rank(0, order(1)), rank(1, order(1)))) is Verdict.HELD
    alone = two(rank(0, order(1), wrapped=False), rank(1, order(2), wrapped=False))
    assert quiet("TC512", alone) is Verdict.NOT_TRIGGERED
