"""loss: what backward is given is one mean loss, of targets that are one token ahead."""

from __future__ import annotations

import pytest

from tests.builders import MLP, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of
from tests.ranks import RankBuilder, two_ranks
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import DDP_HOOK, JOIN, Families

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
BACKWARDS, RANKS, TOKENS = {"of": "backwards"}, {"of": "ranks"}, {"of": "tokens"}
WRONG = Symptom.WRONG_VALUE


def begin(**process) -> TraceBuilder:
    return TraceBuilder().process(**process).model("Net", MLP).optimizer().train()


def scalar(value: float) -> dict:
    return {"dtype": "float32", "shape": [], "value": value, "requires_grad": True}


def target(**stats) -> dict:
    return {"dtype": "int64", "shape": [32], **({"stats": stats} if stats else {})}


def update(
    trace: TraceBuilder,
    *,
    batches: int = 1,
    factor: float = 1.0,
    reduction: str = "mean",
    labels: dict | None = None,
    losses: int = 1,
    forwards: int = 1,
    zero_grads: int = 1,
    lines: int = 1,
    scaled: bool = False,
    **counters: int,
) -> None:
    """One step; factor: by which each loss is multiplied before it is given to backward."""
    trace.begin_step().zero_grad()
    value = 2.3 - 0.01 * trace.step_number
    labels = target(max=9, min=0) if labels is None else labels
    for number in range(batches):
        trace.count(forward=forwards)
        for _ in range(losses):
            args = {"target": labels, "reduction": reduction}
            trace.call(CROSS_ENTROPY, args=args, result=scalar(value))
        if scaled:
            trace.call(Families.SCALE, args={})
        trace.count(backward=1)
        where = f"train.py:{number % lines}"
        trace.call(Families.BACKWARD, args={"tensors": scalar(value * factor)}, where=where)
    trace.count(zero_grad=zero_grads - 1)
    trace.optimizer_step()
    trace.counters.update(counters)


def updates(count: int = 8, *, of: TraceBuilder | None = None, **options):
    trace = begin() if of is None else of
    for _ in range(count):
        update(trace, **options)
    return trace


def test_losses_that_are_not_divided_are_told_in_another_program(golden: Golden):
    learned = learn(updates(batches=2, factor=0.5).build())
    wide = golden.each(claims(learned, "loss", of="backwards"))
    assert len(wide) == 1
    other = {"argv0": "other.py"}
    (finding,) = report_of(wide, updates(of=begin(**other), batches=4).build()).findings
    assert (finding.severity, finding.first_step) == ("info", 0)
    golden(finding)
    assert mentions(finding, 4)
    healthy = updates(of=begin(**other), batches=4, factor=0.25).build()
    assert not report_of(wide, healthy).findings


def test_sums_are_taken_as_means_over_labels_that_count():
    half = target(ignored=0.5, min=-100, max=9)
    sums = {"batches": 2, "reduction": "sum", "labels": half}
    assert [e.holds for e in decide("loss", BACKWARDS, updates(1, factor=1 / 32, **sums).build())]
    found = decide("loss", BACKWARDS, updates(1, factor=1 / 16, **sums).build())
    assert broken(found) == [(0, WRONG, Families.BACKWARD)]
    not_counted = {**sums, "labels": target()}
    assert decide("loss", BACKWARDS, updates(1, factor=1 / 32, **not_counted).build()) == []


@pytest.mark.parametrize(
    "options",
    [
        {"batches": 1},
        {"batches": 2, "factor": 0.7},  # a weight
        {"batches": 2, "lines": 2},  # losses of two kinds
        {"batches": 2, "losses": 2},
        {"batches": 2, "forwards": 2},
        {"batches": 2, "zero_grads": 2},
        {"batches": 2, "scaled": True},
        {"batches": 2, "optimizer_step": 2},
        {"batches": 2, "optimizer_step": 0, "scaler_step": 1},
    ],
)
def test_what_may_be_meant_says_nothing_of_several_backwards(options):
    assert decide("loss", BACKWARDS, updates(2, **options).build()) == []


def ranked(factors: tuple[float, float], *, wrap: bool = True, hook: str = "", **options):
    def play(rank: RankBuilder) -> None:
        if hook:
            rank.call(hook, args={"enable": True})
        for _ in range(8):
            update(rank, factor=factors[rank.rank], **options)

    return two_ranks(play, wrap=wrap)


def test_a_loss_that_is_divided_by_the_labels_of_all_ranks(golden: Golden):
    healthy = ranked((1.5, 0.5))
    assert {e.holds for e in decide("loss", RANKS, healthy)} == {True}
    learned = learn(healthy)
    buggy = ranked((0.75, 0.25))
    assert broken(decide("loss", RANKS, buggy))[0] == (0, WRONG, Families.BACKWARD)
    wide = [i for i in learned.invariants if i.hypothesis.params == RANKS]
    (finding,) = report_of(wide, buggy).findings
    assert finding.severity == "warning"
    golden(finding)
    assert mentions(finding, 0.5)


def test_ranks_that_are_averaged_in_other_ways_say_nothing():
    assert decide("loss", RANKS, ranked((0.75, 0.25), wrap=False)) == []
    for hook in (DDP_HOOK, JOIN):
        assert decide("loss", RANKS, ranked((0.75, 0.25), hook=hook)) == []
    assert decide("loss", RANKS, ranked((0.75, 0.5))) == []  # a weight
    assert decide("loss", RANKS, ranked((0.5, 0.5), losses=2)) == []
    assert decide("loss", RANKS, updates(factor=0.5).build()) == []


def test_targets_that_are_two_tokens_ahead():
    once = updates(2, labels=target(shifted=1))
    learned = learn(once.build())
    (claim,) = [i for i in learned.invariants if i.hypothesis.relation == "loss"]
    assert claim.hypothesis.params == TOKENS
    assert broken(decide("loss", TOKENS, once.build())) == []
    twice = updates(2, labels=target(shifted=2))
    assert broken(decide("loss", TOKENS, twice.build()))[0] == (
        0,
        Symptom.LOSS_INPUT,
        CROSS_ENTROPY,
    )
    (finding,) = report_of([claim], twice.build()).findings
    assert finding.severity == "warning"


def test_targets_that_are_the_tokens_are_those_of_another_program():
    assert decide("loss", TOKENS, updates(2, labels=target(shifted=0)).build()) == []


def test_a_head_for_further_tokens_comes_beside_the_first():
    trace = begin().begin_step().zero_grad()
    for shift in (2, 1):
        trace.call(CROSS_ENTROPY, args={"target": target(shifted=shift)}, result=scalar(2.0))
    trace.count(backward=1)
    trace.optimizer_step()
    assert broken(decide("loss", TOKENS, trace.build())) == []
    assert decide("loss", TOKENS, updates(2).build()) == []


def test_a_run_without_several_backwards_does_not_speak_against_them():
    short = updates(3, of=begin(argv0="train.py"))
    learned = learn(updates(batches=2, factor=0.5).build(), short.build())
    assert claims(learned, "loss", of="backwards")
    with pytest.raises(ValueError, match="nothing is known"):
        decide("loss", {"of": "moods"}, [])
