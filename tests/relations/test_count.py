"""count: how often something is called in every training step of one program."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.builders import ADAM, LINEAR, MLP, OTHER_SCRIPT, SGD, TraceBuilder
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.relations.count.proposer import DETACH
from traincheck.schema.events import CollectiveEvent, Event
from traincheck.schema.findings import Symptom, Verdict
from traincheck.schema.torch_api import COMPILED, Families

RNG = Families.SET_RNG_STATE
LINEAR_FORWARD = f"{LINEAR}.forward"
FORWARD = f"{LINEAR}.forward"
EXACTLY = {"program": "train.py", "form": "exactly", "per": "step", "skips_first": False}


def begin(**process) -> TraceBuilder:
    return TraceBuilder().process(**process).model("Net", MLP).optimizer().train()


def steps(trace: TraceBuilder, count: int, *, states: int = 2, micro: int = 1, updates: int = 1):
    """Steps of a loop that sets the state of the random generator as a context would."""
    for _ in range(count):
        trace.begin_step().zero_grad()
        for _ in range(micro):
            trace.forward().backward()
        for number in range(states):
            trace.call(RNG, args={"new_state": {}}, where=f"train.py:{number}")
        for _ in range(updates):
            trace.optimizer_step()
    return trace


def loop(count: int, **options) -> TraceBuilder:
    return steps(begin(), count, **options)


def claim(api: str, times: int, **more):
    return {**EXACTLY, "api": api, "times": times, **more}


def test_a_context_that_is_not_entered_is_missed_in_its_step():
    twice = claim(RNG, 2)
    assert broken(decide("count", twice, loop(8).build())) == []
    found = broken(decide("count", twice, steps(loop(3), 2, states=0).build()))
    assert found == [(3, Symptom.MISSING_CALL, RNG), (4, Symptom.MISSING_CALL, RNG)]


def test_a_model_may_be_tried_out_before_the_loop():
    def with_another_forward(trace: TraceBuilder) -> TraceBuilder:
        return trace.begin_step().forward().zero_grad().forward().backward().optimizer_step()

    twice = claim(FORWARD, 2)
    assert broken(decide("count", twice, steps(with_another_forward(begin()), 8).build())) == []
    later = with_another_forward(loop(3))
    found = broken(decide("count", twice, later.build()))
    assert found == [(3, Symptom.EXTRA_CALL, FORWARD)]
    found = broken(decide("count", claim(FORWARD, 3), loop(1).build()))
    assert found == [(0, Symptom.MISSING_CALL, FORWARD)]


def test_an_optimizer_that_steps_twice_is_told_as_called_too_often():
    once = claim(Families.OPTIMIZER_STEP, 1, owner="opt0")
    assert broken(decide("count", once, loop(8).build())) == []
    found = broken(decide("count", once, steps(loop(3), 1, updates=2).build()))
    assert found == [(3, Symptom.EXTRA_CALL, Families.OPTIMIZER_STEP)]


def test_the_last_window_of_an_epoch_may_hold_fewer_backwards_but_two_in_a_row_may_not():
    four = claim(Families.BACKWARD, 4)
    epochs = steps(steps(loop(3, micro=4), 1, micro=2), 3, micro=4)
    assert broken(decide("count", four, epochs.build())) == []
    short = steps(loop(3, micro=4), 3, micro=1)
    assert [step for step, *_ in broken(decide("count", four, short.build()))] == [3, 4]
    more = steps(loop(3, micro=4), 1, micro=5)
    assert broken(decide("count", four, more.build())) == [
        (3, Symptom.EXTRA_CALL, Families.BACKWARD)
    ]


def test_several_optimizers_that_accumulate_over_the_same_short_end_of_an_epoch():
    def run(*micros: int, optimizers: tuple[str, ...] = ("opt0", "opt1")) -> list[Event]:
        trace = begin().optimizer()
        for micro in micros:
            for optimizer in optimizers:
                trace.begin_step().zero_grad(optimizer)
                for _ in range(micro):
                    trace.forward().backward()
                trace.optimizer_step(optimizer)
        return trace.build()

    four = claim(Families.BACKWARD, 4)
    assert broken(decide("count", four, run(4, 4, 2, 4, 4, 2, 4))) == []
    assert [step for step, *_ in broken(decide("count", four, run(4, 4, 2, 2, 2)))] == [4, 6]
    critic = begin().optimizer()  # the other one accumulates as it did
    for short in (4, 4, 2, 2, 2):
        for optimizer, micro in (("opt0", short), ("opt1", 4)):
            critic.begin_step().zero_grad(optimizer)
            for _ in range(micro):
                critic.forward().backward()
            critic.optimizer_step(optimizer)
    assert [step for step, *_ in broken(decide("count", four, critic.build()))] == [4, 6]
    again = run(4, 4, 2, 4, optimizers=("opt0", "opt0"))
    assert [step for step, *_ in broken(decide("count", four, again))] == [4]


def test_what_a_short_window_calls_less_of_it_calls_for_each_backward_that_is_left():
    """With several optimizers it is known of windows how often, and not of backwards."""
    eight = claim(FORWARD, 8)
    epochs = steps(steps(loop(3, micro=4), 1, micro=2), 3, micro=4)
    assert broken(decide("count", eight, epochs.build())) == []
    lasting = steps(loop(3, micro=4), 3, micro=2)
    assert [step for step, *_ in broken(decide("count", eight, lasting.build()))] == [3, 4]
    left_out = loop(3, micro=4).begin_step().zero_grad()
    for number in range(4):
        (left_out.forward() if number else left_out).backward()
    found = broken(decide("count", eight, steps(left_out.optimizer_step(), 2, micro=4).build()))
    assert found == [(3, Symptom.MISSING_CALL, FORWARD)]
    fewer = loop(3, micro=4).begin_step().zero_grad().forward()
    for _ in range(3):  # out of proportion
        fewer.backward()
    assert broken(decide("count", eight, fewer.optimizer_step().build()))[0][0] == 3


def test_what_a_compiled_model_calls_is_not_seen():
    """And a model that is not compiled any more is called all the same."""

    def bare(*, compiled: bool) -> list[Event]:
        trace = begin()
        for _ in range(8):
            trace.begin_step().zero_grad()
            if compiled:
                trace.call(COMPILED, family=Families.MODULE, root=True, module="Net")
            trace.backward().optimizer_step()
        return trace.build()

    layers, wrapper = claim(FORWARD, 2), claim(COMPILED, 1, module="Net")
    assert broken(decide("count", layers, bare(compiled=True))) == []
    assert broken(decide("count", layers, bare(compiled=False)))[0][0] == 0
    assert broken(decide("count", wrapper, loop(8).build())) == []
    assert broken(decide("count", wrapper, bare(compiled=True))) == []


def test_an_expert_that_is_not_asked_for_in_some_steps():
    """One of two that the reference asks in every step; for good it is another matter."""

    def asked(*without: int) -> list[Event]:
        trace = begin()
        for number in range(16):
            trace.begin_step().zero_grad()
            for expert in range(2 - (number in without)):
                trace.call(FORWARD, family=Families.MODULE, module=f"Net.experts.{expert}")
            trace.backward().optimizer_step()
        return trace.build()

    both = claim(FORWARD, 2)
    assert broken(decide("count", both, asked(3, 4, 9))) == []
    assert broken(decide("count", both, asked(*range(5, 16))))[0][0] == 5


def test_accumulation_over_another_number_of_batches_is_a_setting():
    four = claim(Families.BACKWARD, 4)
    for micro in (1, 2, 8):
        assert broken(decide("count", four, loop(6, micro=micro).build())) == []


def test_under_accumulation_calls_are_counted_for_each_backward():
    reference = learn(loop(10, micro=4).build())
    assert claims(
        reference, "count", api=LINEAR_FORWARD, per=Families.BACKWARD, form="exactly", times=2
    )
    found = report_of(reference.invariants, steps(loop(5, micro=4), 1, micro=3).build())
    assert found.findings == []


def test_gradients_that_are_cleared_for_every_micro_batch():
    once = claim(Families.ZERO_GRAD, 1)
    trace = loop(3, micro=4)
    assert broken(decide("count", once, trace.build())) == []
    for _ in range(2):
        for _ in range(4):  # each begins a separate step, as nothing is left to add to
            trace.begin_step().zero_grad().forward().backward()
        trace.optimizer_step()
    found = broken(decide("count", once, trace.build()))
    assert found == [(3, Symptom.EXTRA_CALL, Families.ZERO_GRAD), (7, *found[1][1:])]


def guarded(*skipped: int, count: int = 14, later: bool = False, after: bool = False):
    """Iterations of which these are left after the forward, or after backward.

    later: gradients are cleared after an update.
    """
    trace = begin()
    for number in range(count):
        if not trace.in_step or trace.counters["optimizer_step"] or trace.counters["backward"]:
            trace.begin_step()
        (trace if later else trace.zero_grad()).forward()
        if number in skipped:
            if after:
                trace.backward()
            continue
        trace.backward().optimizer_step()
        if later:
            trace.zero_grad()
    return trace.build()


LAYERS, CLEARED = claim(FORWARD, 2), claim(Families.ZERO_GRAD, 1)


@pytest.mark.parametrize("skipped", [(5,), (4, 5, 6), (4, 6, 9)])
@pytest.mark.parametrize("later", [False, True])
def test_an_iteration_that_is_left_before_its_end(skipped: tuple[int, ...], later: bool):
    """As where a loss is not finite."""
    for asked in (LAYERS, CLEARED):
        assert not broken(decide("count", asked, guarded(*skipped, later=later)))
        if not later:
            assert not broken(decide("count", CLEARED, guarded(*skipped, after=True)))


def test_iterations_that_are_left_all_the_time_are_another_loop():
    every = guarded(*range(0, 40, 2), count=40)
    assert len(broken(decide("count", LAYERS, every))) == 19  # as it may be tried out before
    from_then_on = broken(decide("count", LAYERS, guarded(*range(6, 60, 2), count=60)))
    assert from_then_on[0] == (6, Symptom.EXTRA_CALL, FORWARD)
    thrown_away = guarded(*range(6, 60, 2), count=60, after=True)
    assert broken(decide("count", CLEARED, thrown_away))


def test_in_an_iteration_that_follows_one_that_was_left_a_call_may_be_missing():
    trace = steps(loop(4), 1)
    trace.begin_step().zero_grad().forward().zero_grad().forward().backward().optimizer_step()
    found = broken(decide("count", claim(RNG, 2), trace.build()))
    assert found == [(5, Symptom.MISSING_CALL, RNG)]


def cleared(*each: str, steps: int = 4) -> list[Event]:
    """Steps of a loop with two optimizers that makes these moves in each."""
    trace = begin().optimizer()
    moves = {
        "zero0": trace.zero_grad,
        "zero1": lambda: trace.zero_grad("opt1"),
        "back": lambda: trace.forward().backward(),
        "step0": trace.optimizer_step,
        "step1": lambda: trace.optimizer_step("opt1"),
    }
    for _ in range(steps):
        trace.begin_step()
        for move in each:
            moves[move]()
    return trace.build()


@pytest.mark.parametrize(
    "each",
    [
        ("zero0", "zero1", "back", "step0", "step1"),
        ("zero0", "back", "step0", "zero1", "back", "step1"),
        ("zero0", "back", "zero1", "back", "step0", "step1"),
        ("zero0", "zero0", "back", "step0", "zero0"),
    ],
)
def test_gradients_that_are_cleared_more_often_while_there_are_none_to_apply(each):
    """As with a second optimizer."""
    once = claim(Families.ZERO_GRAD, 1)
    assert broken(decide("count", once, cleared(*each))) == []


def test_gradients_that_are_cleared_before_they_are_applied_or_not_at_all():
    once = claim(Families.ZERO_GRAD, 1)
    for each, symptom in (
        (("zero0", "zero1", "back", "zero0", "zero1", "back", "step0", "step1"), "extra_call"),
        (("zero0", "back", "zero0", "step0"), "extra_call"),
        (("back", "step0", "step1"), "missing_call"),
    ):
        found = broken(decide("count", once, cleared(*each)))
        assert {told.value for _, told, _ in found} == {symptom}
        assert len(found) >= 3
    twice = claim(Families.ZERO_GRAD, 2)  # of two optimizers one is forgotten
    found = broken(decide("count", twice, cleared("zero0", "back", "step0", "step1")))
    assert [step for step, *_ in found] == [1, 2, 3]


def test_what_comes_between_update_and_forward_belongs_to_the_next_step(golden: Golden):
    trace = begin()
    for _ in range(10):  # a schedule that is stepped after each update
        trace.begin_step().zero_grad().forward().backward().optimizer_step().scheduler_step()
    reference = learn(trace.build())
    scheduler = {"api": Families.SCHEDULER_STEP, "owner": "sched0", "times": 1, "late": True}
    assert golden.each(claims(reference, "count", **scheduler))
    verdicts = report_of(reference.invariants, loop(1, states=0).build()).verdicts
    assert Verdict.VIOLATED not in verdicts.values()


def test_a_schedule_that_is_stepped_before_the_update_is_early_from_the_first_step_on():
    after = {"owner": "sched0", "skips_first": True, "late": True}
    once = claim(Families.SCHEDULER_STEP, 1, **after)
    trace, early = begin(), begin()
    for _ in range(4):
        trace.begin_step().zero_grad().forward().backward().optimizer_step().scheduler_step()
        early.begin_step().zero_grad().forward().backward().scheduler_step().optimizer_step()
    assert broken(decide("count", once, trace.build())) == []
    assert broken(decide("count", once, early.build())) == [
        (0, Symptom.WRONG_ORDER, Families.SCHEDULER_STEP)
    ]


def recomputing(count: int, times: int) -> list[Event]:
    """Steps whose backward calls Linear so many times again, for what was not kept."""
    out: list[Event] = []
    for event in loop(count).build():
        if event.kind == "call" and event.family == Families.BACKWARD:
            forward = next(e for e in reversed(out) if e.kind == "call" and e.api == FORWARD)
            again = forward.replace(start_ns=event.start_ns + 1, time_ns=event.time_ns - 1)
            out += [again] * times
        out.append(event)
    return out


def test_what_a_backward_computes_again_does_not_count(golden: Golden):
    result = learn(recomputing(8, 2))
    found = golden.each(claims(result, "count", api=LINEAR_FORWARD))
    assert values_of(found, "count", "form") == ["exactly"]
    assert values_of(found, "count", "times") == [2]
    for times in (0, 1, 2):
        assert not report_of(result.invariants, recomputing(6, times)).findings


def test_where_nobody_sets_the_mode_back_no_call_is_missing():
    """It is the mode that is wrong, which others tell: what was called is only not counted."""
    layers = len([name for name in begin().models["Net"].modules().values() if name == LINEAR])
    whole = claim(FORWARD, layers)
    trace = steps(begin(), 3).evaluate(back_to_train=False)
    assert broken(decide("count", whole, steps(trace, 3).build())) == []
    assert broken(decide("count", claim(FORWARD, layers + 1), steps(trace.train(), 9).build()))
    part = steps(begin(), 3).call(Families.EVAL, module="Net.fc1", family=Families.EVAL)
    assert broken(decide("count", whole, steps(part, 3).build())) == []


def test_evaluation_does_not_count():
    reference = learn(loop(10, states=0).build())
    trace = begin()
    for _ in range(5):
        steps(trace, 1, states=0).train(False)
        trace.forward()  # with gradients on, as careless programs do
        trace.train(True)
        trace.evaluate(batches=3)
    counts = [i for i in reference.invariants if i.hypothesis.relation == "count"]
    assert counts
    assert report_of(counts, trace.build()).findings == []


def test_it_says_nothing_of_another_program():
    reference = learn(loop(10).build())
    other = steps(begin(**OTHER_SCRIPT), 10, states=0, updates=2)
    counts = [i for i in reference.invariants if i.hypothesis.relation == "count"]
    assert set(report_of(counts, other.build()).verdicts.values()) == {Verdict.NOT_TRIGGERED}


def test_steps_that_a_scaler_skips_or_sampling_leaves_out_say_nothing():
    trace = loop(3)
    trace.begin_step().zero_grad().forward().backward()
    trace.counters["scaler_step"] = 1
    trace.call(Families.SCALER_STEP)
    trace.skipped_steps(3)
    steps(trace, 3)
    assert broken(decide("count", claim(RNG, 2), trace.build())) == []


def test_a_program_may_accumulate_some_other_time():
    invariants = learn(steps(begin(), 12).build()).invariants
    report = report_of(invariants, steps(begin(), 8, micro=4).build())
    assert [f for f in report.findings if f.code == "count"] == []


def with_closure(times) -> TraceBuilder:
    """Gradients are computed within the step of the optimizer."""
    trace = begin()
    for number in range(10):
        trace.begin_step()
        start = trace.now_ns
        for _ in range(times(number)):
            trace.zero_grad().forward().backward()
        trace.count(optimizer_step=1)
        family = Families.OPTIMIZER_STEP
        trace.call("torch.optim.lbfgs.LBFGS.step", family=family, owner="opt0", start_ns=start)
    return trace


def test_closures_run_as_often_as_their_optimizer_likes(golden: Golden):
    assert not claims(learn(with_closure(lambda number: 2 + number % 3).build()), "count")
    found = learn(with_closure(lambda number: 1).build())
    least = {"api": Families.BACKWARD, "form": "least", "times": 1}
    assert golden.each(claims(found, "count", **least))


def test_a_search_that_has_ended_is_no_missing_call():
    """LBFGS after Adam: once it finds nothing better it calls its closure once."""

    def phases(lone: int) -> list[Event]:
        trace = steps(begin(), 12).optimizer("torch.optim.lbfgs.LBFGS")
        for number in range(10):
            trace.begin_step()
            start = trace.now_ns
            for _ in range(3 if number < 10 - lone else 1):
                trace.zero_grad("opt1").forward().backward()
            trace.count(optimizer_step=1)
            api, family = "torch.optim.lbfgs.LBFGS.step", Families.OPTIMIZER_STEP
            trace.call(api, family=family, owner="opt1", start_ns=start)
        return trace.build()

    learned = learn(phases(0)).invariants
    assert report_of(learned, phases(3)).findings == []


CELL = "torch.nn.modules.rnn.GRUCell.forward"


def looped(count: int, times: int, *, same: bool = True) -> TraceBuilder:
    """A cell that is called for each element of a sequence, or as many cells, once each."""
    trace = begin()
    for _ in range(count):
        trace.begin_step().zero_grad()
        for index in range(times):
            module = "Net.cell" if same else f"Net.cells.{index}"
            trace.call(CELL, family=Families.MODULE, module=module)
        trace.forward().backward().optimizer_step()
    return trace


def test_the_length_of_a_loop_is_no_habit_of_a_short_run(golden: Golden):
    learned = learn(looped(30, 9).build()).invariants
    assert report_of(learned, looped(12, 8).build()).findings == []
    missing = report_of(learned, looped(12, 0).build()).findings
    assert [finding.code for finding in missing] == ["count"]
    often = {"api": "torch.nn.modules.rnn.GRUCell.forward", "form": "exactly", "times": 9}
    long = learn(looped(320, 9).build())
    assert golden.each(claims(long, "count", **often, module="Net.cell"))
    apart = learn(looped(30, 9, same=False).build())
    assert golden.each(claims(apart, "count", **often, module=None))
    assert report_of(apart.invariants, looped(12, 8, same=False).build()).findings


def test_numbers_that_vary_share_a_divisor_or_are_never_none(golden: Golden):
    trace = begin()
    for number in range(12):
        steps(trace, 1, states=2 * (number % 3) + 2)
    found = learn(trace.build())
    assert golden.each(claims(found, "count", api=RNG, form="multiple", times=2))
    trace = begin()
    for number in range(12):
        steps(trace, 1, states=20 + number % 5)
    assert claims(learn(trace.build()), "count", api=RNG, form="least", times=1)
    trace = begin()
    for number in range(12):
        steps(trace, 1, states=1 + number % 3)  # by chance there might be none
    assert not claims(learn(trace.build()), "count", api=RNG)


def test_what_happened_in_some_steps_only_is_no_rule():
    trace = begin()
    for number in range(12):
        steps(trace, 1, states=number % 2)
    assert not claims(learn(trace.build()), "count", api=RNG)


def reducing(count: int, times: int) -> TraceBuilder:
    """Ranks exchange gradients by themselves before each update, and results of evaluation."""
    trace = begin()
    for number in range(count):
        trace.begin_step().zero_grad().forward().backward()
        for _ in range(times):
            trace.add(CollectiveEvent, op="all_reduce", shape=[4], dtype="float32")
        trace.optimizer_step()
        if number % 3 == 2:
            trace.evaluate().add(CollectiveEvent, op="all_reduce", shape=[], dtype="float32")
    return trace


def test_what_ranks_do_together_happens_so_often_at_least(golden: Golden):
    reference = learn(reducing(10, 4).build())
    assert report_of(reference.invariants, reducing(5, 4).build()).findings == []
    counts = claims(reference, "count", api="torch.distributed.all_reduce", form="least", times=4)
    golden.each(counts)
    (finding,) = report_of(counts, reducing(5, 2).build()).findings
    assert (finding.step, finding.subject.api) == (0, "torch.distributed.all_reduce")


def test_the_one_module_of_its_class_is_named(golden: Golden):
    one = {"fc1.weight": LINEAR}
    trace = TraceBuilder().process().model("Net", one).optimizer().train().steps(10)
    once = {"api": LINEAR_FORWARD, "module": "Net.fc1", "form": "exactly", "times": 1}
    assert golden.each(claims(learn(trace.build()), "count", **once))


def test_of_the_one_module_that_a_claim_names_the_calls_are_counted():
    """Those of another layer of its class are not; a layer may also have got another name."""

    def run(*modules: str) -> list[Event]:
        trace = begin()
        for _ in range(4):
            trace.begin_step().zero_grad()
            for module in modules:
                trace.call(FORWARD, family=Families.MODULE, module=module)
            trace.backward().optimizer_step()
        return trace.build()

    once = claim(FORWARD, 1, module="Net.out")
    for modules in (("Net.out", "Net.score"), ("Net.last",), ("Net.last", "Net.score")):
        assert broken(decide("count", once, run(*modules))) == []
    for modules in (("Net.out", "Net.out"), ("Net.score", "Net.out", "Net.out")):
        found = broken(decide("count", once, run(*modules)))
        assert found == [(step, Symptom.EXTRA_CALL, "Net.out") for step in (1, 2, 3)]
    missing = broken(decide("count", once, run()))
    assert missing == [(step, Symptom.MISSING_CALL, "Net.out") for step in range(4)]
    twice = claim(FORWARD, 2, module="Net.out")  # shared, and now one layer each
    assert broken(decide("count", twice, run("Net.out", "Net.in"))) == []


@pytest.mark.parametrize("params", [claim(RNG, 0), claim(RNG, 1, form="about")])
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("count", params, [])


def detaching(
    *, inside: int = 0, before: int = 0, after: int = 0, scalars: int = 0, start: int = 0
):
    """Steps with so many calls of detach() in a forward, between it and backward, and elsewhere."""
    trace = begin()
    features = {"dtype": "float32", "shape": [8, 4], "device": "cpu", "requires_grad": True}

    def detach(count: int, parent: int | None = None, **changes: Any) -> None:
        for _ in range(count):
            trace.call(DETACH, parent=parent, args={"self": {**features, **changes}})

    for span in range(1000, 1012):
        trace.begin_step()
        detach(start)  # of parameters, for an average of weights
        trace.zero_grad()
        detach(inside, parent=span)
        forward = {"family": Families.MODULE, "module": "Net", "root": True}
        trace.call("__main__.Net.forward", span=span, **forward)
        detach(before)
        trace.backward()
        detach(scalars, shape=[])
        detach(after)
        trace.optimizer_step()
    return trace.end_step().build()


def detach_findings(reference: list[Event], run: list[Event]):
    learned = claims(learn(reference), "count", api="torch.Tensor.detach")
    return report_of(learned, run).findings


def test_a_detach_too_many_is_told_as_what_it_does(golden: Golden):
    (finding,) = detach_findings(detaching(inside=1), detaching(inside=2))
    golden(finding)
    assert mentions(finding, "detach()")


@pytest.mark.parametrize("where", ["inside", "before"])
def test_a_detach_that_is_missing_is_told(where: str):
    run = detaching(after=1, scalars=3)
    assert detach_findings(detaching(after=1, scalars=3, **{where: 1}), run)


def test_quiet_on_a_detach_that_cuts_nothing():
    base = detaching(inside=1, scalars=1)
    assert not detach_findings(base, detaching(inside=1))
    assert not detach_findings(base, detaching(inside=1, scalars=2, after=4, start=9))
    assert not detach_findings(base, detaching(inside=1, before=2))  # for a log, or a rule tells it
    assert not detach_findings(detaching(after=2, start=1), detaching())


def scheduled(name: str | None, times: int, *, made: bool = False, micro: int = 1) -> list[Event]:
    """A loop whose scheduler is stepped so often with each update, of scaled losses."""
    trace = begin()
    api = f"torch.optim.lr_scheduler.{name}"
    if made:
        family = Families.SCHEDULER_CREATED
        trace.call(f"{api}.__init__", family=family, owner="opt0")
    for _ in range(8):
        trace.begin_step().zero_grad()
        for _ in range(micro):
            trace.forward().call("torch.amp.GradScaler.scale", family=Families.SCALE).backward()
        trace.optimizer_step()
        for _ in range(times):
            trace.call(f"{api}.step", family=Families.SCHEDULER_STEP, owner="opt0")
    return trace.end_step().build()


def test_which_scheduler_there_is_and_how_much_is_accumulated_are_settings():
    learned = learn(scheduled("LinearLR", 1)).invariants
    assert claims(learned, "count", api=Families.SCHEDULER_STEP)
    assert claims(learned, "count", api="torch.amp.GradScaler.scale")
    for run in (
        scheduled(None, 0),
        scheduled("ReduceLROnPlateau", 0, made=True),
        scheduled("LinearLR", 1, micro=4),
    ):
        assert not [f for f in report_of(learned, run).findings if f.code == "count"]


def test_the_same_scheduler_is_stepped_as_often():
    invariants = learn(scheduled("LinearLR", 1)).invariants
    learned = claims(invariants, "count", api=Families.SCHEDULER_STEP)
    for run in (scheduled("LinearLR", 2), scheduled("LinearLR", 0, made=True)):
        assert [f.code for f in report_of(learned, run).findings] == ["count"]


def replaced(cls: str = ADAM, names: list[str] | None = None) -> list[Event]:
    """An optimizer is made before step 3, and stepped from then on instead of the first."""
    trace = loop(3, states=0).optimizer(cls, names)
    for _ in range(2):
        trace.begin_step().zero_grad("opt1").forward().backward().optimizer_step("opt1")
    return trace.build()


def test_an_optimizer_that_is_made_anew_steps_in_place_of_the_first(golden: Golden):
    once = claim(Families.OPTIMIZER_STEP, 1, owner="opt0")
    examples = decide("count", once, replaced())
    symptom, api = Symptom.MADE_ANEW, Families.OPTIMIZER_STEP
    assert broken(examples) == [(3, symptom, api), (4, symptom, api)]
    assert mentions(golden(examples[-1]), "opt1", "train.py:40")
    learned = learn(loop(10, states=0).build()).invariants
    counts = [i for i in learned if i.hypothesis.relation == "count"]
    (found,) = report_of(counts, replaced()).findings
    golden(found)


def made_twice(*names: str) -> list[Event]:
    """Two optimizers are made before training, of which these step, step by step."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer().optimizer()
    for name in names:
        trace.begin_step().zero_grad(name).forward().backward().optimizer_step(name)
    return trace.build()


def test_an_optimizer_that_was_replaced_before_it_stepped_is_not_missed():
    once = claim(Families.OPTIMIZER_STEP, 1, owner="opt0")
    assert all(e.holds for e in decide("count", once, made_twice("opt1", "opt1", "opt1")))
    learned = learn(loop(10, states=0).build()).invariants
    counts = [i for i in learned if i.hypothesis.relation == "count"]
    assert not report_of(counts, made_twice(*["opt1"] * 10)).findings
    turns = decide("count", once, made_twice("opt0", "opt1", "opt1"))
    assert [step for step, *_ in broken(turns)] == [1, 2]


def test_another_optimizer_does_not_step_in_place_of_one_unlike_it():
    once = claim(Families.OPTIMIZER_STEP, 1, owner="opt0")
    other = TraceBuilder().process().model("Net", MLP).optimizer(names=["Net.fc1.weight"])
    other.optimizer(names=["Net.fc2.weight"])
    other.begin_step().zero_grad("opt1").forward().backward().optimizer_step("opt1")
    back = TraceBuilder().process().model("Net", MLP).optimizer().optimizer(SGD)
    for name in ("opt0", "opt1", "opt0"):
        back.begin_step().zero_grad(name).forward().backward().optimizer_step(name)
    for events in (back.build(), other.build()):
        assert {symptom for _, symptom, _ in broken(decide("count", once, events))} == {
            Symptom.MISSING_CALL
        }


def in_turn(*turns: str, schedule: str | None = None) -> list[Event]:
    """A model, and as many others as there are optimizers, of which these step, step by step.

    schedule: the optimizer whose steps a scheduler follows.
    """
    trace = TraceBuilder().process()
    for number in range(3):
        trace.model(f"Net{number}", MLP)
        trace.optimizer(names=[f"Net{number}.{name}" for name in MLP])
    for turn in turns:
        trace.begin_step()
        for name in turn.split():
            trace.zero_grad(name)
        trace.forward().backward()
        for name in turn.split():
            trace.optimizer_step(name)
        if schedule in turn.split():
            api = "torch.optim.lr_scheduler.LinearLR.step"
            trace.call(api, family=Families.SCHEDULER_STEP, owner=schedule)
    return trace.build()


BEFORE = ["opt1", "opt1", "opt2", "opt0", "opt0", "opt0"]
AFTER = ["opt0", "opt0", "opt1", "opt1", "opt2"]


@pytest.mark.parametrize("turns", [BEFORE, AFTER])
def test_other_trainings_before_an_optimizer_steps_or_after_its_last_step(turns: list[str]):
    """A search for a learning rate, a sweep, the next fold."""
    step = claim(Families.OPTIMIZER_STEP, 1, owner="opt0")
    after = {"owner": "opt0", "skips_first": True, "late": True, "schedulers": ["LinearLR"]}
    schedule = claim(Families.SCHEDULER_STEP, 1, **after)
    run = in_turn(*turns, schedule="opt0")
    for once in (step, schedule):
        examples = decide("count", once, run)
        assert examples
        assert not broken(examples)
    assert not broken(decide("count", step, replaced(SGD)))  # for a second phase


def test_an_optimizer_that_is_forgotten_while_others_step():
    once = claim(Families.OPTIMIZER_STEP, 1, owner="opt0")
    for turns, missed in (
        (["opt1", "opt1", "opt1"], [0, 1, 2]),  # all the time
        (["opt0", "opt1", "opt1", "opt0"], [1, 2]),  # in between
        (["opt0 opt1", "opt0 opt1", "opt1", "opt1"], [2, 3]),  # by one that steps beside it
        (["opt1", "opt0", "opt0", "opt1"], [3]),
    ):
        found = broken(decide("count", once, in_turn(*turns)))
        assert [step for step, *_ in found] == missed
        assert {symptom for _, symptom, _ in found} == {Symptom.MISSING_CALL}
    schedule = claim(Families.SCHEDULER_STEP, 1, owner="opt0", skips_first=True)
    forgotten = decide("count", schedule, in_turn("opt1", "opt0", "opt0", "opt0"))
    assert [step for step, *_ in broken(forgotten)] == [2, 3]


class Scale(nn.Module):
    """A transform of one sample, as those of torchvision are modules."""

    def forward(self, sample: torch.Tensor) -> torch.Tensor:
        return sample * 2


class Images(Dataset):
    transform = Scale()
    images, labels = torch.rand(48, 6), torch.randint(0, 3, (48,))

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.images[index]), self.labels[index]


def transformed(folder, *, batch: int) -> list[Event]:
    with recording(folder) as run:
        data = Images()
        _ = data[0]  # one sample by hand first: then each window holds one batch
        net = nn.Linear(6, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for images, labels in DataLoader(data, batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
    return run.events


def test_a_transform_is_called_as_often_as_there_are_samples(tmp_path):
    learned = learn(transformed(tmp_path / "reference", batch=4))
    assert not [api for api in values_of(learned, "count", "api") if "Scale" in api]
    assert claims(learned, "count", api=LINEAR_FORWARD)
    assert not report_of(learned.invariants, transformed(tmp_path / "run", batch=8)).findings
