"""The planted bugs: each found at its first affected step, its cause first, the variables named.

The healthy twins of these runs are in test_healthy.py: a false alarm fails as loudly as a miss.
"""

import pytest

from benchmarks.cases import BUGS, MLP, TRANSFERS
from benchmarks.lab import FULL, SELECTIVE, brief, faults, faults_anywhere

QUICK_BUGS = {"mlp_digits-forum84911", "mlp_digits-no_zero_grad", "mlp_digits-eval_stuck"}
# `python -m benchmarks.detection` tries every bug of every program in every view. Here each bug is
# tried once, in the program that is recorded fastest, and each view has some that differ in what
# shows them: membership, calls, modes, order, what is not reached.
TRIED_BUGS = [
    bug for bug in BUGS if bug.script == MLP or bug.name in {"wrong_params", "eval_stuck"}
]
IN_SELECTIVE = {"forum84911", "frozen_layer", "eval_stuck", "no_zero_grad", "step_before_backward"}
SELECTIVE_BUGS = [bug for bug in BUGS if bug.script == MLP and bug.name in IN_SELECTIVE]
RULES_ONLY_BUGS = [bug for bug in BUGS if bug.by_rules and bug.id in QUICK_BUGS]
QUICK_TRANSFERS = {"mlp_digits-finds-finetune_digits-head_replaced"}


def cases(items, quick):
    marks = {False: [pytest.mark.slow], True: []}
    return [pytest.param(item, id=item.id, marks=marks[item.id in quick]) for item in items]


def assert_found(bug, report):
    wrong = faults(bug, report)
    assert not wrong, (wrong, brief(report["findings"]))


@pytest.mark.parametrize("bug", cases(TRIED_BUGS, QUICK_BUGS))
def test_found_by_invariants_and_rules(lab, bug):
    learned = lab.invariants(bug.script)
    assert_found(bug, lab.check(bug.script, bug.env, view=FULL, invariants=learned))


@pytest.mark.parametrize("bug", cases(TRIED_BUGS, QUICK_BUGS))
def test_found_by_invariants_alone(lab, bug):
    learned = lab.invariants(bug.script)
    report = lab.check(bug.script, bug.env, view=FULL, invariants=learned, rules=False)
    assert_found(bug, report)


@pytest.mark.parametrize("bug", cases([bug for bug in TRIED_BUGS if bug.by_rules], QUICK_BUGS))
def test_found_by_rules_alone(lab, bug):
    assert_found(bug, lab.check(bug.script, bug.env, view=FULL))


@pytest.mark.parametrize("bug", cases(SELECTIVE_BUGS, {"mlp_digits-no_zero_grad"}))
def test_found_in_a_selective_trace(lab, bug):
    learned = lab.invariants(bug.script)
    assert_found(bug, lab.check(bug.script, bug.env, view=SELECTIVE, invariants=learned))


@pytest.mark.parametrize("bug", cases(RULES_ONLY_BUGS, ()))
def test_found_by_rules_in_a_trace_of_what_rules_need(lab, bug):
    assert_found(bug, lab.check(bug.script, bug.env, view=SELECTIVE))


@pytest.mark.parametrize("case", cases(TRANSFERS, QUICK_TRANSFERS))
def test_found_by_invariants_of_another_program(lab, case):
    learned = lab.invariants(case.reference)
    bug = case.bug
    report = lab.check(bug.script, bug.env, view=FULL, invariants=learned, rules=False)
    wrong = faults_anywhere(bug, report)
    assert not wrong, (wrong, brief(report["findings"]))
