"""consistent: equal on all ranks after a step, or equal to what was copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.builders import MLP, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from tests.ranks import RankBuilder, merged, two_ranks
from traincheck.schema.events import CollectiveEvent, StateEvent
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import Families

BASE = {"program": "train.py"}
WRAPPED = {"role": "parameter", "of": "wrapped"}
UNDER = {**BASE, "role": "parameter", "under": "Net.fc1"}


def sharded(rank: RankBuilder) -> None:
    """A half of fc2 on each rank; fc1 is the same on both."""
    rank.go_apart("Net.fc2.weight", "Net.fc2.bias").steps(10)


def test_what_every_rank_has_is_learned_by_place(golden: Golden):
    found = golden.each(claims(learn(two_ranks(sharded, wrap=False)), "consistent"))
    places = values_of(found, "consistent", "under")
    assert "Net.fc1" in places
    assert not any("Net.fc2" in str(place) for place in places)


def test_of_a_wrapped_model_it_is_learned_for_any_program(golden: Golden):
    result = learn(two_ranks(lambda rank: rank.steps(10)))
    assert golden.each(claims(result, "consistent", of="wrapped", role="parameter"))


def drifting(rank: RankBuilder) -> None:
    rank.steps(3)
    if rank.rank == 1:
        rank.go_apart("Net.fc1.bias")
    rank.steps(4)


@pytest.mark.parametrize("claim", [WRAPPED, UNDER])
def test_a_variable_that_goes_apart_is_told_in_its_step(claim):
    assert broken(decide("consistent", claim, two_ranks(lambda r: r.steps(7)))) == []
    found = broken(decide("consistent", claim, two_ranks(drifting)))
    assert found[0] == (3, Symptom.RANKS_DIFFER, "Net.fc1.bias")
    assert {name for *_, name in found} == {"Net.fc1.bias"}


def test_through_the_engine_ranks_share_one_evaluator():
    invariants = learn(two_ranks(lambda rank: rank.steps(10))).invariants
    mine = [i for i in invariants if i.hypothesis.relation == "consistent"]
    found = report_of(mine, two_ranks(drifting)).findings
    assert (found[0].code, found[0].first_step) == ("consistent", 3)
    assert not report_of(mine, two_ranks(lambda rank: rank.steps(30))).findings


def test_the_order_in_which_ranks_come_makes_no_difference():
    ranks: list[list] = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP).wrap().optimizer()
        drifting(rank)
        ranks.append(rank.build())
    together = broken(decide("consistent", WRAPPED, merged(*ranks)))
    one_after_another = broken(decide("consistent", WRAPPED, [*ranks[1], *ranks[0]]))
    assert together == one_after_another != []


def test_what_one_rank_does_not_know_is_not_compared():
    def play(rank: RankBuilder) -> None:
        if rank.rank == 1:
            rank.model("Extra", {"w": "Q"})
        rank.steps(3)

    claim = {**BASE, "role": "parameter", "under": "Extra"}
    assert decide("consistent", claim, two_ranks(play)) == []


def test_one_rank_alone_says_nothing():
    trace = TraceBuilder().process().model("Net", MLP).optimizer().steps(20)
    assert decide("consistent", UNDER, trace.build()) == []


def test_a_rank_that_skips_an_update_is_told():
    def skipping(rank: RankBuilder) -> None:
        rank.steps(3)
        rank.step(omit={"optimizer_step"} if rank.rank else ())
        rank.steps(2)

    claim = {"of": "calls", "call": "optimizer_step"}
    assert broken(decide("consistent", claim, two_ranks(lambda rank: rank.steps(6)))) == []
    assert broken(decide("consistent", claim, two_ranks(skipping))) == [
        (3, Symptom.OUT_OF_STEP, "torch.optim.Optimizer.step")
    ]


COPY = {**BASE, "copy": "Target", "source": "Net"}


def target(steps: int, *, exact_until: int = 1000) -> TraceBuilder:
    """A target network that is copied from the model every two steps."""
    trace = TraceBuilder().process().model("Net", MLP).model("Target", MLP)
    trace.optimizer(names=[f"Net.{name}" for name in MLP])
    for step in range(steps):
        trace.begin_step().zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP])
        trace.optimizer_step()
        if step % 2:
            last = {e.name: e for e in trace.events if isinstance(e, StateEvent)}
            for name in MLP:
                variable = trace.models["Target"].parameters[f"Target.{name}"]
                trace.state(variable, "parameter", "content")
                if step < exact_until:
                    copied = last[f"Net.{name}"].summary
                    trace.edit(trace.events[-1], summary=copied)
    return trace


def test_a_copy_that_is_none_is_told():
    assert claims(learn(target(40).build()), "consistent", copy="Target", source="Net")
    assert broken(decide("consistent", COPY, target(9).build())) == []
    found = broken(decide("consistent", COPY, target(9, exact_until=6).build()))
    assert found[0][:2] == (7, Symptom.NOT_RESTORED)
    assert len(found) == len(MLP)


def test_an_average_is_no_copy_although_it_begins_as_one():
    assert not claims(learn(target(40, exact_until=2).build()), "consistent")


@pytest.mark.parametrize("params", [{}, {"role": "gradient", "under": "Net"}, {"copy": "Net"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("consistent", params, [])


def exchange(calls: int, *, wrong: int = -1, shape: bool = False, pair: bool = False) -> list:
    """What two ranks do together; from call ``wrong`` on rank 1 gives, or gets, something else."""
    events = []
    for number in range(calls):
        for rank in (0, 1):
            is_wrong = rank == 1 and number >= wrong >= 0
            op = ("send", "recv")[rank] if pair else "all_reduce"
            digest = f"xxh3-128:{number:032x}"
            lost = "xxh3-128:" + "f" * 32
            event = CollectiveEvent(
                seq=number,
                time_ns=10 * number + rank,
                step=number // 4,
                stage="train",
                rank=rank,
                stream=f"p{rank}-t0",
                op=op,
                number=number,
                shape=[25 if is_wrong and shape else 29],
                dtype="float32",
                before=digest if pair else f"xxh3-128:{number:016x}{rank:016x}",
                after=lost if is_wrong and not shape else digest,
                peer=1 - rank if pair else None,
            )
            events.append(event)
    return events


@pytest.mark.parametrize(
    ("of", "op", "options"),
    [
        ("shapes", "all_reduce", {"shape": True}),
        ("received", "all_reduce", {}),
        ("received", "recv", {"pair": True}),
    ],
)
def test_what_ranks_do_together_has_one_shape_and_delivers_what_was_sent(of, op, options):
    (claim,) = [
        i
        for i in learn(exchange(12, pair=options.get("pair", False))).invariants
        if i.hypothesis.params.get("of") == of
    ]
    assert report_of([claim], exchange(20, pair=options.get("pair", False))).findings == []
    assert decide("consistent", {"of": of}, exchange(0)) == []
    report = report_of([claim], exchange(12, wrong=5, **options))
    (finding,) = report.findings
    assert (finding.first_step, finding.subject.api) == (1, f"torch.distributed.{op}")


def test_ranks_that_enter_different_calls_are_no_pair():
    events = exchange(8, wrong=0, shape=True)
    events = [e.replace(op="broadcast") if e.rank else e for e in events]
    assert decide("consistent", {"of": "shapes"}, events) == []


NORMS = {"of": "norms", **BASE}


def clipping(norms: Sequence[float], steps: int = 10) -> Callable[[RankBuilder], None]:
    """Each rank clips by a different norm in every step."""

    def run(rank: RankBuilder) -> None:
        for _ in range(steps):
            rank.begin_step().zero_grad().forward().backward()
            given = {"value": norms[rank.rank], "dtype": "float32", "shape": []}
            rank.call(Families.FSDP_CLIP, family=Families.CLIP_NORM, result=given)
            rank.optimizer_step()

    return run


def test_ranks_that_clip_by_other_norms_are_told_in_the_first_step(golden: Golden):
    result = learn(two_ranks(clipping((2.0, 2.0 + 1e-6)), wrap=False))
    assert golden.each(claims(result, "consistent", of="norms"))
    apart = two_ranks(clipping((2.0, 3.0), 3), wrap=False)
    found = broken(decide("consistent", NORMS, apart))
    assert found[0] == (0, Symptom.RANKS_DIFFER, Families.CLIP_NORM)
    (finding,) = report_of(result.invariants, apart).findings
    assert finding.subject.api == Families.CLIP_NORM
    golden(finding)
    assert mentions(finding, 0, 2, 1, 3)
    assert not report_of(result.invariants, two_ranks(clipping((1.0, 1.0)), wrap=False)).findings


def test_where_ranks_clip_by_norms_of_their_own_nothing_is_claimed():
    found = learn(two_ranks(clipping((2.0, 3.0)), wrap=False))
    assert not claims(found, "consistent", of="norms")
