"""Folding: one fault, one finding, headed by what causes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from traincheck.check.finding_builder import FindingBuilder
from traincheck.check.grouping.causes import EXPLAINS, RANK
from traincheck.check.wording.symptom_messages import SYMPTOM_MESSAGES
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import CheckInfo, Finding, Subject, Symptom, Topic, Violation
from traincheck.schema.places import where
from traincheck.schema.torch_api import Families

S = Symptom
OPTIMIZER_STEP = "torch.optim.Optimizer.step"


def violation(
    check: str,
    symptom: Symptom,
    variable: str | None = None,
    step: int | None = 0,
    *,
    api: str | None = None,
    module: str | None = None,
    rank: int = 0,
    expected: str = "",
    observed: str = "seen",
    message: str = "a claim",
    where: str | None = None,
    topic: Topic | None = None,
    measured: int | None = None,
) -> Violation:
    place = CallEvent(0, 0, step, "train", rank, "p1-t0", api="x", span=0, where=where)
    return Violation(
        check_id=check,
        step=step,
        rank=rank,
        stage="train",
        subject=Subject(api=api, variable=variable, module=module),
        symptom=symptom,
        message=message,
        expected=expected,
        observed=observed,
        topic=topic,
        measured=measured,
        evidence=(place,) if where else (),
    )


def blind(violation: Violation) -> Violation:
    """The violation with other sentences: what it is about stays."""
    return replace(
        violation, message="x", expected="x", observed="x", title="x", likely_cause="x", fix="x"
    )


def groups(findings: Iterable[Finding]) -> list[tuple[object, ...]]:
    """Which violations became one finding, and which of them leads; no sentences."""
    return [
        (
            *(
                f.id,
                f.check,
                f.severity,
                f.subject,
                f.topic,
                f.rank,
                f.stage,
                f.first_step,
                f.last_step,
            ),
            *(f.violations, f.steps, f.variables, f.explains),
            *((one.check, one.first_step, one.violations, one.subjects) for one in f.also),
        )
        for f in findings
    ]


def fold(*violations: Violation, severity: str = "error") -> list[Finding]:
    """Findings; a check whose id begins with TC is a rule. Other sentences give the same groups."""
    found = _fold(violations, severity)
    assert groups(_fold(map(blind, violations), severity)) == groups(found)
    return found


def _fold(violations: Iterable[Violation], severity: str) -> list[Finding]:
    violations = list(violations)
    infos = {}
    for v in violations:
        is_rule = v.check_id.startswith("TC")
        infos[v.check_id] = CheckInfo(
            check_id=v.check_id,
            kind="rule" if is_rule else "invariant",
            code=v.check_id if is_rule else "contains",
            severity=severity,
            title="what the rule says of {variables}" if is_rule else "the claim",
        )
    book = FindingBuilder(infos)
    for v in violations:
        book.add(v)
    return book.findings()


def shape(findings: Iterable[Finding]) -> list[tuple[str, tuple[str, ...]]]:
    return [(finding.check, finding.explains) for finding in findings]


def test_violations_of_one_check_are_one_finding() -> None:
    found = fold(
        violation("a", S.NOT_UPDATED, "Net.b", 3),
        violation("a", S.NOT_UPDATED, "Net.a", 3),
        violation("a", S.NOT_UPDATED, "Net.a", 4),
    )
    assert len(found) == 1
    finding = found[0]
    assert finding.variables == ("Net.a", "Net.b")
    assert (finding.step, finding.first_step, finding.last_step) == (3, 3, 4)
    assert finding.violations == 3
    assert finding.subject.variable == "Net.a"


@pytest.mark.parametrize(
    ("steps", "seen"), [([0, 1, 2, 3], 4), ([1, 0, 2], 3), ([2, 2, 2], 1), ([None, 5, 5, 9], 3)]
)
def test_steps_are_counted_beside_violations(steps: list[int | None], seen: int) -> None:
    """Many variables and checks break in one step."""
    found = [violation("TC1", S.NOT_UPDATED, name, step) for step in steps for name in ("a", "b")]
    (finding,) = fold(*found)
    assert (finding.violations, finding.steps) == (2 * len(steps), seen)


def test_what_begins_after_a_pause_is_another_finding() -> None:
    found = fold(
        violation("a", S.NOT_UPDATED, "Net.a", 1),
        violation("a", S.NOT_UPDATED, "Net.a", 2),
        violation("a", S.NOT_UPDATED, "Net.b", 9),
    )
    assert [(f.first_step, f.last_step, f.variables) for f in found] == [
        (1, 2, ("Net.a",)),
        (9, 9, ("Net.b",)),
    ]
    assert found[0].id != found[1].id


def test_loaders_that_are_made_for_each_epoch_are_one_finding() -> None:
    names = [f"loader{2 * epoch} batch[0]" for epoch in range(1, 9)]
    many = [violation("TC502", S.REPEATED_DATA, n, 20 * i) for i, n in enumerate(names)]
    (finding,) = fold(*many)
    assert (finding.first_step, finding.last_step, finding.violations) == (0, 140, 8)
    assert finding.variables == tuple(names)  # as numbers: loader10 after loader8
    assert finding.id == fold(many[0])[0].id
    other = violation("TC502", S.REPEATED_DATA, "Net.fc", 150)
    assert len(fold(*many, other)) == 2


def test_the_same_on_several_ranks_is_one_finding() -> None:
    found = fold(
        violation("a", S.NOT_UPDATED, "Net.a", 1, rank=1),
        violation("a", S.NOT_UPDATED, "Net.a", 1, rank=0),
    )
    assert [(f.rank, f.violations) for f in found] == [(0, 2)]


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (S.NOT_IN_OPTIMIZER, S.NOT_UPDATED),
        (S.NOT_IN_OPTIMIZER, S.STATE_UNCHANGED),
        (S.FROZEN, S.NO_GRADIENT),
        (S.FROZEN, S.NOT_UPDATED),
        (S.FROZEN, S.STATE_UNCHANGED),
        (S.NO_GRADIENT, S.NOT_UPDATED),
        (S.NO_GRADIENT, S.STATE_UNCHANGED),
        (S.NOT_UPDATED, S.STATE_UNCHANGED),
    ],
)
def test_a_cause_explains_effects_on_its_own_variables(cause: Symptom, effect: Symptom) -> None:
    same = fold(violation("effect", effect, "Net.a"), violation("cause", cause, "Net.a"))
    assert shape(same) == [("cause", ("effect",))]
    assert same[0].violations == 2
    other = fold(violation("effect", effect, "Net.z"), violation("cause", cause, "Net.a"))
    assert {finding.check for finding in other} == {"cause", "effect"}


def test_an_optimizer_made_anew_is_told_by_the_schedule_that_it_leaves_behind() -> None:
    anew = violation("count", S.MADE_ANEW, step=3)
    assert shape(fold(anew, violation("TC216", S.SCHEDULE, step=3))) == [("TC216", ("count",))]
    later = fold(anew, violation("TC213", S.SCHEDULE, step=9))
    assert [finding.check for finding in later] == ["count", "TC213"]


def test_an_optimizer_that_does_not_step_makes_its_scheduler_come_too_early() -> None:
    missing = violation("TC202", S.MISSING_STEP, "Net.a", 3)
    early = violation("order", S.SCHEDULE, step=9, api=OPTIMIZER_STEP, topic=Topic.ORDER)
    assert shape(fold(missing, early)) == [("TC202", ("order",))]
    other = fold(missing, violation("TC213", S.SCHEDULE, step=9))
    assert [finding.check for finding in other] == ["TC202", "TC213"]


def test_who_holds_a_copy_instead_of_the_model_is_named_with_what_no_optimizer_holds() -> None:
    copy = violation("sharing", S.HOLDS_OTHERS, "opt0[0].0")
    (found,) = fold(copy, violation("member", S.NOT_IN_OPTIMIZER, "Net.a"))
    assert (found.check, found.explains, found.variables) == ("member", ("sharing",), ("Net.a",))
    still = violation("contains", S.NOT_UPDATED, "Net.a")
    assert shape(fold(copy, still)) == [("sharing", ("contains",))]
    later = violation("contains", S.NOT_UPDATED, "Net.a", 9)
    assert [finding.check for finding in fold(copy, later)] == ["sharing", "contains"]


@pytest.mark.parametrize("cause", [S.MISSING_STEP, S.STEP_WITHOUT_GRADIENT, S.GRADIENT_LOST])
@pytest.mark.parametrize("effect", [S.NOT_UPDATED, S.STATE_UNCHANGED])
def test_a_fault_of_the_step_explains_all_variables(cause: Symptom, effect: Symptom) -> None:
    found = fold(violation("effect", effect, "Net.z"), violation("cause", cause, "Net.a"))
    assert shape(found) == [("cause", ("effect",))]
    assert found[0].variables == ("Net.a",)


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (
            violation("cause", S.MISSING_STEP, "Net.a"),
            violation("effect", S.MISSING_CALL, api="torch.optim.Optimizer.step"),
        ),
        (
            violation("cause", S.MISSING_ZERO_GRAD, "Net.a"),
            violation("effect", S.MISSING_CALL, api="torch.optim.Optimizer.zero_grad"),
        ),
        (
            violation("cause", S.EVAL_MODE, module="Net"),
            violation("effect", S.MISSING_CALL, api="torch.nn.Module.train"),
        ),
        (
            violation("cause", S.EVAL_MODE, module="Net"),
            violation("effect", S.STATE_UNCHANGED, "Net.bn.running_mean"),
        ),
        (
            violation("cause", S.EVAL_MODE, module="Net"),
            violation("effect", S.WRONG_VALUE, api="x", topic=Topic.MODE),
        ),
        (
            violation("cause", S.FROZEN, "Net.a"),
            violation("effect", S.WRONG_VALUE, api="x", topic=Topic.REQUIRES_GRAD),
        ),
        (
            violation("cause", S.UNMASKED, api="attention"),
            violation("effect", S.WRONG_VALUE, api="x", topic=Topic.MASK),
        ),
        (
            violation("cause", S.WRONG_ORDER, api="clip"),
            violation("effect", S.WARNED, api="x", topic=Topic.CLIPPING),
        ),
        (
            violation("cause", S.STEPS_SKIPPED, api="scaler"),
            violation("effect", S.WARNED, api="x", topic=Topic.SCHEDULER),
        ),
        (
            violation("cause", S.NO_GRADIENT, "Net.a"),
            violation("effect", S.WARNED, api="x", topic=Topic.REQUIRES_GRAD),
        ),
        (
            violation("cause", S.PRECISION, api="autocast"),
            violation("effect", S.WARNED, api="x", topic=Topic.AUTOCAST),
        ),
    ],
)
def test_a_cause_explains_calls_and_values(cause: Violation, effect: Violation) -> None:
    assert shape(fold(effect, cause)) == [("cause", ("effect",))]


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (
            violation("cause", S.MISSING_STEP, "Net.a"),
            violation("effect", S.MISSING_CALL, api="torch.nn.functional.dropout"),
        ),
        (
            violation("cause", S.EVAL_MODE, module="Net"),
            violation("effect", S.WRONG_VALUE, api="x", topic=Topic.MASK),
        ),
        (
            violation("cause", S.MISSING_STEP, "Net.a"),
            violation("effect", S.SCHEDULE, api="scheduler", topic=Topic.ORDER),
        ),
        (
            violation("cause", S.PRECISION, api="autocast"),
            violation("effect", S.WARNED, api="x", observed="Disabling autocast"),
        ),
        (
            violation("cause", S.WRONG_VALUE, api="x", topic=Topic.MODE),
            violation("effect", S.NOT_UPDATED, "Net.a"),
        ),
    ],
)
def test_what_is_unrelated_stays_apart(cause: Violation, effect: Violation) -> None:
    assert {finding.check for finding in fold(effect, cause)} == {"cause", "effect"}


def test_a_cause_may_be_named_one_step_after_its_effect_but_not_later() -> None:
    effect = violation("effect", S.NOT_UPDATED, "Net.a", 4)
    near = fold(effect, violation("cause", S.FROZEN, "Net.a", 5))
    assert shape(near) == [("cause", ("effect",))]
    assert near[0].first_step == 4
    late = fold(effect, violation("cause", S.FROZEN, "Net.a", 6))
    assert shape(late) == [("effect", ()), ("cause", ())]


def test_a_chain_ends_at_the_root() -> None:
    found = fold(
        violation("state", S.STATE_UNCHANGED, "Net.a/exp_avg"),
        violation("update", S.NOT_UPDATED, "Net.a"),
        violation("gradient", S.NO_GRADIENT, "Net.a"),
        violation("frozen", S.FROZEN, "Net.a"),
    )
    assert shape(found) == [("frozen", ("gradient", "state", "update"))]


def test_only_what_is_explained_is_folded() -> None:
    found = fold(
        violation("update", S.NOT_UPDATED, "Net.a"),
        violation("update", S.NOT_UPDATED, "Net.b"),
        violation("frozen", S.FROZEN, "Net.a"),
    )
    assert shape(found) == [("frozen", ("update",)), ("update", ())]
    assert found[1].variables == ("Net.b",)


def test_state_of_a_parameter_that_no_module_owns_belongs_to_a_stale_optimizer() -> None:
    found = fold(
        violation("state", S.STATE_UNCHANGED, "opt0[0].3/exp_avg"),
        violation("TC101", S.NOT_IN_OPTIMIZER, "Net.a"),
    )
    assert shape(found) == [("TC101", ("state",))]


def test_a_rule_speaks_for_invariants_about_the_same_fault() -> None:
    found = fold(
        violation("a", S.MISSING_ZERO_GRAD, step=0, api="torch.optim.Optimizer.zero_grad"),
        violation("b", S.MISSING_ZERO_GRAD, step=1, api="torch.optim.Optimizer.zero_grad"),
        violation("TC201", S.MISSING_ZERO_GRAD, "Net.a", 1, message="gradient of Net.a is old"),
    )
    assert shape(found) == [("TC201", ("a", "b"))]
    assert found[0].title == "what the rule says of Net.a"
    assert found[0].first_step == 0


def test_invariants_about_the_same_fault_unite_their_variables() -> None:
    found = fold(
        violation("weights", S.NOT_UPDATED, "Net.fc.weight", 2),
        violation("biases", S.NOT_UPDATED, "Net.fc.bias", 2),
    )
    assert len(found) == 1
    assert found[0].variables == ("Net.fc.bias", "Net.fc.weight")


def test_the_same_symptom_much_later_is_another_fault() -> None:
    found = fold(
        violation("a", S.NOT_UPDATED, "Net.a", 2), violation("b", S.NOT_UPDATED, "Net.b", 20)
    )
    assert shape(found) == [("a", ()), ("b", ())]


def test_missing_calls_fold_by_call() -> None:
    found = fold(
        violation("a", S.MISSING_CALL, api="f"),
        violation("b", S.MISSING_CALL, api="f"),
        violation("c", S.MISSING_CALL, api="g"),
    )
    assert sorted(len(finding.explains) for finding in found) == [0, 1]


def test_order_is_by_step_then_by_what_is_explained_then_severity() -> None:
    found = fold(
        violation("late", S.WRONG_VALUE, api="f", step=5),
        violation("lonely", S.WRONG_VALUE, api="g", step=1),
        violation("cause", S.FROZEN, "Net.a", 1),
        violation("effect", S.NOT_UPDATED, "Net.a", 1),
        violation("init", S.WRONG_VALUE, api="h", step=None),
    )
    assert [finding.check for finding in found] == ["init", "cause", "lonely", "late"]
    assert found[0].step is None


def test_order_does_not_depend_on_the_order_of_violations() -> None:
    violations = [
        violation("update", S.NOT_UPDATED, "Net.a", 1),
        violation("update", S.NOT_UPDATED, "Net.b", 1),
        violation("frozen", S.FROZEN, "Net.a", 1),
        violation("x", S.WRONG_VALUE, api="f", step=1),
        violation("y", S.WRONG_VALUE, api="g", step=1),
        violation("TC102", S.NOT_UPDATED, "Net.b", 1),
    ]
    assert fold(*violations) == fold(*reversed(violations))


def test_ids_are_stable_and_differ() -> None:
    one = fold(violation("a", S.WRONG_VALUE, api="f", step=1))[0].id
    again = fold(violation("a", S.WRONG_VALUE, api="f", step=9))[0].id
    other = fold(violation("a", S.WRONG_VALUE, api="g", step=1))[0].id
    assert one == again != other


def test_wording_names_variables_step_and_place() -> None:
    finding = fold(
        violation("a", S.NO_GRADIENT, "Net.a", 7, where="/home/me/train.py:12"),
        violation("a", S.NO_GRADIENT, "Net.b", 7),
    )[0]
    assert finding.title == "No gradient reaches Net.a, Net.b"
    assert "between the loss and Net.a, Net.b" in finding.likely_cause
    assert "{" not in finding.title + finding.likely_cause + finding.fix + finding.message
    wrong = fold(violation("a", S.WRONG_VALUE, api="f", step=7, where="/home/me/train.py:12"))[0]
    assert "step 7 (train.py:12)" in wrong.fix


def test_wording_is_of_one_variable_or_of_several() -> None:
    one, other = (violation("a", S.UNFROZEN, name, 3) for name in ("Net.a", "Net.b"))
    assert fold(one)[0].title == "Net.a is trained although it is to stay as it is"
    assert fold(one, other)[0].title == (
        "Net.a, Net.b are trained although they are to stay as they are"
    )


def test_what_one_step_lacks_is_told_of_it_and_not_of_those_after_it() -> None:
    def missing(check: str, *steps: int) -> Finding:
        api = "torch.optim.Optimizer.step"
        return fold(*(violation(check, S.MISSING_STEP, step=step, api=api) for step in steps))[0]

    once = missing("count-1", 5)
    assert "is never reached, in step 5." in once.likely_cause
    assert "In this run, in step 5: seen" in once.message
    for lasting in (missing("count-1", 5, 6), missing("TC202", 5)):  # a rule may say so once
        assert "is never reached, from step 5 on." in lasting.likely_cause
    state = fold(violation("a", S.NOT_UPDATED, "Net.a", 5))[0]
    assert "In this run, from step 5 on: seen" in state.message


def test_what_a_rule_says_beside_another_names_its_variables() -> None:
    found = fold(violation("a", S.FROZEN, "Net.a"), violation("TC1", S.NOT_UPDATED, "Net.a"))[0]
    assert [also.text for also in found.also] == ["what the rule says of Net.a"]


@pytest.mark.parametrize("symptom", list(Symptom))
def test_every_symptom_has_a_rank_a_wording_and_explains_itself(symptom: Symptom) -> None:
    assert symptom in RANK
    assert symptom in EXPLAINS[symptom]
    finding = fold(violation("a", symptom, "Net.a", 3, api="torch.f", module="Net"))[0]
    assert SYMPTOM_MESSAGES[symptom].title
    assert "{" not in finding.title + finding.likely_cause + finding.fix + finding.message


def test_what_an_effect_explains_its_cause_explains() -> None:
    # the table says nothing of a frozen parameter and a missing step
    found = fold(
        violation("member", S.NOT_IN_OPTIMIZER, "Net.a"),
        violation("empty", S.STEP_WITHOUT_GRADIENT, api="torch.optim.Optimizer.step"),
        violation("missing", S.MISSING_STEP, api="torch.optim.Optimizer.step"),
    )
    assert S.MISSING_STEP not in EXPLAINS[S.NOT_IN_OPTIMIZER]
    assert shape(found) == [("member", ("empty", "missing"))]


def test_what_is_frozen_beside_a_parameter_outside_the_optimizer_is_told_with_it() -> None:
    # forum 84911: all but batch norm is frozen, and the optimizer is over the last layer
    found = fold(
        violation("gradient", S.FROZEN, "Net.fc1.weight"),
        violation("gradient", S.FROZEN, "Net.fc3.weight"),
        violation("update", S.NOT_UPDATED, "Net.fc1.weight"),
        violation("value", S.WRONG_VALUE, api="x", topic=Topic.REQUIRES_GRAD),
        violation("TC101", S.NOT_IN_OPTIMIZER, "Net.bn.weight"),
    )
    assert shape(found) == [("TC101", ("gradient", "update", "value"))]
    assert found[0].variables == ("Net.bn.weight",)
    assert "Net.fc1.weight, Net.fc3.weight do not require grad" in found[0].likely_cause
    later = fold(
        violation("gradient", S.FROZEN, "Net.fc1.weight", 9),
        violation("TC101", S.NOT_IN_OPTIMIZER, "Net.bn.weight", 0),
    )
    assert shape(later) == [("TC101", ()), ("gradient", ())]


def test_causes_rank_before_their_effects() -> None:
    for cause, effects in EXPLAINS.items():
        assert all(RANK[cause] <= RANK[effect] for effect in effects)


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([("model", "a.py:1"), ("other", "a.py:2")], "a.py:2"),
        ([("model", "a.py:1"), ("other", None)], "a.py:1"),
        ([("other", "/x/site-packages/b.py:1"), ("model", "a.py:1")], "a.py:1"),
        ([("other", "a.py:3"), ("other", "a.py:4")], "a.py:3"),
        ([("other", None)], None),
    ],
)
def test_the_place_of_a_finding_is_the_most_telling_line(places, expected) -> None:
    family = {"model": Families.MODULE, "other": Families.BACKWARD}
    events = [
        CallEvent(0, 0, 1, "train", 0, "p1-t0", api="x", span=0, family=family[kind], where=place)
        for kind, place in places
    ]
    assert where(events) == expected
