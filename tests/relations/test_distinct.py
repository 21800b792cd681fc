"""distinct: batches and random draws that do not come twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import MLP, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.events import CheckpointEvent, Event, RngEvent
from traincheck.schema.findings import Symptom
from traincheck.schema.values import TensorSummary, tensor_json

BASE = {"program": "train.py"}
BATCHES = {**BASE, "of": "batches", "what": "loader0"}


def batch(trace: TraceBuilder, content: int, *, rows: int = 64, **fields: Any) -> TraceBuilder:
    leaf = tensor_json(TensorSummary("float32", (rows, 8)))
    return trace.batch(
        leaves={"0": leaf}, samples=[f"{content}-{i}" for i in range(rows)], **fields
    )


def epochs(content: Callable[[int, int], int], count: int = 3, *, rows: int = 64) -> TraceBuilder:
    """Epochs of four batches. content: of a batch, by epoch and index."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for epoch in range(count):
        for index in range(4):
            trace.begin_step()
            batch(trace, content(epoch, index), rows=rows, epoch=epoch, index=index)
            trace.zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP]).optimizer_step()
    return trace


def shuffled(epoch: int, index: int) -> int:
    return 10 * epoch + index


def test_what_never_repeats_is_learned(golden: Golden):
    found = golden.each(claims(learn(epochs(shuffled).build()), "distinct"))
    assert values_of(found, "distinct", "among") == ["epoch", "dataset", "epochs"]
    in_order = learn(epochs(lambda e, i: i).build())
    assert values_of(in_order, "distinct", "among") == ["epoch", "dataset"]


def test_a_batch_that_comes_again_is_told():
    claim = {**BATCHES, "among": "epoch"}
    assert broken(decide("distinct", claim, epochs(shuffled).build())) == []
    found = broken(decide("distinct", claim, epochs(lambda e, i: 10 * e + i // 2).build()))
    assert found[:2] == [
        (1, Symptom.REPEATED_DATA, "loader0"),
        (3, Symptom.REPEATED_DATA, "loader0"),
    ]


@pytest.mark.parametrize("first", [0, 6])
def test_a_batch_without_content_is_told_by_its_indices(first):
    """As in the steps of a selective trace in which content is not taken."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    leaf = tensor_json(TensorSummary("float32", (8, 8)))
    for step in range(10):
        drawn = [8 * min(step, 7) + i for i in range(8)]
        content = {"samples": [str(i) for i in drawn]} if step < first else {}
        trace.begin_step().batch(leaves={"0": leaf}, index=step, indices=drawn, **content)
        trace.zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP]).optimizer_step()
    found = broken(decide("distinct", {**BATCHES, "among": "epoch"}, trace.build()))
    again = (Symptom.REPEATED_DATA, "loader0")
    assert found == [(8, *again), (9, *again)]


def test_an_order_that_comes_again_is_told_at_the_second_epoch():
    invariants = learn(epochs(shuffled).build()).invariants
    found = report_of(invariants, epochs(lambda e, i: i).build()).findings
    assert [(f.code, f.first_step) for f in found] == [("distinct", 4)]
    assert mentions(found[0], "set_epoch")
    assert not report_of(invariants, epochs(shuffled, 9).build()).findings


def test_small_batches_may_be_equal_by_chance():
    claim = {**BATCHES, "among": "epoch"}
    assert decide("distinct", claim, epochs(lambda e, i: 1, rows=3).build()) == []
    order = {**BATCHES, "among": "epochs"}
    assert decide("distinct", order, epochs(lambda e, i: i, rows=7).build()) == []


def test_batches_without_samples_are_told_apart_by_their_tensors():
    def run(content: Callable[[int, int], int]) -> list:
        leaf = TensorSummary("float32", (64, 8))
        return [
            event.replace(
                samples=(), leaves={"0": tensor_json(leaf.replace(fingerprint=event.samples[0]))}
            )
            if event.kind == "batch"
            else event
            for event in epochs(content).build()
        ]

    claim = {**BATCHES, "among": "epoch"}
    assert broken(decide("distinct", claim, run(shuffled))) == []
    assert broken(decide("distinct", claim, run(lambda e, i: e)))[0][0] == 1


def test_a_loader_that_does_not_shuffle_is_told():
    def run(sampler: str) -> TraceBuilder:
        trace = TraceBuilder().process().model("Net", MLP).optimizer()
        for index in range(9):
            trace.begin_step()
            batch(trace, index, index=index, sampler=f"torch.utils.data.sampler.{sampler}")
            trace.zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP]).optimizer_step()
        return trace

    claim = {**BATCHES, "among": "dataset"}
    assert broken(decide("distinct", claim, run("RandomSampler").build())) == []
    found = broken(decide("distinct", claim, run("SequentialSampler").build()))
    assert found[0] == (0, Symptom.REPEATED_DATA, "loader0")


def test_a_loader_for_evaluation_may_repeat_what_it_likes():
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    batch(trace.begin_step(), 1, loader="loader0")  # an evaluation before training begins
    batch(trace, 1, loader="loader0")
    for index in range(9):
        if index:
            trace.begin_step()
        batch(trace, 10 + index, loader="loader1", index=index)
        trace.zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP]).optimizer_step()
        batch(trace, 1, loader="loader0")
    for loader, count in (("loader0", 0), ("loader1", 8)):
        claim = {**BATCHES, "what": loader, "among": "epoch"}
        assert len(decide("distinct", claim, trace.build())) == count


def test_one_batch_on_two_ranks_is_told():
    def play(apart: bool) -> Callable[[RankBuilder], None]:
        def steps(rank: RankBuilder) -> None:
            for index in range(9):
                rank.begin_step()
                batch(rank, index + 100 * rank.rank * apart, index=index, epoch=0)
                rank.zero_grad().forward("Net").backward([f"Net.{n}" for n in MLP])
                rank.optimizer_step()

        return steps

    claim = {**BATCHES, "among": "ranks"}
    assert claims(
        learn(two_ranks(play(apart=True))), "distinct", of="batches", among="ranks", what="loader0"
    )
    assert broken(decide("distinct", claim, two_ranks(play(apart=True)))) == []
    found = broken(decide("distinct", claim, two_ranks(play(apart=False))))
    assert found[0] == (0, Symptom.REPEATED_DATA, "loader0")


def test_another_program_of_the_same_file_name_is_not_judged():
    invariants = [
        i for i in learn(epochs(shuffled).build()).invariants if i.hypothesis.relation == "distinct"
    ]
    assert report_of(invariants, epochs(lambda e, i: 1).build()).findings
    other = [
        event.replace(name=event.name.replace("Net.", "Gpt.")) if event.kind == "state" else event
        for event in epochs(lambda e, i: 1).build()
    ]
    assert not report_of(invariants, other).findings


def workers(seed: Callable[[int, int], int], count: int = 3) -> list:
    """Two workers in each epoch. seed: by epoch and worker."""
    trace = epochs(shuffled, count)
    marks = []
    for epoch in range(count):
        for worker in (0, 1):
            other = TraceBuilder(pid=2000 + 10 * epoch + worker, worker=True)
            state = f"s{seed(epoch, worker)}"
            data = {"worker": worker, "loader": "loader0", "epoch": epoch}
            other.mark("worker", **data, start={"numpy": state}, after={"numpy": state + "+"})
            marks += other.take()
    events = trace.build()
    return [events[0], *marks, *events[1:]]


DRAWS = {**BASE, "of": "draws", "what": "loader0 numpy"}


@pytest.mark.parametrize(
    ("among", "seed", "step"),
    [
        ("workers", lambda epoch, worker: epoch, 0),
        ("epochs", lambda epoch, worker: worker, 4),
        ("ever", lambda epoch, worker: worker, 4),
    ],
)
def test_workers_that_begin_alike_are_told(among, seed, step):
    claim = {**DRAWS, "among": among}
    assert broken(decide("distinct", claim, workers(lambda e, w: 10 * e + w))) == []
    found = broken(decide("distinct", claim, workers(seed)))
    assert found[0] == (step, Symptom.REPEATED_DATA, "loader0")


def test_of_workers_the_widest_claim_that_holds_is_kept(golden: Golden):
    found = claims(learn(workers(lambda e, w: 10 * e + w)), "distinct", of="draws")
    assert values_of(golden.each(found), "distinct", "among") == ["ever"]


def draws(state: Callable[[int], str], steps: int = 9, *, seeds: bool = False) -> TraceBuilder:
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for number in range(steps):
        trace.step()
        if seeds:
            trace.seed()
        trace.add(RngEvent, source="torch", change="state", fingerprint=state(number))
    return trace


STATES = {**BASE, "of": "states", "what": "torch", "among": "steps"}


def test_a_generator_that_is_seeded_again_is_told(golden: Golden):
    assert golden.each(claims(learn(draws(str).build()), "distinct", of="states", what="torch"))
    found = broken(decide("distinct", STATES, draws(lambda n: "a", seeds=True).build()))
    assert found[0] == (1, Symptom.REPEATED_DATA, "torch")


def test_steps_that_draw_nothing_do_not_repeat():
    assert decide("distinct", STATES, draws(lambda n: "a").build()) == []


@pytest.mark.parametrize("params", [{}, {"of": "batches", "among": "steps", "what": "x"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("distinct", params, [])


ORDER = [list(range(8 * index, 8 * index + 8)) for index in range(6)]
PARTS = {"model": {"kind": "model"}, "optimizer": {"kind": "optimizer", "lr": [0.1]}}
RESUMED = {**BASE, "of": "batches", "what": "loader1", "among": "resumed"}


def resuming(order: list[list[int]], *, skip: int = 2) -> TraceBuilder:
    """Stopped after two of six batches; the next loader leaves ``skip`` of ``order`` out."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer()

    def epoch(loader: str, batches: list[list[int]], skipped: int) -> None:
        for index, indices in enumerate(batches):
            if index >= skipped:
                trace.begin_step()
            batch(trace, 0, loader=loader, index=index, indices=indices, drawn=len(indices))
            if index >= skipped:
                names = [f"Net.{n}" for n in MLP]
                trace.zero_grad().forward("Net").backward(names).optimizer_step()

    epoch("loader0", ORDER[:2], 0)
    for op in ("save", "load"):
        trace.add(CheckpointEvent, op=op, path="last.pt", parts=PARTS)
    epoch("loader1", order, skip)
    return trace


def test_samples_of_an_epoch_that_come_again_when_it_is_resumed_are_told(golden: Golden):
    result = learn(resuming(ORDER).build())
    assert golden.each(claims(result, "distinct", among="resumed", what="loader1"))
    assert len(decide("distinct", RESUMED, resuming(ORDER).build())) == 4 * 8
    assert broken(decide("distinct", RESUMED, resuming(ORDER).build())) == []
    other = resuming(ORDER[::-1]).build()
    assert broken(decide("distinct", RESUMED, other)) == [
        (step, Symptom.REPEATED_DATA, "loader1") for step in (4, 5)
    ]
    (finding,) = report_of(result.invariants, other).findings
    assert (finding.code, finding.first_step) == ("distinct", 4)
    golden(finding)


def test_an_epoch_that_is_begun_again_is_no_resumption():
    assert decide("distinct", RESUMED, resuming(ORDER[::-1], skip=0).build()) == []
    assert decide("distinct", RESUMED, resuming(ORDER[::-1], skip=1).build()) == []


def parts(orders: list[list[int]]) -> list[Event]:
    """Each rank takes its order in batches of eight."""

    def run(rank: RankBuilder) -> None:
        order = orders[rank.rank]
        for index in range(len(order) // 8):
            indices = order[8 * index : 8 * index + 8]
            rank.begin_step()
            batch(rank, rank.rank, rows=8, index=index, indices=indices, drawn=8)
            rank.zero_grad().forward().backward().optimizer_step()

    return two_ranks(run, wrap=False)


SHARED_OUT = {**BATCHES, "among": "parts"}


def test_samples_that_go_to_two_ranks_are_told(golden: Golden):
    apart = [list(range(0, 160, 2)), list(range(1, 160, 2))]
    result = learn(parts(apart))
    assert golden.each(claims(result, "distinct", among="parts", what="loader0"))
    padded = [apart[0], [*apart[1][:-1], 0]]
    assert broken(decide("distinct", SHARED_OUT, parts(padded))) == []
    other = [apart[0], [n + n % 4 // 2 for n in apart[1]]]
    found = broken(decide("distinct", SHARED_OUT, parts(other)))
    assert found[0] == (0, Symptom.REPEATED_DATA, "loader0")


def test_a_batch_of_one_sample_is_told(golden: Golden):
    def run(is_one: bool) -> TraceBuilder:
        trace = TraceBuilder().process().model("Net", MLP).optimizer()
        for index in range(9):
            trace.begin_step()
            samples = [f"{index}-{0 if is_one else row}" for row in range(8)]
            indices = list(range(8 * index, 8 * index + 8))
            trace.batch(samples=samples, index=index, indices=indices, drawn=8)
            trace.zero_grad().forward("Net").backward().optimizer_step()
        return trace

    result = learn(run(is_one=False).build())
    assert golden.each(claims(result, "distinct", among="rows", what="loader0"))
    first = report_of(result.invariants, run(is_one=True).build()).findings[0]
    assert (first.code, first.first_step) == ("distinct", 0)
    golden(first)
