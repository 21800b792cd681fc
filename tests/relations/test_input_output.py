"""input_output: how the result of an API relates to its arguments, and what is fixed."""

from __future__ import annotations

import pytest

from tests.builders import LINEAR, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.schema.claims import Invariant
from traincheck.schema.findings import Symptom
from traincheck.schema.torch_api import GRAD, Families

API = f"{LINEAR}.forward"
LOSS = "torch.nn.functional.cross_entropy"


def tensor(*shape: int, dtype: str = "float32", grad: bool = False) -> dict[str, object]:
    return {"dtype": dtype, "shape": list(shape), "device": "cpu", "requires_grad": grad}


def call(trace: TraceBuilder, given, result, api: str = API, **fields) -> TraceBuilder:
    fields = {"family": Families.MODULE, "module": "Net.fc", "training": True, **fields}
    return trace.call(api, args={"0": given}, result=result, **fields)


def loss(trace: TraceBuilder, size: int = 64, **args) -> TraceBuilder:
    args = {
        "input": tensor(size, 10),
        "target": tensor(size, dtype="int64"),
        "reduction": "mean",
        **args,
    }
    return trace.call(LOSS, args=args, result=tensor(grad=True))


def made(count: int, **options) -> TraceBuilder:
    """Calls of Linear with two batch sizes."""
    trace = TraceBuilder().process()
    for number in range(count):
        size = 64 if number % 3 else 28
        call(trace, tensor(size, 10), tensor(size, 5, grad=True), **options)
    return trace.begin_step().step()


def learned(trace: TraceBuilder) -> list[Invariant]:
    return claims(learn(trace.build()), "input_output")


def of_argument_0(trace: TraceBuilder) -> list[list[str]]:
    """What the result of the layer has of its first argument, by each claim about it."""
    return values_of(learned(trace), "input_output", "equal", api=API, left="result", right="0")


REQUIRES_GRAD = {"is": {"requires_grad": True}}


EQUAL = {"api": API, "left": "result", "right": "0", "equal": ["dtype", "shape[0]"]}


def test_dims_and_dtypes_that_agree(golden: Golden):
    examples = decide("input_output", EQUAL, made(9).build())
    assert len(examples) == 9
    assert all(example.holds for example in examples)
    wrong = call(TraceBuilder().process(), tensor(64, 10), tensor(64, 5, dtype="float16"))
    (example,) = decide("input_output", EQUAL, wrong.build())
    assert broken([example]) == [(0, Symptom.WRONG_VALUE, "Net.fc")]
    golden(example)


def test_a_batch_size_is_never_pinned(golden: Golden):
    assert of_argument_0(made(30)) == [["dtype", "shape[0]"]]
    same = TraceBuilder().process()
    for _ in range(30):
        call(same, tensor(64, 10), tensor(64, 5))
    found = golden.each(learned(same.begin_step().step()))
    assert values_of(found, "input_output", "equal") == [["dtype"]]


def test_square_layers_do_not_make_a_shape(golden: Golden):
    trace = TraceBuilder().process()
    for number in range(30):
        call(trace, tensor(8 + number % 3, 32), tensor(8 + number % 3, 32))
    found = golden.each(learned(trace.begin_step().step()))
    assert values_of(found, "input_output", "equal") == [["dtype", "shape[0]"]]


def test_under_autocast_the_dtype_is_that_of_autocast(golden: Golden):
    trace = TraceBuilder().process()
    for _ in range(30):
        given, result = tensor(64, 10), tensor(64, 5, dtype="bfloat16")
        call(trace, given, result, autocast="bfloat16")
    (found,) = golden.each(learned(trace.begin_step().step()))
    params = {"api": API, "is": {"dtype": "bfloat16"}, "autocast": "bfloat16"}
    assert found.hypothesis.params == params
    plain = call(TraceBuilder().process(), tensor(64, 10), tensor(64, 5))
    assert decide("input_output", params, plain.build()) == []  # another state: no example


def test_a_function_that_ignores_autocast():
    params = {"api": API, "is": {"dtype": "bfloat16"}, "autocast": "bfloat16"}
    trace = call(TraceBuilder().process(), tensor(64, 10), tensor(64, 5), autocast="bfloat16")
    assert len(broken(decide("input_output", params, trace.build()))) == 1


def test_flags_of_a_loss_are_those_of_the_program(golden: Golden):
    trace = TraceBuilder().process()
    for _ in range(30):
        loss(trace)
    result = learn(trace.begin_step().step().build())
    (flags,) = [i for i in result.invariants if "args" in i.hypothesis.params]
    params = golden(flags).hypothesis.params
    assert params["args"] == {"reduction": "mean"}
    wrong = loss(TraceBuilder().process(), reduction="sum")
    assert len(broken(decide("input_output", params, wrong.build()))) == 1
    other = loss(TraceBuilder().process(argv0="other.py"), reduction="sum")
    assert decide("input_output", params, other.build()) == []


def test_results_that_require_grad(golden: Golden):
    params = {"api": API, "is": {"requires_grad": True}}
    frozen = call(TraceBuilder().process(), tensor(64, 10), tensor(64, 5))
    (example,) = decide("input_output", params, frozen.build())
    assert not example.holds
    assert mentions(example, "requires_grad")
    assert golden.each(claims(learned(made(30)), "input_output", api=API, **REQUIRES_GRAD))


SOFT = "torch.nn.functional.log_softmax"


def softened(*steps: str) -> list:
    """Losses in each step: of a student, of its teacher, or of a student that is cut off."""
    trace = TraceBuilder().process()
    for kinds in steps:
        trace.begin_step()
        for kind in kinds:
            given, result = tensor(64, 10, grad=kind == "s"), tensor(64, 10, grad=kind == "s")
            given["requires_grad"] |= kind == "c"
            trace.call(SOFT, args={"input": given}, result=result)
    return trace.build()


def test_what_a_function_makes_of_a_teacher_need_not_require_grad(golden: Golden):
    held = [i for i in learn(softened(*["s"] * 30)).invariants if "is" in i.hypothesis.params]
    assert values_of(held, "input_output", "is") == [{"requires_grad": True}]
    for beside in ("st", "ts"):
        assert report_of(held, softened(*[beside] * 5)).findings == []
    params = held[0].hypothesis.params
    detached = broken(decide("input_output", params, softened("s", "tt", "st", "t")))
    assert [step for step, *_ in detached] == [1, 1, 3]
    assert [step for step, *_ in broken(decide("input_output", params, softened("sc")))] == [0]
    (finding,) = report_of(held, softened(*["t"] * 3)).findings
    golden(finding)
    assert mentions(finding, "log_softmax")
    assert (finding.first_step, finding.violations) == (0, 3)


def in_parts(second: object, *, named: bool) -> TraceBuilder:
    """A module that gives several tensors at once."""
    first, whole = tensor(64, 5, grad=True), tensor(64, dtype="int64")
    parts = {"recon": first, "mu": second, "index": whole, "none": None}
    result = {"dict": parts} if named else [*parts.values()]
    trace = TraceBuilder().process()
    for _ in range(30):
        call(trace, tensor(64, 10), result, "__main__.VAE.forward", module="VAE")
    return trace.begin_step().step()


@pytest.mark.parametrize("named", [False, True])
def test_each_of_several_results_requires_grad(named, golden: Golden):
    mu, recon = ("result[mu]", "result[recon]") if named else ("result[1]", "result[0]")
    healthy = in_parts(tensor(64, 2, grad=True), named=named)
    found = golden.each(learned(healthy))
    assert set(values_of(found, "input_output", "of", **REQUIRES_GRAD)) == {mu, recon}
    assert len(found) == 2
    params = {"api": "__main__.VAE.forward", "of": mu, "is": {"requires_grad": True}}
    assert broken(decide("input_output", params, healthy.build())) == []
    cut = in_parts(tensor(64, 2), named=named).build()
    found = broken(decide("input_output", params, cut))
    assert [symptom for _, symptom, _ in found] == [Symptom.DETACHED] * 30
    assert broken(decide("input_output", {**params, "of": recon}, cut)) == []
    # Nothing where it is another kind of thing, or not there
    assert decide("input_output", params, in_parts(None, named=named).build()) == []
    assert decide("input_output", {**params, "of": "result[9]"}, cut) == []


def penalized(count: int, grad: bool, *, optimizer: int | None = None) -> TraceBuilder:
    """Gradients of an output to two inputs, of which the second one is linear in it."""
    trace = TraceBuilder().process()
    for _ in range(count):
        found = [tensor(64, 2, grad=grad), tensor(3)]
        args = {"outputs": tensor(64, 1, grad=True), "create_graph": grad}
        trace.call(GRAD, args=args, result=found, parent=optimizer)
    return trace.begin_step().step()


def heads(*, detached: bool = False, training: bool = True, grad_enabled: bool = True):
    """Two layers of a class, of which the second is given what the first returns."""
    trace = TraceBuilder().process()
    for _ in range(9):
        of_head = {"training": training, "grad_enabled": grad_enabled}
        given = tensor(64, 5, grad=grad_enabled and not detached)
        call(trace, tensor(64, 10), tensor(64, 5, grad=grad_enabled), module="Net.body", **of_head)
        call(trace, given, tensor(64, 5, grad=grad_enabled), module="Net.head", **of_head)
    return trace.begin_step().step()


GIVEN = {
    "api": API,
    "of": "argument 0",
    "is": {"requires_grad": True},
    "modules": ["Net.head"],
}


def test_what_a_module_is_given_by_others_requires_grad(golden: Golden):
    assert golden.each(claims(learned(heads()), "input_output", **GIVEN))
    examples = decide("input_output", GIVEN, heads().build())
    assert [example.holds for example in examples] == [True] * 9
    found = broken(decide("input_output", GIVEN, heads(detached=True).build()))
    assert found == [(0, Symptom.DETACHED, "Net.head")] * 9
    finding = report_of(learn(heads().build()).invariants, heads(detached=True).build()).findings[0]
    golden(finding)
    assert mentions(finding, "Net.head")


def test_in_evaluation_nothing_is_asked_of_what_a_module_is_given():
    for calls in (heads(detached=True, training=False), heads(grad_enabled=False)):
        assert decide("input_output", GIVEN, calls.build()) == []


def test_where_it_varies_nothing_is_said_of_what_a_module_is_given():
    both = heads()
    call(both, tensor(64, 5), tensor(64, 5, grad=True), module="Net.head")
    assert not claims(learned(both.step()), "input_output", of="argument 0")


@pytest.mark.parametrize("optimizer", [None, 7])
def test_a_gradient_that_is_to_be_derived_again(optimizer, golden: Golden):
    found = learned(penalized(30, grad=True, optimizer=optimizer))
    found = golden.each(claims(found, "input_output", **REQUIRES_GRAD))
    assert values_of(found, "input_output", "api") == [GRAD]
    params = {"api": GRAD, "is": {"requires_grad": True}}
    (example,) = decide("input_output", params, penalized(1, grad=False).build())
    assert not example.holds
    assert not claims(learned(penalized(30, grad=False)), "input_output", api=GRAD, **REQUIRES_GRAD)


def test_a_module_by_itself_where_its_class_is_mixed(golden: Golden):
    trace = made(30)
    for _ in range(30):
        call(trace, tensor(8, 10), tensor(8, 5), module="Net.frozen")
    found = golden.each(claims(learned(trace), "input_output", **REQUIRES_GRAD))
    assert values_of(found, "input_output", "module") == ["Net.fc"]


@pytest.mark.parametrize(
    ("api", "is_kept_to_the_program"),
    [
        ("torch.nn.modules.container.Sequential.forward", True),
        ("__main__.Net.forward", True),
        ("models.Net.forward", True),
        ("transformers.models.gpt2.modeling_gpt2.GPT2Block.forward", False),
        (API, False),
    ],
)
def test_what_names_mean_the_same_in_every_program(api, is_kept_to_the_program):
    result = learn(made(30, api=api).build())
    found = [i.hypothesis.params for i in result.invariants if "equal" in i.hypothesis.params]
    assert [params.get("program") for params in found] == [
        "train.py" if is_kept_to_the_program else None
    ]


def test_what_a_module_does_inside_is_not_looked_at():
    trace = TraceBuilder().process()
    for _ in range(30):
        trace.call(LOSS, parent=7, args={"reduction": "mean"}, result=tensor())
    assert learned(trace.begin_step().step()) == []


@pytest.mark.parametrize(
    "params",
    [
        {"api": API},
        {"api": API, "left": "result", "right": "0", "equal": ["content"]},
        {"api": API, "is": {}, "args": {}},
    ],
    ids=str,
)
def test_parameters_that_no_version_wrote_are_refused(params):
    with pytest.raises(ValueError, match="nothing is known"):
        decide("input_output", params, [])
