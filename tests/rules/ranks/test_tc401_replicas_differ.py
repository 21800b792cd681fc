"""TC401: parameters that all ranks share and that differ between them."""

from __future__ import annotations

import itertools

import pytest

from tests.builders import BN_BUFFERS, MLP, MLP_BN
from tests.checking import fires, quiet, report_of
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, merged, two_ranks
from traincheck.check.engine import Engine
from traincheck.rules.ranks.tc401_replicas_differ import ReplicasDiffer
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.places import where
from traincheck.schema.torch_api import JOIN

ALL = tuple(sorted(f"Net.{name}" for name in MLP))
LAYER_NORM = "torch.nn.modules.normalization.LayerNorm"
TRANSFORMER = {
    "attn.weight": "torch.nn.modules.linear.Linear",
    "norm.weight": LAYER_NORM,
    "proj.bias": "torch.nn.modules.linear.Linear",
}


def drifting(rank: RankBuilder) -> None:
    rank.steps(2).steps(0)
    rank.go_apart("Net.fc1.weight").steps(2)


BROKEN = two_ranks(drifting)


def test_the_place_is_in_the_loop() -> None:
    assert where(fires("TC401", BROKEN).evidence) == "train.py:84"


def test_fires_at_the_first_step_that_leaves_ranks_apart(golden: Golden) -> None:
    finding = fires("TC401", BROKEN)
    assert (finding.first_step, finding.variables) == (2, ("Net.fc1.weight",))
    assert finding.rank == 1
    golden(finding)
    assert mentions(finding, 0)


def test_fires_with_all_names_at_once() -> None:
    finding = fires("TC401", two_ranks(lambda rank: rank.go_apart().steps(3)))
    assert (finding.first_step, finding.variables) == (0, ALL)


def by_hand(
    *apart: int, steps: int = 6, reduced: str | None = None, second: int | None = None
) -> list[Event]:
    """Without a wrapper; in these steps the ranks differ in one parameter.

    second: from this step on, another optimizer updates.
    """

    def play(rank: RankBuilder) -> None:
        for number in range(steps):
            rank.apart = {"Net.fc2.bias"} if number in apart else set()
            rank.begin_step()
            if number == second:
                rank.optimizer()
            owner = "opt0" if second is None or number < second else "opt1"
            rank.zero_grad().forward().backward()
            rank.collective(variable=reduced).optimizer_step(owner)  # type: ignore[attr-defined]

    return two_ranks(play, wrap=False)


def test_fires_without_a_wrapper_when_ranks_had_agreed() -> None:
    finding = fires("TC401", by_hand(3, 4, 5))
    assert (finding.first_step, finding.variables) == (3, ("Net.fc2.bias",))


def test_a_gradient_that_every_rank_reduces_is_to_be_the_same() -> None:
    assert fires("TC401", by_hand(1, 2, reduced="Net.fc2.bias")).first_step == 1
    assert quiet("TC401", by_hand(1, 2, reduced="Net.fc1.bias")) is Verdict.HELD


def test_quiet_on_weights_that_are_averaged_by_hand() -> None:
    """Now and then; after the first step small weights agree by chance, as Adam moves them."""
    assert quiet("TC401", by_hand(1, 2, 4, 5)) is Verdict.HELD


def test_quiet_on_averages_by_hand_after_a_phase_of_another_optimizer() -> None:
    assert quiet("TC401", by_hand(3, 4, second=3)) is Verdict.HELD
    again = by_hand(3, 4, 8, steps=10, second=3)  # by then they had agreed again
    assert fires("TC401", again).first_step == 8
    reduced = by_hand(3, 4, second=3, reduced="Net.fc2.bias")
    assert fires("TC401", reduced).first_step == 3


def tensor_parallel(norm_apart: bool, *, beside: bool = True) -> list[Event]:
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.apart.add("Net.attn.weight")
        if not beside:
            rank.apart.add("Net.proj.bias")
        rank.model("Net", TRANSFORMER).optimizer()
        if norm_apart:
            rank.apart.add("Net.norm.weight")
        for _ in range(3):
            rank.begin_step().zero_grad().forward().backward()
            rank.collective().optimizer_step()  # type: ignore[attr-defined]
        ranks.append(rank)
    return merged(*ranks)


def test_fires_on_a_norm_whose_gradient_is_not_reduced() -> None:
    finding = fires("TC401", tensor_parallel(norm_apart=True))
    assert (finding.first_step, finding.variables) == (0, ("Net.norm.weight",))
    assert quiet("TC401", tensor_parallel(norm_apart=False)) is Verdict.HELD


def test_quiet_on_experts_that_have_norms_of_their_own() -> None:
    events = tensor_parallel(norm_apart=True, beside=False)
    assert quiet("TC401", events) is Verdict.NOT_TRIGGERED


def test_holds_on_a_healthy_run() -> None:
    assert quiet("TC401", two_ranks(lambda rank: rank.steps(3))) is Verdict.HELD


def test_quiet_on_buffers_that_differ() -> None:
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP_BN, buffers=BN_BUFFERS)
        rank.wrap().optimizer().steps(3)
        ranks.append(rank)
    events = merged(*ranks)
    assert any(isinstance(e, StateEvent) and e.role == "buffer" for e in events)
    assert quiet("TC401", events) is Verdict.HELD


@pytest.mark.parametrize(
    "change", [{"shape": (0,)}, {"fingerprint": "shard-xxh3-128:%d"}, {"fingerprint": "probe:%d"}]
)
def test_quiet_on_pieces_and_nothing(change: dict[str, object]) -> None:
    def altered(event: Event) -> Event:
        if not isinstance(event, StateEvent) or event.role != "parameter" or not event.summary:
            return event
        made = {k: v % event.rank if isinstance(v, str) else v for k, v in change.items()}
        return event.replace(summary=event.summary.replace(**made))

    events = [altered(e) for e in two_ranks(lambda rank: rank.go_apart().steps(3))]
    assert quiet("TC401", events) is Verdict.NOT_TRIGGERED


def test_quiet_when_shards_have_other_shapes() -> None:
    def altered(event: Event) -> Event:
        if isinstance(event, StateEvent) and event.role == "parameter" and event.summary:
            return event.replace(summary=event.summary.replace(shape=(3 + event.rank,)))
        return event

    events = [altered(e) for e in two_ranks(lambda rank: rank.go_apart().steps(3))]
    assert quiet("TC401", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_ranks_that_train_models_of_their_own() -> None:
    alone = two_ranks(lambda rank: rank.go_apart().steps(3), wrap=False)
    assert quiet("TC401", alone) is Verdict.NOT_TRIGGERED
    # of which one number is averaged now and then
    sweep = two_ranks(lambda rank: rank.collective().go_apart().steps(3), wrap=False)
    assert quiet("TC401", sweep) is Verdict.NOT_TRIGGERED


def test_quiet_on_local_sgd() -> None:
    def play(rank: RankBuilder) -> None:
        rank.optimizer("torch.distributed.optim.post_localSGD_optimizer.PostLocalSGDOptimizer")
        rank.steps(2)
        rank.go_apart().steps(3)

    assert quiet("TC401", two_ranks(play)) is not Verdict.VIOLATED


@pytest.mark.parametrize(("enable", "verdict"), [(True, Verdict.HELD), (False, Verdict.VIOLATED)])
def test_quiet_where_a_rank_may_be_out_of_inputs(enable: bool, verdict: Verdict) -> None:
    def play(rank: RankBuilder) -> None:
        rank.steps(2).call(JOIN, args={"enable": enable})
        rank.go_apart().steps(3)

    assert report_of(two_ranks(play), [ReplicasDiffer()]).verdicts["TC401"] is verdict


def test_a_rank_that_died_is_no_fault_and_is_told() -> None:
    def play(rank: RankBuilder) -> None:
        rank.steps(2 if rank.rank else 5)

    report = report_of(two_ranks(play), [ReplicasDiffer()])
    assert report.findings == []
    assert any("step 2" in note and "rank 1" in note for note in report.notes)


def test_one_rank_alone_says_nothing() -> None:
    events = [e for e in two_ranks(lambda rank: rank.go_apart().steps(3)) if e.rank == 0]
    assert quiet("TC401", events) is Verdict.NOT_TRIGGERED


def test_an_unfinished_step_proves_nothing() -> None:
    ranks = []
    for number in (0, 1):
        rank = RankBuilder(number)
        rank.model("Net", MLP)
        rank.wrap().optimizer().steps(2)
        rank.end_step()
        rank.go_apart().step()
        ranks.append(rank.build(last_complete=False))
    assert quiet("TC401", merged(*ranks)) is Verdict.HELD


def test_steps_that_were_not_recorded_prove_nothing() -> None:
    def play(rank: RankBuilder) -> None:
        rank.steps(2).skipped_steps(3).steps(2)

    assert quiet("TC401", two_ranks(play)) is Verdict.HELD


def test_workers_and_other_processes_do_not_matter() -> None:
    worker = RankBuilder(0, pid=77, worker=True).mark("process", pid=77).batch()
    events = BROKEN[:3] + worker.build() + BROKEN[3:]
    assert fires("TC401", events).first_step == 2


@pytest.mark.parametrize("order", ["by rank", "reversed", "interleaved"])
def test_whatever_order_ranks_come_in_it_says_the_same(order: str) -> None:
    apart = [[e for e in BROKEN if e.rank == rank] for rank in (0, 1)]
    mixed = {
        "by rank": apart[0] + apart[1],
        "reversed": apart[1] + apart[0],
        "interleaved": [e for pair in itertools.zip_longest(*apart) for e in pair if e is not None],
    }
    assert fires("TC401", mixed[order]) == fires("TC401", BROKEN)


def test_a_run_that_was_started_again_is_compared_turn_by_turn() -> None:
    def play(rank: RankBuilder) -> None:
        rank.steps(3)

    again = [e.replace(stream=f"p{2000 + e.rank}-t0") for e in BROKEN]
    assert fires("TC401", two_ranks(play) + again).first_step == 2


def test_a_view_without_fingerprints_cannot_tell() -> None:
    view = {"states": ["parameter@step"], "kinds": ["collective", "mark", "optimizer", "step"]}
    calls = sorted(ReplicasDiffer.needs.calls)
    events = [
        e.replace(data={**e.data, "recorded": {**view, "calls": calls}}) if e.kind == "mark" else e
        for e in BROKEN
    ]
    report = report_of(events, [ReplicasDiffer()])
    assert report.verdicts == {"TC401": Verdict.NOT_OBSERVABLE}
    assert isinstance(Engine(rules=[ReplicasDiffer()]), Engine)
