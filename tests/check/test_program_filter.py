"""What is kept to a program: its file name, and what it trains."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, MLP, MLP_BN, TraceBuilder
from tests.learning import learn, report_of
from traincheck.collect.launch.script import script_sketch
from traincheck.readings.programs import Sketch, alike, file_of
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


BIGGER_HEAD = {**{f"block{i}.weight": LINEAR for i in range(40)}, "head.weight": LINEAR}


@pytest.mark.parametrize(
    ("model", "program"), [(CONV, "train.py"), (CONV, "other.py"), (MLP_BN, "other.py")]
)
def test_another_model_is_another_program(model, program):
    """Under another name the model has to be the same, not only alike."""
    assert verdict(run(model, program, **FAULT)) is Verdict.NOT_TRIGGERED


def test_a_renamed_script_is_the_same_program():
    assert verdict(run(MLP, "renamed.py")) is Verdict.HELD
    assert verdict(run(MLP, "renamed.py", **FAULT)) is Verdict.VIOLATED


def test_claims_that_name_their_program_follow_it_to_another_name():
    """Such as how often a call is made: these carry the file name in their parameters."""
    learned = learn(run(MLP)).invariants
    named = [i for i in learned if "program" in i.hypothesis.params]
    assert named
    for faults in ({}, {"omit": {"zero_grad"}}):
        before = report_of(named, run(MLP, **faults)).verdicts
        assert report_of(named, run(MLP, "renamed.py", **faults)).verdicts == before
        assert Verdict.HELD in before.values()
    assert set(report_of(named, run(CONV, "renamed.py", **FAULT)).verdicts.values()) == {
        Verdict.NOT_TRIGGERED
    }


def test_a_violation_in_the_first_step_counts_once_the_model_is_known():
    reference = learn(run(MLP)).invariants
    broken = run(MLP, "renamed.py", **FAULT)
    same = run(MLP, **FAULT)
    found, expected = (
        [(f.title, f.first_step) for f in report_of(reference, events).findings]
        for events in (broken, same)
    )
    assert found == expected
    assert found


def test_the_report_says_which_program_it_is_taken_for():
    notes = report_of(learn(run(MLP)).invariants, run(MLP, "renamed.py")).notes
    assert any("renamed.py is train.py under another name" in note for note in notes)
    assert not any(
        "train.py" in note for note in report_of(learn(run(MLP)).invariants, run(MLP)).notes
    )


def test_of_several_scripts_that_train_one_model_only_what_all_claim_applies():
    slow = TraceBuilder().process(argv0="slow.py").model("Net", MLP).optimizer()
    slow.train().steps(12, omit={"zero_grad"})
    learned = learn(run(MLP), slow.build()).invariants
    clears = [i for i in learned if "step, zero_grad is called" in i.text]
    steps = [i for i in learned if "step, Optimizer.step is called" in i.text]
    report = report_of([*clears, *steps], run(MLP, "third.py", omit={"zero_grad"}))
    own = [i for i in clears if i.precondition.programs()]
    assert [report.verdicts[i.id] for i in own] == [Verdict.NOT_TRIGGERED]
    shared = [i for i in steps if len({file_of(p) for p in i.precondition.programs()}) > 1]
    assert [report.verdicts[i.id] for i in shared] == [Verdict.HELD]


def test_models_of_few_parameters_identify_no_program():
    layer = {"fc.weight": LINEAR, "fc.bias": LINEAR}
    (own,) = [i for i in learn(run(layer)).invariants if i.text == OWN]
    report = report_of([own], run(layer, "other.py", **FAULT))
    assert report.verdicts[own.id] is Verdict.NOT_TRIGGERED


def test_the_digest_tells_models_that_differ_in_one_parameter_of_many():
    smaller = {name: cls for name, cls in BIGGER_HEAD.items() if name != "head.weight"}
    first, again, second, late = Sketch(), Sketch(), Sketch(), Sketch()
    for sketch, model in (
        (first, BIGGER_HEAD),
        (again, dict(reversed(BIGGER_HEAD.items()))),
        (second, smaller),
        (late, BIGGER_HEAD),
    ):
        for event in run(model):
            sketch.observe(event)
    for event in run({"zzz.weight": LINEAR}):  # a later phase of the run adds a model
        late.observe(event)
    name = first.of("a.py")
    assert first.is_same(name)
    assert again.is_same(name)
    assert not second.is_same(name)
    assert late.of("a.py").rpartition("=")[2] == name.rpartition("=")[2]


def sources(mine: str, theirs: str) -> Verdict:
    """The verdict of a claim about train.py in another file with the same model."""
    broken = run(MLP, "other.py", **FAULT)
    for events, source in ((reference := run(MLP), mine), (broken, theirs)):
        events[0].data["source"] = source
    (own,) = [i for i in learn(reference).invariants if i.text == OWN]
    return report_of([own], broken).verdicts[own.id]


def test_another_script_that_trains_the_same_model_is_another_program():
    """Such as one that fine-tunes it: its loop is a different one."""
    lines = "".join(f"{i:04x}" for i in range(24))
    others = "".join(f"{i:04x}" for i in range(100, 124))
    edited = "".join(f"{i:04x}" for i in (*range(18), *range(100, 106)))
    assert sources(lines, lines) is Verdict.VIOLATED
    assert sources(lines, edited) is Verdict.VIOLATED
    assert sources(lines, others) is Verdict.NOT_TRIGGERED
    assert sources(lines, "") is Verdict.VIOLATED  # not known


def test_runs_of_an_edited_script_are_those_of_one_program():
    first, second = run(MLP), run(MLP)
    first[0].data["source"], second[0].data["source"] = "0001" * 8, "00020003"
    (own,) = [i for i in learn(first, second).invariants if i.text == OWN]
    assert len(own.precondition.programs()) == 1


def test_a_sketch_of_a_script_survives_an_edit(tmp_path):
    script = tmp_path / "train.py"
    text = "".join(f"loss_{i} = train(step={i})\n" for i in range(40))
    sketches = []
    for content in (text, "import torch\n# edited\n" + text.replace("step=7)", "step=8)"), "x\n"):
        script.write_text(content)
        sketches.append(script_sketch(str(script)))
    whole, edited, other = (set(map("".join, zip(*[iter(s)] * 4))) for s in sketches)
    assert len(whole) == 24
    assert len(whole & edited) >= 23
    assert not whole & other
    assert script_sketch(str(tmp_path / "missing.py")) == ""
    assert script_sketch("-c") == ""


def test_sketches_of_old_files_have_no_digest_and_still_identify():
    sketch = Sketch()
    for event in run(MLP):
        sketch.observe(event)
    old = sketch.of("train.py").partition("=")[0]
    assert "=" in sketch.of("train.py")
    assert sketch.is_same(old)
    assert sketch.fits([old], is_whole=True)
    assert alike(old, sketch.of("train.py"))


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
        (MLP, "v2.py", None),  # it was renamed
        (CONV, "v2.py", "apply only to train.py, but this run is v2.py: record a good run of it"),
        (CONV, "train.py", "apply only to another model in train.py: record a good run"),
    ],
)
def test_the_report_says_why_invariants_do_not_apply(model, program, said):
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
