"""Healthy runs: no finding, whatever differs from the reference. Twins of test_bugs.py."""

import itertools

import pytest

from benchmarks.cases import CNN, FINETUNE, GPT, HEALTHY, MLP, TARGET_STEPS
from benchmarks.harness import PROGRAMS
from benchmarks.lab import FULL, VIEWS, alarms, brief

QUICK = {("mlp_digits-sgd", "selective"), ("mlp_digits-no_eval", "full")}

QUICK_CNN = {"no_eval"}

# More programs of many kinds are recorded and checked in tests/collect/test_bit_identical.py.
KINDS = (("finetune_digits", {"UP_FREEZE": 1}),)
LOOPS = (
    "unfreezing",
    "teacher",
    "warm_up",
    "uneven_accumulation",
    "by_hand",
    "gradient_penalty",
    "sharpness_aware",
    "alternating",
    "two_heads",
    "sparse_rows",
    "skipped_batches",
    "reinforce",
    "unused_layer",
    "cross_validation",
    "scaled",
    "converging",
)
QUICK_KINDS = {"finetune_digits"}
QUICK_LOOPS = {"alternating", "converging", "scaled"}


def assert_silent(report):
    assert not alarms(report), brief(alarms(report))


@pytest.mark.parametrize(
    ("case", "view"),
    [
        pytest.param(
            case,
            view,
            id=f"{case.id}-{view}",
            marks=[] if (case.id, view) in QUICK else [pytest.mark.slow],
        )
        # In turn: `python -m benchmarks.detection` tries every one in every view.
        for case, view in zip(HEALTHY, itertools.cycle(VIEWS))
        if case.script == MLP or case.name in QUICK_CNN
    ],
)
def test_variant_of_the_reference_is_left_alone(lab, case, view):
    learned = lab.invariants(case.script)
    report = lab.check(case.script, case.env, view=view, invariants=learned)
    assert_silent(report)
    assert report["summary"]["held"] > 0  # silence must not come from having checked nothing


@pytest.mark.parametrize(
    ("program", "changes"),
    [
        pytest.param(
            name,
            changes,
            id="-".join([name, *changes]),
            marks=[] if name in QUICK_KINDS else [pytest.mark.slow],
        )
        for name, changes in KINDS
    ],
)
def test_rules_leave_a_healthy_program_alone(lab, program, changes):
    report = lab.check(PROGRAMS / f"{program}.py", changes, view=FULL)
    assert_silent(report)
    assert report["summary"]["steps"] > 0
    assert report["summary"]["held"] > 0


@pytest.mark.parametrize(
    "kind",
    [pytest.param(k, marks=[] if k in QUICK_LOOPS else [pytest.mark.slow]) for k in LOOPS],
)
def test_rules_leave_an_unusual_loop_alone(lab, kind):
    report = lab.check(PROGRAMS / "loops.py", {"UP_KIND": kind}, view=FULL)
    assert_silent(report)
    assert report["summary"]["steps"] > 0


@pytest.mark.parametrize(
    ("reference", "target"),
    [
        pytest.param(MLP, FINETUNE, id="mlp-on-finetune"),
        pytest.param(FINETUNE, MLP, id="finetune-on-mlp", marks=pytest.mark.slow),
        pytest.param(MLP, GPT, id="mlp-on-gpt", marks=pytest.mark.slow),
        pytest.param(CNN, FINETUNE, id="cnn-on-finetune", marks=pytest.mark.slow),
    ],
)
def test_invariants_of_another_program_leave_a_healthy_one_alone(lab, reference, target):
    learned = lab.invariants(reference)
    report = lab.check(target, {"UP_STEPS": TARGET_STEPS}, view=FULL, invariants=learned)
    assert_silent(report)


def test_reference_is_left_alone_by_its_own_invariants(lab):
    learned = lab.invariants(MLP)
    env = {"UP_SEED": 7, "UP_STEPS": 60}
    assert_silent(lab.check(MLP, env, view=FULL, invariants=learned))
