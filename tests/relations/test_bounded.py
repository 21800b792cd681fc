"""bounded: numbers that stay within limits in every step of a program."""

from __future__ import annotations

import itertools
import math

import pytest

from tests.builders import MLP, OTHER_SCRIPT, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.readings.recorded import Numbers
from traincheck.readings.scalars import GradientSizes
from traincheck.schema.events import CheckpointEvent, StateEvent, StepEvent
from traincheck.schema.findings import Symptom, Verdict
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary

CROSS_ENTROPY = "torch.nn.functional.cross_entropy"


def begin(**process) -> TraceBuilder:
    return TraceBuilder().process(**process).model("Net", MLP).optimizer().train()


def scalar(value: float) -> dict:
    return {"dtype": "float32", "shape": [], "value": value, "requires_grad": True}


def tensor(low: float, high: float, shape=(32, 10), **more) -> dict:
    stats = {"min": low, "max": high, **more}
    return {"dtype": "float32", "shape": list(shape), "stats": stats}


def update(
    trace: TraceBuilder,
    *,
    micro: int = 1,
    factor: float = 1.0,
    reduction: str = "mean",
    ignored: float = 0.0,
    logits: tuple[float, float] = (-1.0, 1.0),
    sums: tuple[float, float] | None = None,
    api: str = CROSS_ENTROPY,
    losses: int = 1,
    rows: int = 32,
    optimizer: str = "opt0",
) -> TraceBuilder:
    """One step; factor: by which each loss is multiplied before it is given to backward.

    sums: the smallest and the largest over a row of logits, where they were taken.
    """
    trace.begin_step().zero_grad()
    value = 2.3 - 0.01 * trace.step_number
    labels = tensor(-100 if ignored else 0, 9, (rows,), **({"ignored": ignored} if ignored else {}))
    for _ in range(micro):
        for _ in range(losses):
            over_rows = dict(zip(("row_sum_min", "row_sum_max"), sums or ()))
            args = {"input": tensor(*logits, **over_rows), "target": labels, "reduction": reduction}
            trace.call(api, args=args, result=scalar(value))
        trace.count(backward=1)
        trace.call(Families.BACKWARD, args={"tensors": scalar(value * factor)})
    return trace.optimizer_step(optimizer)


def updates(trace: TraceBuilder, count: int, **options) -> TraceBuilder:
    for _ in range(count):
        update(trace, **options)
    return trace


def exactly(value: float):
    return {"program": "train.py", "quantity": "loss scale", "low": value, "high": value}


def test_a_loss_that_is_not_divided_by_the_number_of_micro_batches():
    quarter = updates(begin(), 8, micro=4, factor=0.25)
    assert claims(learn(quarter.build()), "bounded", quantity="loss scale", low=1.0, high=1.0)
    assert broken(decide("bounded", exactly(1.0), quarter.build())) == []
    whole = updates(updates(begin(), 2, micro=4, factor=0.25), 1, micro=4)
    assert broken(decide("bounded", exactly(1.0), whole.build())) == [
        (2, Symptom.WRONG_VALUE, Families.BACKWARD)
    ]


def test_backward_passes_of_a_closure_are_not_added_up():
    def closure(*, passes: int, within: int) -> list:
        """The last of some passes are within the step of the optimizer."""
        trace = begin()
        for _ in range(3):
            update(trace, micro=passes, factor=1 / (passes - within + 1))
            backwards = [e for e in trace.events if getattr(e, "api", "") == Families.BACKWARD]
            trace.edit(trace.events[-1], start_ns=backwards[-within].start_ns - 1)
        return trace.build()

    for searched in (closure(passes=3, within=3), closure(passes=1, within=1)):
        assert broken(decide("bounded", exactly(1.0), searched)) == []
    accumulated = closure(passes=4, within=1)  # the last of four, as Lightning calls it
    assert broken(decide("bounded", exactly(1.0), accumulated)) == []
    assert len(broken(decide("bounded", exactly(0.25), accumulated))) == 3


@pytest.mark.parametrize(
    ("micro", "factor", "times"), [(2, 0.25, 0.5), (4, 0.125, 0.5), (8, 0.25, 2), (4, 1.0, 4)]
)
def test_a_loss_of_another_size_is_told_with_the_passes_it_comes_from(
    micro, factor, times, golden: Golden
):
    """Which of the two it is, the divisor or the number of batches, is for the numbers to tell."""
    learned = learn(updates(begin(), 12, micro=4, factor=0.25).build()).invariants
    scale = claims(learned, "bounded", quantity="loss scale")
    (found,) = report_of(scale, updates(begin(), 4, micro=micro, factor=factor).build()).findings
    golden(found)
    assert mentions(found.observed, times, micro)


def test_the_last_update_of_an_epoch_may_be_smaller_but_two_in_a_row_may_not():
    trace = updates(begin(), 3, micro=4, factor=0.25)
    update(trace, micro=2, factor=0.25)
    updates(trace, 3, micro=4, factor=0.25)
    assert broken(decide("bounded", exactly(1.0), trace.build())) == []
    updates(trace, 3, micro=4, factor=0.125)
    assert [step for step, *_ in broken(decide("bounded", exactly(1.0), trace.build()))] == [7, 8]


def test_short_updates_with_others_between_them_are_not_in_a_row():
    trace = begin()
    for factor in (1.1, 0.5, 1.1, 1.1, 0.5, 1.1):  # a penalty is added, and epochs end
        update(trace, factor=factor)
    assert broken(decide("bounded", exactly(1.0), trace.build())) == []
    update(trace, factor=0.5)
    update(trace, factor=2)
    assert [step for step, *_ in broken(decide("bounded", exactly(1.0), trace.build()))] == [7]
    updates(trace, 2, factor=0.5)
    assert [step for step, *_ in broken(decide("bounded", exactly(1.0), trace.build()))] == [7, 8]


@pytest.mark.parametrize("limits", [exactly(1.0), {**exactly(1.0), "low": 0.6, "high": 1.5}])
def test_several_optimizers_may_each_have_a_short_update_at_the_end_of_an_epoch(limits):
    def run(*factors: float, optimizers: tuple[str, ...] = ("opt0", "opt1")) -> list:
        trace = begin().optimizer()
        for factor in factors:
            for optimizer in optimizers:
                update(trace, factor=factor, optimizer=optimizer)
        return trace.build()

    assert broken(decide("bounded", limits, run(1, 1, 0.5, 1, 1, 0.5, 1))) == []
    lasting = broken(decide("bounded", limits, run(1, 1, 0.5, 0.5, 0.5)))
    assert [step for step, *_ in lasting] == [4, 6]
    critic = begin().optimizer()  # the other one divides as it did
    for factor in (1, 1, 0.5, 0.5, 0.5):
        update(update(critic, factor=factor), optimizer="opt1")
    assert [step for step, *_ in broken(decide("bounded", limits, critic.build()))] == [4, 6]
    again = run(1, 1, 0.5, 1, optimizers=("opt0", "opt0"))
    assert [step for step, *_ in broken(decide("bounded", limits, again))] == [4]


def of_sums(world: int, count: int = 10) -> TraceBuilder:
    """Two ranks whose rows differ in length: each divides by the labels of both."""
    trace = begin().mark("process group", rank=0, world_size=2)
    for number in range(count):
        mine, other = 16 + number % 5, 18
        share = 1 - mine / 32
        update(trace, reduction="sum", ignored=share, factor=world / (mine + other))
    return trace


def test_a_sum_is_compared_with_the_labels_it_is_over():
    reference = learn(of_sums(2).build())
    (scale,) = claims(reference, "bounded", quantity="loss scale", low=0.7, high=1.5)
    assert report_of(reference.invariants, of_sums(2, 4).build()).findings == []
    (finding, *_) = report_of(reference.invariants, of_sums(1).build()).findings
    assert (finding.step, finding.check) == (0, scale.id)


def summed(*rows: int, **options) -> list:
    trace = begin()
    for count in rows:
        update(trace, rows=count, **{"reduction": "sum", **options})
    return trace.build()


def test_how_many_terms_a_sum_has_that_is_not_divided_is_a_setting(golden: Golden):
    golden.each(claims(learn(summed(*[64] * 10)), "bounded", quantity="loss scale", name="sum"))
    for reference in (summed(*[64] * 10), summed(48, 48, 48, 48, 32, 48, 48, 48, 48, 32)):
        learned = claims(
            learn(reference), "bounded", quantity="loss scale", name="sum", low=1.0, high=1.0
        )
        for rows in ((64, 64, 64), (48, 48, 32, 48, 48, 32), (16, 16, 16), (128, 128), (1, 1, 1)):
            assert report_of(learned, summed(*rows)).findings == []
        assert report_of(learned, summed(64, 64, micro=4)).findings == []
        for other, observed in (
            (summed(48, 48, 32, factor=0.5), 0.5),
            (summed(48, 48, 32, factor=2), 2),
            (summed(50, 50, 50, reduction="mean"), 0.02),
            (summed(50, 50, 50, factor=1 / 50), 0.02),
        ):
            (finding,) = report_of(learned, other).findings
            assert finding.step == 0
            assert mentions(golden(finding).observed, observed)


def test_a_sum_that_is_divided_by_how_many_terms_it_has_is_a_mean():
    for rows in (64, 1):
        found = learn(summed(*[rows] * 10, factor=1 / rows))
        mean = claims(found, "bounded", quantity="loss scale", name=None, low=1.0, high=1.0)
        assert bool(mean) == (rows > 1)
        assert not claims(found, "bounded", quantity="loss scale", name="sum")
    assert not claims(
        learn(updates(begin(), 10, rows=1).build()), "bounded", quantity="loss scale", name="sum"
    )


def test_what_a_sum_is_divided_by_must_be_a_count():
    trace = begin()
    for number in range(10):  # another term is added, which grows
        update(trace, reduction="sum", factor=(1 + 0.013 * number) / 32)
    assert not claims(learn(trace.build()), "bounded", quantity="loss scale")


def test_a_small_term_beside_the_loss_is_no_other_number_of_terms():
    reference = learn(updates(begin(), 10).build()).invariants
    for factor, found in ((1.01, 0), (0.9, 0), (2.0, 1), (0.5, 1)):
        trace = begin()
        for _ in range(4):
            update(trace, factor=factor)
        told = [f for f in report_of(reference, trace.build()).findings if f.code == "bounded"]
        assert len(told) == found


def test_a_penalty_beside_the_loss_takes_a_larger_share_while_the_loss_falls(golden: Golden):
    drifting, counted = begin(), begin()
    for number in range(10):
        update(drifting, factor=1 + 0.03 * number)
        update(counted, factor=0.75 if number == 4 else 1.0)  # an epoch ends with fewer batches
    assert not claims(learn(drifting.build()), "bounded", quantity="loss scale")
    (scale,) = claims(learn(counted.build()), "bounded", quantity="loss scale", low=0.6, high=1.5)
    golden(scale)


def test_nothing_is_known_of_several_losses_or_of_scaled_ones():
    assert not claims(
        learn(updates(begin(), 10, losses=2).build()), "bounded", quantity="loss scale"
    )
    trace = begin()
    for _ in range(10):
        trace.call(Families.SCALE, result=scalar(9000.0))
        update(trace)
    assert not claims(learn(trace.build()), "bounded", quantity="loss scale")


def test_logits_reach_below_zero_and_probabilities_do_not(golden: Golden):
    reference = learn(updates(begin(), 10).build())
    logits = {"quantity": "smallest", "api": CROSS_ENTROPY, "name": "input"}
    bounded = golden.each(claims(reference, "bounded", **logits, high=0.0, open=True))
    assert len(bounded) == 1
    assert report_of(bounded, updates(begin(), 3).build()).findings == []
    (finding,) = report_of(bounded, updates(begin(), 3, logits=(0.01, 0.6)).build()).findings
    assert (finding.step, finding.subject.api) == (0, CROSS_ENTROPY)


def test_logits_of_few_classes_may_be_above_zero_as_long_as_they_are_small():
    """Probabilities of ten classes reach one tenth; what a ReLU cuts off is zero."""
    reference = learn(updates(begin(), 10).build()).invariants
    for logits, found in (((0.01, 0.09), 0), ((0.2, 1.3), 0), ((0.01, 0.2), 1), ((0.0, 3.0), 1)):
        run = updates(begin(), 3, logits=logits).build()
        assert len(report_of(reference, run).findings) == found
    for logits, sums, found in (
        ((0.01, 0.5), (0.4, 1.9), 0),
        ((0.01, 0.3), (0.995, 1.004), 1),  # probabilities, in half precision
        ((0.2, 0.7), (2.4, 5.9), 1),  # as a sigmoid gives
    ):
        run = updates(begin(), 3, logits=logits, sums=sums).build()
        assert len(report_of(reference, run).findings) == found


def test_logits_that_are_all_one_number_as_of_a_head_that_begins_at_zero_say_nothing():
    reference = learn(updates(begin(), 10).build()).invariants
    for constant in (0.0, 2.0):
        run = updates(updates(begin(), 2, logits=(constant, constant)), 3).build()
        assert report_of(reference, run).findings == []
    cut_off = updates(updates(begin(), 1, logits=(0.0, 0.0)), 2, logits=(0.0, 0.3)).build()
    (finding,) = report_of(reference, cut_off).findings
    assert (finding.step, finding.subject.api) == (1, CROSS_ENTROPY)


def test_a_sign_that_may_be_an_accident_is_not_learned():
    for logits, api in (((-0.1, 1.0), CROSS_ENTROPY), ((0.1, 1.0), "torch.nn.functional.mse_loss")):
        found = learn(updates(begin(), 10, logits=logits, api=api).build())
        assert not claims(found, "bounded", name="input")


BINARY = "torch.nn.functional.binary_cross_entropy_with_logits"


def test_logits_of_one_class_may_be_of_one_sign_as_its_bias_is():
    def binary(low: float, high: float):
        return updates(begin(), 10, logits=(low, high), api=BINARY).build()

    reference = learn(binary(-1.0, 1.0))
    bounded = claims(reference, "bounded", quantity="smallest", api=BINARY, high=0.0, open=True)
    assert report_of(bounded, binary(0.05, 0.95)).findings
    for scores in ((0.05, 0.1), (0.3, 1.2)):  # a discriminator's, at first and later
        assert not report_of(bounded, binary(*scores)).findings
    assert not claims(learn(binary(-1.0, -0.1)), "bounded", quantity="smallest", api=BINARY)


def test_log_probabilities_and_labels_that_are_left_out(golden: Golden):
    nll = "torch.nn.functional.nll_loss"
    reference = learn(updates(begin(), 10, logits=(-3.0, -0.1), api=nll, ignored=0.5).build())
    wrong = updates(begin(), 2, logits=(-3.0, 2.0), api=nll, ignored=0.5)
    largest = {"quantity": "largest", "api": nll}
    (probabilities,) = claims(reference, "bounded", **largest, name="input", high=0.0)
    found = report_of(reference.invariants, wrong.build()).findings
    assert {f.check for f in found} == {probabilities.id}
    golden.each(found)
    assert claims(reference, "bounded", **largest, name="target", low=0.0)


def clipped(norm: float, steps: int = 10) -> TraceBuilder:
    trace = begin()
    for _ in range(steps):
        trace.begin_step().zero_grad().forward().backward()
        trace.call(Families.CLIP_NORM, args={"max_norm": 1.0}, result=scalar(norm)).optimizer_step()
    return trace


def test_targets_that_are_numbers_may_be_of_either_sign():
    mse, trace = "torch.nn.functional.mse_loss", begin()
    for _ in range(10):
        trace.begin_step().zero_grad()
        args = {"input": tensor(-1.0, 1.0), "target": tensor(-2.0, 0.5)}
        trace.call(mse, args=args, result=scalar(1.0)).backward().optimizer_step()
    assert not claims(learn(trace.build()), "bounded", name="target")


def test_clipping_that_finds_no_gradient(golden: Golden):
    reference = learn(clipped(2.0).build())
    assert report_of(reference.invariants, clipped(1e-6).build()).findings == []
    (finding,) = report_of(reference.invariants, clipped(0.0).build()).findings
    (norm,) = claims(reference, "bounded", quantity="norm before clipping", low=0.0, open=True)
    assert golden(finding).check == norm.id


def generate(trace: TraceBuilder, tokens: int, *, cached: bool = False) -> TraceBuilder:
    trace.step()
    trace.train(False)
    for number in range(tokens):
        length = 7 + number if not (cached and number) else 1
        ids = {"dtype": "int64", "shape": [1, length]}
        fields = {"module": "Net", "root": True, "family": Families.MODULE}
        trace.call("__main__.Net.forward", args={"0": ids}, grad_enabled=False, **fields)
    return trace.train(True)


@pytest.mark.parametrize("cached", [False, True])
def test_a_generation_that_goes_on_too_long(cached, golden: Golden):
    trace = begin()
    for _ in range(4):
        generate(trace, 5, cached=cached)
    reference = learn(trace.build())
    assert golden.each(claims(reference, "bounded", quantity="generated", name="Net", high=5))
    shorter = generate(generate(begin(), 3, cached=cached), 5, cached=cached)
    assert report_of(reference.invariants, shorter.build()).findings == []
    (finding,) = report_of(
        reference.invariants, generate(begin(), 9, cached=cached).build()
    ).findings
    assert (finding.step, finding.subject.module) == (0, "Net")
    assert mentions(finding, 6)


def test_generations_that_end_by_themselves_have_no_limit():
    trace = begin()
    for tokens in (3, 9, 5, 7, 4):
        generate(trace, tokens)
    assert not claims(learn(trace.build()), "bounded", quantity="generated")


def with_gradients(norm: float, steps: int) -> TraceBuilder:
    """Norms are kept of gradients: of all four parameters the same."""
    trace = begin().steps(steps)
    events = trace.build()
    for index, event in enumerate(events):
        if event.kind == "state" and event.role == "gradient" and event.summary is not None:
            summary = event.summary.replace(stats={"norm": norm / math.sqrt(len(MLP))})
            events[index] = event.replace(summary=summary)
    return events


def test_gradients_that_are_far_larger_than_ever_seen(golden: Golden):
    reference = learn(with_gradients(2.0, 24))
    norm = golden.each(claims(reference, "bounded", quantity="gradient norm"))
    assert values_of(norm, "bounded", "high") == [60.0]
    assert report_of(norm, with_gradients(50.0, 3)).findings == []
    assert report_of(norm, with_gradients(70.0, 3)).findings[0].step == 0
    assert not claims(learn(with_gradients(2.0, 11)), "bounded", quantity="gradient norm")
    tried = [
        e.replace(counters={**e.counters, "backward": 8, "zero_grad": 8}) if e.kind == "step" else e
        for e in with_gradients(70.0, 3)
    ]
    assert report_of(norm, tried).findings == []  # a line search, at points that it gave up


def test_it_says_nothing_of_another_program():
    reference = learn(updates(begin(), 10).build())
    bounded = [i for i in reference.invariants if i.hypothesis.relation == "bounded"]
    other = updates(begin(**OTHER_SCRIPT), 5, factor=7.0, logits=(0.1, 0.2))
    assert set(report_of(bounded, other.build()).verdicts.values()) == {Verdict.NOT_TRIGGERED}


@pytest.mark.parametrize("params", [{"quantity": "height", "low": 0.0}, {"quantity": "loss scale"}])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("bounded", {"program": "train.py", **params}, [])


def test_losses_gradients_and_batches_are_finite(golden: Golden):
    def run(steps: int, wrong: str = "") -> list:
        trace = begin()
        for number in range(steps):
            stats = {"min": 0.0, "max": 1.0, "nonfinite": 3 * (wrong == "batch" and number == 1)}
            leaf = {"dtype": "float32", "shape": [32, 10], "stats": stats}
            trace.begin_step().batch(leaves={"x": leaf}).zero_grad().forward()
            value = "nan" if wrong == "loss" and number == 1 else 0.5
            trace.count(backward=1)
            trace.call(Families.BACKWARD, args={"tensors": {**scalar(0.0), "value": value}})
            trace.backward().optimizer_step()
        events = trace.build()
        for index, event in enumerate(events):
            if event.kind == "state" and event.role == "gradient" and event.summary is not None:
                is_wrong = wrong == "gradient" and event.step == 1 and "fc2.bias" in event.name
                summary = event.summary.replace(stats={"nonfinite": 2 * is_wrong})
                events[index] = event.replace(summary=summary)
        return events

    finite = claims(learn(run(10)), "bounded", quantity="non-finite")
    assert sorted(values_of(finite, "bounded", "name")) == ["gradients", "the loss", "x"]
    golden.each(finite)
    assert report_of(finite, run(4)).findings == []
    for wrong, variable in (("batch", "x"), ("loss", None), ("gradient", "Net.fc2.bias")):
        (finding,) = report_of(finite, run(4, wrong)).findings
        assert (finding.step, finding.subject.variable) == (1, variable)


def with_norms(steps: int, *, norms=None, loss: float = 0.5, first: int = 0) -> list:
    """Norms of gradients by the end of the name of a variable, from a step on; 1 of the others."""
    trace = begin()
    for _ in range(steps):
        trace.begin_step().zero_grad().forward().backward()
        trace.call(Families.BACKWARD, args={"tensors": scalar(loss)}).optimizer_step()
    events = trace.build()
    for index, event in enumerate(events):
        if event.kind == "state" and event.role == "gradient" and event.summary is not None:
            wrong = [n for end, n in (norms or {}).items() if event.name.endswith(end)]
            norm = wrong[0] if wrong and event.step >= first else 1.0
            summary = event.summary.replace(stats={"norm": norm, "nonfinite": 0})
            events[index] = event.replace(summary=summary)
    return events


def of(quantity: str, *runs: list) -> list:
    return [i for i in learn(*runs).invariants if i.hypothesis.params.get("quantity") == quantity]


def test_a_gradient_that_is_lost_on_its_way_back():
    share = of("least share of the gradients", with_norms(12))
    assert len(share) == 1
    for healthy in (
        with_norms(12, norms={"fc1.weight": 1e-2}),
        with_norms(12, norms={"fc1.bias": 0.0}),
        with_norms(4, norms={"fc1.weight": 0.0}),
        with_norms(12, norms={"": 1e-9}),
    ):
        assert report_of(share, healthy).findings == []
    for norm in (0.0, 1e-6):
        report = report_of(share, with_norms(12, norms={"fc1.weight": norm}, first=3))
        (finding,) = report.findings
        assert (finding.first_step, finding.subject.variable) == (3, "Net.fc1.weight")
    assert of("least share of the gradients", with_norms(12, norms={"fc2.weight": 0.0})) == []


def test_all_gradients_are_zero_while_the_loss_is_not():
    flat = of("norm above zero", with_norms(12))
    assert report_of(flat, with_norms(12, norms={"": 1e-9})).findings == []
    assert report_of(flat, with_norms(12, norms={"": 0.0}, loss=0.0)).findings == []
    (finding,) = report_of(flat, with_norms(12, norms={"": 0.0}, first=2)).findings
    assert finding.first_step == 2


def activations(share: float, steps: int, stat: str = "dead", units: int = 10) -> list:
    """A function whose units are off, and a module that puts them at its limits."""
    trace = begin()
    for _ in range(steps):
        trace.begin_step().zero_grad()
        result = {**tensor(0.0, 1.0, **{stat: share}), "shape": [32, units]}
        trace.call("torch.nn.functional.relu", result=result)
        fields = {"module": "Net.act", "family": Families.MODULE, "training": True}
        trace.call("torch.nn.modules.activation.Tanh.forward", result=result, **fields)
        trace.forward().backward().optimizer_step()
    return trace.build()


@pytest.mark.parametrize("stat", ["dead", "saturated"])
def test_most_units_are_off_or_at_their_limits(stat):
    shares = of(stat, activations(0.1, 5, stat))
    assert len(shares) == 2
    assert report_of(shares, activations(0.8, 20, stat)).findings == []
    assert report_of(shares, activations(1.0, 3, stat)).findings == []
    found = report_of(shares, activations(1.0, 8, stat)).findings
    assert {(f.first_step, f.subject.module) for f in found} == {(0, "Net"), (0, "Net.act")}
    assert of(stat, activations(0.7, 20, stat)) == []


@pytest.mark.parametrize("stat", ["dead", "saturated"])
def test_shares_of_few_units_are_noise(stat):
    shares = of(stat, activations(0.1, 5, stat))
    assert report_of(shares, activations(1.0, 8, stat, units=9)).findings == []
    assert report_of(shares, activations(1.0, 8, stat)).findings
    assert of(stat, activations(0.1, 5, stat, units=9)) == []


@pytest.mark.parametrize(("shape", "least"), [((3, 5), 1 / 1.5), ((4, 4), 0.5 / 1.5)])
def test_a_weight_of_few_elements_has_no_share_of_the_gradients(shape, least):
    gradients = GradientSizes()
    for name, norm, of_it in (
        ("Net.a", 1.0, (8, 8)),
        ("Net.b", 0.5, shape),
        ("Net.c", 1.0, (8, 8)),
    ):
        summary = TensorSummary("float32", of_it, stats={"norm": norm})
        fields = {"name": name, "role": "gradient", "change": "set", "summary": summary}
        gradients.observe(StateEvent(0, 0, 0, "train", 0, "p1-t0", **fields))
    counters = {"backward": 1, "optimizer_step": 1}
    step = StepEvent(1, 1, 0, "train", 0, "p1-t0", counters=counters, complete=True)
    shares = [one.value for one in gradients.observe(step) if one.what == Numbers.LEAST_SHARE]
    assert shares == [pytest.approx(least)]


def chosen(classes: int, steps: int) -> list:
    trace = begin()
    for _ in range(steps):
        labels = {"dtype": "int64", "shape": [32]}
        args = {"input": tensor(-1.0, 1.0, (32, classes)), "target": labels}
        trace.begin_step().call(CROSS_ENTROPY, args=args).forward().backward().optimizer_step()
    return trace.build()


def test_cross_entropy_over_one_output():
    classes = of("classes", chosen(10, 9))
    assert report_of(classes, chosen(2, 4)).findings == []
    (finding,) = report_of(classes, chosen(1, 4)).findings
    assert (finding.first_step, finding.subject.api) == (0, CROSS_ENTROPY)


def ahead(*shifts: int | None) -> list:
    trace = begin()
    for shift in shifts:
        target = {"dtype": "int64", "shape": [32], "stats": {"min": 0, "max": 9}}
        if shift is not None:
            target["stats"]["shifted"] = shift
        args = {"input": tensor(-1.0, 1.0, (32, 10)), "target": target}
        trace.begin_step().call(CROSS_ENTROPY, args=args).forward().backward().optimizer_step()
    return trace.build()


def test_labels_that_are_not_moved_on_to_the_next_tokens(golden: Golden):
    held = of("ahead", ahead(*[1, None] * 12))
    golden(held[0])
    assert report_of(held, ahead(1, None, None, 1)).findings == []
    (finding,) = report_of(held, ahead(None, 0, 0)).findings
    assert (finding.first_step, finding.subject.api) == (1, CROSS_ENTROPY)
    assert of("ahead", ahead(*[0, 1] * 12)) == []
    assert report_of(of("ahead", ahead(*[0] * 12)), ahead(0, 0)).findings == []


def ignoring(*lows: int, rows: int = 8, highs=(9,), padding: tuple = (None,), **args) -> list:
    """Losses whose least labels are these. highs, padding: of their batches, over again."""
    trace = begin()
    for low, high, share in zip(lows, itertools.cycle(highs), itertools.cycle(padding)):
        trace.begin_step()
        if share is not None:
            trace.batch(tokens={"padding": share})
        target = {"dtype": "int64", "shape": [rows, 6], "stats": {"min": low, "max": high}}
        given = {"input": tensor(-1.0, 1.0, (rows, 10, 6)), "target": target, **args}
        trace.call(CROSS_ENTROPY, args=given).forward().backward().optimizer_step()
    return trace.build()


def test_labels_that_are_no_longer_left_out(golden: Golden):
    held = of("left out", ignoring(*[-100, 0, -100] * 14))
    golden(held[0])
    for healthy in (ignoring(0, 0, 0, 0, -100), ignoring(*[0] * 4), ignoring(*[0] * 9, rows=1)):
        assert report_of(held, healthy).findings == []
    (finding,) = report_of(held, ignoring(*[0] * 12)).findings
    assert (finding.first_step, finding.violations) == (4, 2)
    golden(finding)
    assert mentions(finding, "cross_entropy")
    assert of("left out", ignoring(*[0] * 40)) == []
    assert len(of("left out", ignoring(*[0] * 40, ignore_index=0))) == 1


def test_labels_of_batches_without_padding_need_not_be_left_out():
    padded = of("left out", ignoring(*[-100, 0, -100] * 21, padding=(0.3, 0.0, 0.2)))
    counted = [0, 3] * 10, (9, 7, 8)  # no label is the same all the time
    for share, findings in ((0.0, 0), (0.3, 1)):
        run = ignoring(*counted[0], highs=counted[1], padding=(share,))
        assert len(report_of(padded, run).findings) == findings
    fetched_ahead = ignoring(*[0] * 20, padding=(0.3, 0.0))
    assert report_of(padded, fetched_ahead).findings == []
    not_told = of("left out", ignoring(*[-100] * 40))
    assert report_of(not_told, ignoring(*counted[0], highs=counted[1])).findings == []
    assert len(report_of(not_told, ignoring(*counted[0])).findings) == 1


def test_an_index_that_was_chosen_is_that_of_padding(golden: Golden):
    held = of("left out", ignoring(*[0] * 40, ignore_index=0))
    assert report_of(held, ignoring(*[1] * 20, ignore_index=0)).findings == []
    (forgotten,) = report_of(held, ignoring(*[0] * 20)).findings
    golden(forgotten)
    assert mentions(forgotten, "cross_entropy")


def test_a_prompt_that_is_no_longer_left_out_of_batches_without_padding(golden: Golden):
    held = of("left out", ignoring(*[-100] * 40, padding=(0.0,)))
    golden(held[0])
    assert report_of(held, ignoring(*[0, 3] * 10, highs=(9, 8), padding=(0.3,))).findings == []
    (finding,) = report_of(held, ignoring(*[0, 3] * 10, highs=(9, 8), padding=(0.0,))).findings
    assert finding.first_step == 4


def attending(hidden: float | None, steps: int = 10) -> list:
    trace = begin()
    for _ in range(steps):
        weights = {"dtype": "float32", "shape": [2, 8, 8]}
        if hidden is not None:
            weights["stats"] = {"hidden": hidden}
        trace.begin_step().call("torch.softmax", result=weights)
        trace.forward().backward().optimizer_step()
    return trace.build()


def test_weights_of_attention_that_are_no_longer_masked(golden: Golden):
    held = of("hidden", attending(1.0))
    assert len(held) == 1
    for healthy in (attending(1.0, 3), attending(None)):
        assert report_of(held, healthy).findings == []
    (finding,) = report_of(held, attending(0.0)).findings
    assert (finding.first_step, finding.subject.api) == (0, "torch.softmax")
    golden(finding)
    assert of("hidden", attending(0.6)) == []  # padding


def texts_of(steps: int, *, padding: float = 0.3, left_out: float = 0.3, **tokens) -> list:
    """Batches of tokens with padding, and the mask that attention is given."""
    trace = begin()
    ids = {"dtype": "int64", "shape": [16, 12]}
    for _ in range(steps):
        trace.begin_step().batch(
            leaves={"x.input_ids": ids, "x.labels": ids},
            tokens={"padding": padding, "token_labels": True, **tokens},
        )
        mask = {"dtype": "bool", "shape": [16, 1, 1, 12], "stats": {"zeros": left_out}}
        trace.call("torch.nn.functional.scaled_dot_product_attention", args={"attn_mask": mask})
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.build()


def test_a_mask_whose_polarity_is_exchanged(golden: Golden):
    mask = of("mask", texts_of(10))
    assert report_of(mask, texts_of(8, padding=0.1, left_out=0.1)).findings == []
    assert report_of(mask, texts_of(8, padding=0.5, left_out=0.5)).findings == []
    (finding,) = report_of(mask, texts_of(8, left_out=0.7)).findings
    assert finding.first_step == 0
    golden(finding)
    assert of("mask", texts_of(10, left_out=0.7)) == []


def test_labels_that_lack_the_end_token():
    held = of("end token", texts_of(10))
    assert report_of(held, texts_of(8, padding=0.6)).findings == []
    assert report_of(held, texts_of(2, lost_end=1)).findings == []
    (finding,) = report_of(held, texts_of(8, lost_end=1)).findings
    assert (finding.first_step, finding.subject.variable) == (0, "loader0")
    assert of("end token", texts_of(10, token_labels=None)) == []  # classes, or tags of words


def test_padding_that_a_mask_attends_to(golden: Golden):
    left_out = of("padding", texts_of(10, attended_padding=0))
    assert report_of(left_out, texts_of(8, padding=0.6, attended_padding=0)).findings == []
    assert report_of(left_out, texts_of(8, padding=0.0, attended_padding=0)).findings == []
    assert report_of(left_out, texts_of(8)).findings == []
    (finding,) = report_of(left_out, texts_of(8, padding=0.0, attended_padding=5)).findings
    assert (finding.first_step, finding.subject.variable) == (0, "loader0")
    golden(finding)
    assert of("padding", texts_of(10, padding=0.0, attended_padding=0)) == []
    assert of("padding", texts_of(10, attended_padding=3)) == []


def scaled(steps: int, value: object) -> list:
    trace = begin()
    for _ in range(steps):
        trace.begin_step().zero_grad().forward().call(Families.SCALE, result=scalar(9e3))
        trace.count(backward=1)
        trace.call(Families.BACKWARD, args={"tensors": {**scalar(0.0), "value": value}})
        trace.optimizer_step()
    return trace.build()


def test_a_scale_that_makes_the_loss_infinite():
    finite = claims(
        learn(scaled(10, 9e3)),
        "bounded",
        quantity="non-finite",
        name="the loss that GradScaler has scaled",
    )
    assert report_of(finite, scaled(4, 7e5)).findings == []
    (finding,) = report_of(finite, scaled(4, "inf")).findings
    assert (finding.first_step, finding.subject.api) == (0, Families.SCALE)


SGD = "torch.optim.sgd.SGD"


def moving(
    *moved: float,
    norm: float = 1.0,
    rate: float = 1e-3,
    is_loaded: bool = False,
    cls: str = "torch.optim.adam.Adam",
) -> TraceBuilder:
    """Each update moves every weight by so many learning rates."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer(cls, lr=rate).train()
    if is_loaded:
        trace.add(CheckpointEvent, op="load_state_dict", target="Adam", owner="opt0")
    for by in moved:
        trace.begin_step().zero_grad().forward("Net").backward()
        begin = len(trace.events)
        trace.optimizer_step()
        for event in trace.events[begin:]:
            if event.kind == "state" and event.role == "parameter":
                stats = {"norm": norm, "nonfinite": 0, "moved": by * rate}
                summary = event.summary.replace(stats=stats)
                trace.edit(event, summary=summary)
    return trace


ADAM = (1.0, 1.001, 1.003, 1.005, 1.01, 0.99, 1.02, 1.03)


def test_an_update_that_is_scaled_wrongly_is_told_in_its_step(golden: Golden):
    result = learn(moving(*ADAM).build())
    (moved,) = claims(result, "bounded", quantity="moved", high=1.3)
    golden(moved)
    wrong = moving(1.0, 1.001, 1.43, 1.81)
    (finding,) = report_of(result.invariants, wrong.build()).findings
    assert (finding.code, finding.first_step) == ("bounded", 2)
    golden(finding)
    assert set(finding.variables) == {"Net.fc1.weight"}
    other = moving(1.0, 1.001, 1.43, 1.81, cls=SGD)  # goes by the size of gradients
    for healthy in (moving(*ADAM, *ADAM), moving(*ADAM, rate=0.1), other):
        assert not report_of(result.invariants, healthy.build()).findings


@pytest.mark.parametrize(
    ("moved", "options"),
    [
        ((4.0, 1.1, 2.0, 0.7) * 2, {}),  # SGD: by what gradients are
        ((1.0, 1.0, 1.2, 1.0) * 2, {}),
        ((1.0, 0.9, 0.7, 0.6) * 2, {}),  # by gradients that happen to be as large as one
        (ADAM, {"norm": 1e5}),  # elements so large that rounding takes part of an update away
        (ADAM[:3], {}),
    ],
)
def test_of_other_updates_nothing_is_claimed(moved, options):
    assert not claims(learn(moving(*moved, **options).build()), "bounded", quantity="moved")


def test_an_optimizer_that_goes_on_from_a_file_is_left_alone():
    claim = {"program": "train.py", "quantity": "moved", "high": 1.3}
    claim["name"] = "torch.optim.adam.Adam"
    assert broken(decide("bounded", claim, moving(1.0, 2.0).build()))
    assert decide("bounded", claim, moving(1.0, 2.0, is_loaded=True).build()) == []
