"""What is kept to a program: its file name, and what it trains."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, MLP, MLP_BN, TraceBuilder
from tests.learning import learn, report_of
from traincheck.facts.programs import Sketch, file_of
from traincheck.schema.claims import PROGRAM, Condition, Precondition
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

CONV = {f"block{i}.weight": "torch.nn.modules.conv.Conv2d" for i in range(4)}


def run(model, program="train.py", rank=0, **faults):
    trace = TraceBuilder(rank=rank).process(argv0=f"/home/me/{program}")
    trace.model("Net", model).optimizer()
    return trace.train().steps(12, **faults).build()


FAULT = {"omit": {"optimizer_step"}}
OWN = "In train.py, in every training step, Optimizer.step is called."


def verdict(events) -> Verdict:
    (invariant,) = [i for i in learn(run(MLP)).invariants if i.text == OWN]
    return report_of([invariant], events).verdicts[invariant.id]


def test_it_is_asked_of_the_same_program():
    assert verdict(run(MLP)) is Verdict.HELD
    assert verdict(run(MLP, **FAULT)) is Verdict.VIOLATED


def test_a_part_more_or_less_makes_no_other_program():
    assert verdict(run(MLP_BN, **FAULT)) is Verdict.VIOLATED
    assert verdict(run({**MLP, "head.weight": LINEAR}, **FAULT)) is Verdict.VIOLATED


def test_a_program_that_has_lost_most_of_its_model_is_the_same():
    """Layers in a plain list are none of a model: what is left of it is all of the reference."""
    whole = {f"block{i}.weight": LINEAR for i in range(12)}
    left = dict(list(whole.items())[:4])
    reference = [i for i in learn(run(whole)).invariants if i.text == OWN]
    for model, expected in (
        (left, Verdict.VIOLATED),
        ({**left, **{f"new{i}.weight": LINEAR for i in range(12)}}, Verdict.NOT_TRIGGERED),
    ):
        report = report_of(reference, run(model, **FAULT))
        assert report.verdicts[reference[0].id] is expected


@pytest.mark.parametrize(("model", "program"), [(MLP, "other.py"), (CONV, "train.py")])
def test_another_name_or_another_model_is_another_program(model, program):
    assert verdict(run(model, program, **FAULT)) is Verdict.NOT_TRIGGERED


def test_a_sketch_of_many_parameters_is_short_and_still_tells_them():
    few, many, apart = Sketch(), Sketch(), Sketch()
    big = {f"layers.{i}.weight": LINEAR for i in range(300)}
    for sketch, model in (
        (few, MLP),
        (many, big),
        (apart, {f"x{name}": c for name, c in big.items()}),
    ):
        for event in run(model):
            sketch.observe(event)
    named = many.of("train.py")
    assert file_of(named) == "train.py"
    assert len(named) < 120
    assert many.fits([named], is_whole=True)
    assert not apart.fits([named], is_whole=True)
    assert not few.fits([named], is_whole=True)
    assert few.fits([named, few.of("train.py")], is_whole=True)


def test_of_several_programs_of_one_name_a_process_is_the_one_it_is_most_like():
    """As ranks that hold one stage of a pipeline each."""
    first = {"0.weight": LINEAR, "0.bias": LINEAR}
    last = {**first, "2.weight": LINEAR, "2.bias": LINEAR}
    reference = learn([*run(first), *run(last, rank=1)]).invariants
    assert sum("the parameters of Net are" in one.text for one in reference) == 2
    for stage in (first, last):
        assert report_of(reference, run(stage)).findings == []
        assert report_of(reference, run(stage, **FAULT)).findings
    more = report_of(reference, run({**last, "4.weight": LINEAR})).findings
    assert more[0].code == "membership"


def test_it_is_the_one_it_is_most_like_from_the_first_step():
    """What the last stage is given requires grad; the first one is given data."""

    def stage(model, rank, *, grad, steps=9):
        trace = TraceBuilder(rank=rank).process().model("Net", model).optimizer()
        given = {"dtype": "float32", "shape": [8, 4], "device": "cpu", "requires_grad": grad}
        for _ in range(steps):
            trace.begin_step()
            trace.call(
                "__main__.Stage.forward",
                family=Families.MODULE,
                module="Net.stage",
                training=True,
                args={"0": given},
                result={**given, "requires_grad": True},
            )
            trace.zero_grad().forward().backward().optimizer_step()
        return trace.end_step().build()

    first = {"0.weight": LINEAR, "0.bias": LINEAR}
    last = {**first, "2.weight": LINEAR, "2.bias": LINEAR}
    invariants = learn([*stage(first, 0, grad=False), *stage(last, 1, grad=True)]).invariants
    assert any("argument 0 of Net.stage requires grad" in one.text for one in invariants)
    assert report_of(invariants, stage(first, 0, grad=False)).findings == []
    assert report_of(invariants, stage(last, 0, grad=False)).findings


def test_what_is_left_to_ask_of_a_program():
    of_a = Condition(feature=PROGRAM, op="==", value="a.py#123456")
    of_b = Condition(feature=PROGRAM, op="==", value="b.py")
    frozen = Condition(feature="requires_grad", op="==", value=False)
    some = Precondition(clauses=((of_a, frozen), (of_b,)))
    assert some.programs() == ("a.py#123456", "b.py")
    assert some.within("a.py") == Precondition(clauses=((frozen,),))
    assert some.within("b.py") == Precondition()
    assert some.within("c.py") is None
    assert some.within(None) is None
    everywhere = Precondition(clauses=((frozen,),))
    assert everywhere.within("c.py") is everywhere


@pytest.mark.parametrize(
    ("model", "program", "said"),
    [
        (MLP, "train.py", None),
        (MLP_BN, "train.py", None),
        (MLP, "v2.py", "apply only to train.py, but this run is v2.py: record a good run of it"),
        (CONV, "train.py", "apply only to another model in train.py: record a good run"),
    ],
)
def test_who_has_renamed_a_script_is_told_that_little_is_asked_of_it(model, program, said):
    invariants = learn(run(MLP)).invariants
    notes = [
        one for one in report_of(invariants, run(model, program)).notes if " apply only to " in one
    ]
    assert len(notes) == (said is not None)
    kept = sum(bool(one.precondition.programs()) for one in invariants)
    start = f"{kept} of {len(invariants)} invariants "
    assert all(note.startswith(start) and str(said) in note for note in notes)


def test_of_a_run_that_made_no_step_nobody_knows_what_it_trains():
    begun = TraceBuilder().process(argv0="v2.py").model("Net", MLP).optimizer().build()
    assert not [one for one in report_of(learn(run(MLP)).invariants, begun).notes if "speak" in one]
