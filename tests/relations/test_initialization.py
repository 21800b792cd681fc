"""initialization: what fills the parameters of a program before its first step."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, OTHER_SCRIPT, TraceBuilder
from tests.golden import Golden
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.schema.findings import Symptom, Verdict

NET = {
    **{f"fc{i}.{leaf}": LINEAR for i in range(4) for leaf in ("weight", "bias")},
    "mix.dt_bias": "__main__.Mixer",
}
HEALTHY = {"weight": "normal_", "bias": "zeros_", "dt_bias": "uniform_"}
FIRST = "kaiming_uniform_ then "
KINDS = [[LINEAR, "bias", FIRST + "zeros_"], [LINEAR, "weight", FIRST + "normal_"]]


def run(fills: dict[str, str] | None = None, *, is_known: bool = True, **process) -> TraceBuilder:
    """A constructor fills every parameter by kaiming_uniform_, then the program does as told."""
    trace = TraceBuilder().process(**process).model("Net", NET)
    for function in ("kaiming_uniform_", None):
        for name, variable in trace.models["Net"].parameters.items():
            mine = HEALTHY | (fills or {})
            said = function or mine.get(name) or mine[name.rpartition(".")[2]]
            result = {"dtype": "float32", "shape": [4]}
            if is_known:
                result["identity"] = variable.identity
            if said != "nothing":
                trace.call(f"torch.nn.init.{said}", args={"tensor": result}, result=result)
    return trace.optimizer().train().steps(2)


def claim(**said):
    return {"program": "train.py", **said}


def test_a_parameter_filled_by_another_function_is_named():
    assert broken(decide("initialization", claim(kinds=KINDS), run().build())) == []
    wrong = run({"Net.fc2.bias": "ones_"})
    assert broken(decide("initialization", claim(kinds=KINDS), wrong.build())) == [
        (0, Symptom.INITIALIZATION, "Net.fc2.bias")
    ]


def test_a_parameter_that_is_filled_again_and_again_is_named():
    again = run()
    variable = again.models["Net"].parameters["Net.fc1.weight"]
    events = again.build()
    fill = next(
        e
        for e in events
        if e.kind == "call"
        and e.api.endswith("normal_")
        and e.result["identity"] == variable.identity
    )
    assert broken(decide("initialization", claim(kinds=KINDS), [fill, *events])) == [
        (0, Symptom.INITIALIZATION, "Net.fc1.weight")
    ]


def test_a_function_that_is_never_called_is_named():
    functions = claim(functions=["kaiming_uniform_", "normal_"])
    assert broken(decide("initialization", functions, run(is_known=False).build())) == []
    wrong = run({"weight": "nothing"}, is_known=False)
    assert broken(decide("initialization", functions, wrong.build())) == [
        (0, Symptom.MISSING_CALL, "torch.nn.init.normal_")
    ]


def test_both_are_learned_as_one_sentence_each(golden: Golden):
    found = golden.each(claims(learn(run().build()), "initialization"))
    assert values_of(found, "initialization", "functions") == [
        None,
        ["kaiming_uniform_", "normal_", "uniform_", "zeros_"],
    ]


def test_a_kind_that_is_filled_in_two_ways_is_left_out():
    found = learn(run({"Net.fc1.weight": "zeros_"}).build())
    (kinds,) = filter(None, values_of(found, "initialization", "kinds"))
    assert "weight" not in {name for _, name, _ in kinds}


def test_parameters_of_which_nothing_is_known_and_other_programs_say_nothing():
    learned = [
        i for i in learn(run().build()).invariants if i.hypothesis.relation == "initialization"
    ]
    kinds = [i for i in learned if "kinds" in i.hypothesis.params]
    wrong = {"weight": "ones_"}
    assert set(report_of(kinds, run(wrong, is_known=False).build()).verdicts.values()) == {
        Verdict.NOT_TRIGGERED
    }
    assert set(report_of(learned, run(wrong, **OTHER_SCRIPT).build()).verdicts.values()) == {
        Verdict.NOT_TRIGGERED
    }
    assert Verdict.VIOLATED in report_of(kinds, run(wrong).build()).verdicts.values()


def test_what_is_filled_after_the_first_step_is_not_judged():
    trace = run()
    variable = trace.models["Net"].parameters["Net.fc0.weight"]
    trace.call("torch.nn.init.ones_", result={"identity": variable.identity})
    assert broken(decide("initialization", claim(kinds=KINDS), trace.steps(2).build())) == []


@pytest.mark.parametrize("said", [{"functions": []}, {"kinds": [["Q", "w", "guess_"]]}, {}])
def test_parameters_that_no_version_wrote_are_refused(said):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("initialization", claim(**said), [])
