"""constant: what a program sets once and keeps in every step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import ADAM, MLP, OTHER_SCRIPT, SGD, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import broken, claims, decide, learn, report_of, values_of
from traincheck.schema.claims import Invariant
from traincheck.schema.findings import Symptom, Verdict
from traincheck.schema.observations.gradients import ExternalWrites
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"
TENSOR = {"dtype": "float32", "shape": [8, 4]}


def begin(**process) -> TraceBuilder:
    trace = TraceBuilder().process(**process).model("Net", MLP)
    return trace.optimizer(ADAM, betas=[0.9, 0.999], eps=1e-8).train()


def attend(trace: TraceBuilder, p: float, *, mask: bool = True, training: bool = True):
    tensors = ("query", "key", "value", *["attn_mask"] * mask)
    args = {**dict.fromkeys(tensors, TENSOR), "dropout_p": p, "is_causal": False}
    return trace.call(ATTENTION, args=args, module="Net", training=training)


def loop(count: int, *, trace: TraceBuilder | None = None, mask: bool = True) -> TraceBuilder:
    trace = trace or begin()
    for _ in range(count):
        trace.begin_step().zero_grad()
        attend(trace, 0.2, mask=mask).forward().backward().optimizer_step()
    return trace


def validate(trace: TraceBuilder, p: float = 0.0) -> TraceBuilder:
    trace.train(False).forward(grad=False)
    return attend(trace, p, training=False).train(True)


def learned(trace: TraceBuilder, of: str, name: str | None = None) -> list[Invariant]:
    """The one invariant of *constant* of this kind, and about this function, loader or model."""
    found = claims(learn(trace.build()), "constant", of=of)
    (one,) = [i for i in found if name in (None, i.hypothesis.params.get("name"))]
    return [one]


def test_a_mask_that_is_forgotten(golden: Golden):
    mask = learned(loop(10), "arguments", ATTENTION)
    assert report_of(mask, loop(4).build()).findings == []
    (finding,) = report_of(mask, loop(5, mask=False).build()).findings
    assert (finding.step, finding.subject.api) == (0, ATTENTION)
    golden(finding)
    assert mentions(finding, "attn_mask")


def test_batches_without_padding_need_no_mask():
    mask = learned(loop(10), "arguments", ATTENTION)
    for trace in (loop(9, trace=loop(2), mask=False), loop(2, trace=loop(3, mask=False))):
        assert report_of(mask, trace.build()).findings == []
    (never,) = learned(loop(10, mask=False), "arguments", ATTENTION)
    assert "tensors" not in never.hypothesis.params["values"]
    assert report_of([never], loop(3).build()).findings == []


def positions(trace: TraceBuilder, count: int, **given) -> TraceBuilder:
    """Attention over so many positions."""
    query = {"dtype": "float32", "shape": [2, 4, count, 8]}
    args = {"query": query, "key": query, "value": query, **given}
    return trace.call(ATTENTION, args=args, module="Net", training=True)


def causal(count: int, *given: dict, length: int = 9) -> list:
    trace = begin()
    for _ in range(count):
        trace.begin_step().zero_grad()
        for more in given:
            positions(trace, length, **more)
        trace.forward().backward().optimizer_step()
    return trace.build()


def test_attention_that_is_no_longer_causal():
    def flags(*given: dict[str, Any]) -> list[Invariant]:
        found = claims(learn(causal(10, *given)), "constant", of="arguments")
        return [i for i in found if "is_causal" in i.hypothesis.params["values"]]

    yes, no = {"is_causal": True}, {"is_causal": False}
    mask = {"attn_mask": TENSOR}
    (held,) = flags(yes)
    for healthy in (causal(4, yes), causal(4, yes, mask), causal(4, yes | mask)):
        assert report_of([held], healthy).findings == []
    assert report_of([held], causal(4, {}, length=1)).findings == []  # with a cache
    for broken_ in (causal(4, no), causal(4, {})):
        (finding,) = report_of([held], broken_).findings
        assert finding.step == 0
        assert mentions(finding, "is_causal=False")
    assert flags(yes, no) == []  # an encoder and a decoder
    assert report_of(flags(no), causal(4, yes)).findings != []


def test_a_mask_that_multi_head_attention_no_longer_gets(golden: Golden):
    heads = "torch.nn.functional.multi_head_attention_forward"
    module = "torch.nn.modules.activation.MultiheadAttention.forward"

    def run(count: int, **given) -> list:
        trace = begin()
        for span in range(900, 900 + count):
            trace.begin_step().zero_grad()
            args = {"query": TENSOR, "key": TENSOR, "dropout_p": 0.1 * count, **given}
            trace.call(heads, args=args, parent=span)
            trace.call(module, span=span, family=Families.MODULE, module="Net.attention")
            trace.forward().backward().optimizer_step()
        return trace.build()

    masks = {"attn_mask": TENSOR, "key_padding_mask": TENSOR}
    (held,) = claims(learn(run(10, **masks)), "constant", values={"tensors": ["attn_mask"]})
    assert report_of([held], run(5, attn_mask=TENSOR)).findings == []  # nothing is padded
    (finding,) = report_of([held], run(5, key_padding_mask=TENSOR)).findings
    assert finding.step == 0
    golden(finding)
    assert mentions(finding, "attn_mask")
    never = learn(run(10)).invariants
    assert not any(i.hypothesis.params.get("name") == heads for i in never)


def test_what_a_loss_module_was_made_with_is_learned_as_if_it_were_called():
    def run(count: int, **options):
        trace = begin()
        for span in range(900, 900 + count):
            trace.begin_step().zero_grad()
            args = {"input": TENSOR, "target": TENSOR, "reduction": "mean", **options}
            trace.call("torch.nn.functional.nll_loss", args=args, parent=span)
            loss = "torch.nn.modules.loss.NLLLoss"
            trace.call(f"{loss}.forward", span=span, family=Families.MODULE, module="NLLLoss")
            trace.backward().optimizer_step()
        return trace

    told = learned(run(10, ignore_index=0), "arguments", "torch.nn.functional.nll_loss")
    assert report_of(told, run(4, ignore_index=0).build()).findings == []
    (finding,) = report_of(told, run(4, ignore_index=-100).build()).findings
    assert mentions(finding, "ignore_index=0", "ignore_index=-100")


@pytest.mark.parametrize("api", ["torch.Tensor.softmax", "torch.log_softmax"])
def test_methods_and_functions_of_tensors_are_learned_as_functionals(api: str):
    def run(count: int, dim: int):
        trace = begin()
        for _ in range(count):
            trace.begin_step().zero_grad().call(api, args={"input": TENSOR, "dim": dim})
            trace.backward().optimizer_step()
        return trace

    told = learned(run(10, 2), "arguments")
    assert report_of(told, run(4, 2).build()).findings == []
    (finding,) = report_of(told, run(4, 1).build()).findings
    assert mentions(finding, "dim=2", "dim=1")


def test_what_is_given_in_evaluation_is_learned_along_with_training(golden: Golden):
    given = learned(validate(loop(10)), "arguments", ATTENTION)
    golden.each(given)
    assert report_of(given, validate(loop(3)).build()).findings == []
    (finding,) = report_of(given, validate(loop(3), 0.2).build()).findings
    assert finding.step == 2
    assert mentions(finding, "dropout_p=0.0", "dropout_p=0.2")


def test_values_that_vary_and_functions_of_libraries_are_left_out():
    trace = begin()
    for number in range(10):
        trace.begin_step().zero_grad()
        attend(trace, 0.1 * number).forward().backward().optimizer_step()
    (attention,) = values_of(learn(trace.build()), "constant", "values", name=ATTENTION)
    assert "dropout_p" not in attention
    assert not claims(learn(trace.build()), "constant", name="torch.nn.functional.linear")


def between(*looks: list[str] | None) -> list:
    """Steps of an optimizer; before each the names of what another one wrote, None for a load."""
    trace = begin()
    for names in looks:
        trace.begin_step()
        if names is None:
            trace.load("Net")
        data = {"owner": "opt0", "names": names or ["Net.fc1.weight"]}
        trace.mark(ExternalWrites.text, **(data if names is None else {**data, "names": names}))
        trace.zero_grad().forward().backward().optimizer_step()
    return trace.build()


def test_writes_between_two_steps_of_an_optimizer(golden: Golden):
    held = claims(learn(between(*[[]] * 8)), "constant", of="between", name="opt0")
    assert len(held) == 1
    for healthy in (between([], [], []), between([], None, []), between(["opt0[0].0"], [])):
        assert report_of(held, healthy).findings == []
    (finding,) = report_of(held, between([], [], ["Net.fc1.weight"], [])).findings
    assert (finding.first_step, finding.subject.variable) == (2, "Net.fc1.weight")
    golden(finding)
    often = learn(between(*[[], ["Net.fc1.weight"]] * 6)).invariants
    assert not claims(often, "constant", of="between")


MODES = {"program": "train.py", "of": "modes", "eval": ["Net.fc1"], "classes": []}


def test_a_module_that_was_left_in_evaluation_mode_and_is_not():
    everything = {**MODES, "eval": []}
    assert broken(decide("constant", everything, loop(3).build())) == []
    assert broken(decide("constant", MODES, loop(2).build())) == [
        (0, Symptom.TRAINING_MODE, "Net.fc1"),
        (1, Symptom.TRAINING_MODE, "Net.fc1"),
    ]


def test_a_model_in_evaluation_says_nothing_of_modes(golden: Golden):
    assert decide("constant", MODES, begin().train(False).steps(3).build()) == []
    assert golden.each(learned(loop(10), "modes"))


def test_hyper_parameters_never_change(golden: Golden):
    kept = learned(loop(10), "kept")
    golden.each(kept)
    assert report_of(kept, loop(5).build()).findings == []
    changed = loop(2, trace=loop(2).change_groups(weight_decay=0.1))
    (finding,) = report_of(kept, changed.build()).findings
    assert finding.severity == "warning"
    golden(finding)
    assert mentions(finding, "weight_decay")
    assert report_of(kept, loop(2, trace=loop(2).change_groups(lr=0.5)).build()).findings == []
    cycled = loop(2).change_groups(betas=[0.9, 0.99], max_momentum=0.95)  # by OneCycleLR
    assert report_of(kept, loop(2, trace=cycled).build()).findings == []


def test_other_hyper_parameters_than_in_the_reference_are_advice(golden: Golden):
    values = learned(loop(10), "hyper")
    golden.each(values)
    other = TraceBuilder().process().model("Net", MLP).optimizer(ADAM, eps=0.0, lr=0.5).steps(3)
    (finding,) = report_of(values, other.build()).findings
    assert finding.severity == "info"
    assert mentions(finding, "eps=1e-08", "eps=0.0")


def test_another_optimizer_has_other_hyper_parameters():
    found = learn(loop(10).build()).invariants
    other = TraceBuilder().process().model("Net", MLP).optimizer(SGD, weight_decay=0.1).steps(3)
    mine = [i for i in found if i.hypothesis.params.get("of") in ("hyper", "kept")]
    assert len(mine) == 2
    assert report_of(mine, other.build()).findings == []


def rows(*sizes: int) -> TraceBuilder:
    trace = begin()
    for size in sizes:
        trace.begin_step().zero_grad().forward(batch_size=size).backward().optimizer_step()
    return trace


def test_the_number_of_rows_is_that_of_the_first_step_whatever_it_is(golden: Golden):
    same = learned(rows(*[64] * 10), "samples")
    golden.each(same)
    for sizes in ((32, 32, 32), (32, 32, 8, 32, 32, 8, 32)):  # the last of each epoch is smaller
        assert report_of(same, rows(*sizes).build()).findings == []
    (finding,) = report_of(same, rows(32, 32, 64).build()).findings
    assert finding.step == 2
    assert mentions(golden(finding).observed, 2)
    (finding,) = report_of(same, rows(32, 32, 8, 8, 8).build()).findings
    assert (finding.step, finding.violations) == (2, 2)


def test_rows_of_what_a_loss_is_given_are_not_those_of_a_batch():
    """They may be of all tokens, and a batch of shorter texts has fewer."""

    def run(*sizes: int) -> list:
        trace, loss = begin(), "torch.nn.modules.loss.CrossEntropyLoss.forward"
        for size in sizes:
            given = {"0": {"dtype": "float32", "shape": [size, 10]}}
            trace.begin_step().zero_grad().forward(batch_size=64)
            trace.call(loss, family=Families.MODULE, root=True, args=given, grad_enabled=True)
            trace.backward().optimizer_step()
        return trace.build()

    same = learn(run(*[640] * 10)).invariants
    assert claims(learn(run(*[640] * 10)), "constant", of="samples")
    assert report_of(same, run(640, 640, 700, 640, 600, 640)).findings == []


def test_rows_of_an_iteration_that_was_left_before_its_end():
    """As where a loss is not finite; not where one backward follows more rows."""
    same = learned(rows(*[64] * 10), "samples")
    trace = rows(32, 32, 32)
    trace.begin_step().zero_grad().forward(batch_size=32).zero_grad().forward(batch_size=32)
    trace.backward().optimizer_step()
    trace.begin_step().zero_grad().forward(batch_size=32).backward().optimizer_step()
    assert report_of(same, trace.build()).findings == []
    trace.begin_step().zero_grad().forward(batch_size=64).backward().optimizer_step()
    assert [f.step for f in report_of(same, trace.build()).findings] == [5]


def several(*sizes: int, optimizers: tuple[str, ...], loader: bool = False) -> TraceBuilder:
    """Each batch is trained on once by each of the optimizers."""
    trace = begin()
    for _ in range(len(set(optimizers)) - 1):
        trace.optimizer()
    for size in sizes:
        for number, optimizer in enumerate(optimizers):
            trace.begin_step()
            if loader and not number:
                trace.batch()
            trace.zero_grad(optimizer).forward(batch_size=size).backward().optimizer_step(optimizer)
    return trace


@pytest.mark.parametrize(
    ("optimizers", "loader"),
    [(("opt0", "opt1", "opt2"), False), (("opt0", "opt1"), True), (("opt0", "opt0"), True)],
)
def test_several_updates_on_one_short_batch(optimizers: tuple[str, ...], loader: bool):
    """A critic and its generator, or a batch that is trained on again and again."""

    def run(*sizes: int) -> list:
        return several(*sizes, optimizers=optimizers, loader=loader).build()

    same = learned(several(*[64] * 10, optimizers=optimizers, loader=loader), "samples")
    for sizes in ((32, 32, 8, 32, 32, 8, 32), (32, 32, 8)):
        assert report_of(same, run(*sizes)).findings == []
    for sizes in ((32, 32, 8, 8, 8), (32, 32, 8, 8, 32, 32, 32)):
        (finding,) = report_of(same, run(*sizes)).findings
        assert finding.step == 2 * len(optimizers)


def test_one_of_several_optimizers_that_trains_on_fewer_rows_for_good():
    same = learned(rows(*[64] * 10), "samples")
    trace = rows(32, 32).optimizer()
    for size in (32, 8, 8, 8):
        for optimizer, count in (("opt0", 32), ("opt1", size)):
            trace.begin_step().zero_grad(optimizer).forward(batch_size=count)
            trace.backward().optimizer_step(optimizer)
    (finding,) = report_of(same, trace.build()).findings
    assert (finding.step, finding.violations) == (5, 2)


def test_the_same_optimizer_steps_again_for_another_batch_if_no_loader_tells_of_it():
    """Nor does one that gave all batches before the first update, or draws many at once."""
    same = learned(rows(*[64] * 10), "samples")
    for drawn in (0, 1, 6):
        trace = begin()
        for number, size in enumerate((32, 32, 32, 8, 8, 8)):
            trace.begin_step()
            for _ in range(drawn if number in (0, 2 * (drawn > 1)) else 0):
                trace.batch()
            trace.zero_grad().forward(batch_size=size).backward().optimizer_step()
        (finding,) = report_of(same, trace.build()).findings
        assert finding.step == 3


def test_what_a_layer_makes_for_the_next_one_after_its_step_is_of_its_own_iteration():
    """Each layer has a separate loss: after its step it is called once more."""

    def loop_of(*sizes: int) -> TraceBuilder:
        trace = begin()
        for before, size in zip((None, *sizes), sizes):
            trace.begin_step()
            if before is not None:
                trace.forward(batch_size=before)
            trace.batch().zero_grad().forward(batch_size=size).backward().optimizer_step()
        return trace

    same = learned(loop_of(*[64] * 10), "samples")
    assert report_of(same, loop_of(48, 48, 44, 48, 48, 44, 48).build()).findings == []
    (finding,) = report_of(same, loop_of(48, 48, 48, 96).build()).findings
    assert finding.step == 3
    assert mentions(finding.observed, 2)


def test_it_says_nothing_of_another_program():
    found = [i for i in learn(validate(loop(10)).build()).invariants]
    constant = [i for i in found if i.hypothesis.relation == "constant"]
    other = loop(4, trace=begin(**OTHER_SCRIPT), mask=False)
    assert set(report_of(constant, other.build()).verdicts.values()) == {Verdict.NOT_TRIGGERED}


def calling(api: str, count: int, **given) -> TraceBuilder:
    """Steps that call a function with these arguments."""
    trace = begin()
    for _ in range(count):
        trace.begin_step().zero_grad()
        trace.call(api, args=given, module="Net", training=True).backward().optimizer_step()
    return trace


DROPOUT = "torch.nn.functional.dropout"
NORMALIZE = "torch.nn.functional.normalize"


@pytest.mark.parametrize(
    ("api", "name", "value", "other", "severity"),
    [
        (Families.CLIP_NORM, "max_norm", 1.0, 0.5, "info"),
        (Families.CLIP_NORM, "max_norm", 1.0, 1000.0, "warning"),  # it clips nothing any more
        (Families.CLIP_NORM, "max_norm", 1.0, "inf", "warning"),
        (Families.CLIP_NORM, "norm_type", 2.0, 1.0, "warning"),
        (DROPOUT, "p", 0.5, 0.2, "info"),
        (DROPOUT, "p", 0.5, 0.0, "warning"),
        (DROPOUT, "p", 0.0, 0.5, "warning"),
        (DROPOUT, "training", True, False, "warning"),
        (NORMALIZE, "p", 2.0, 1.0, "warning"),
        (NORMALIZE, "eps", 1e-12, 1e-6, "info"),
        (ATTENTION, "dropout_p", 0.1, 0.2, "info"),
        ("torch.nn.functional.cross_entropy", "label_smoothing", 0.2, 0.1, "warning"),
    ],
)
def test_numbers_that_users_tune_are_told_as_advice(api, name, value, other, severity):
    tuned = learned(calling(api, 10, **{name: value}), "arguments")
    assert report_of(tuned, calling(api, 3, **{name: value}).build()).findings == []
    (finding,) = report_of(tuned, calling(api, 3, **{name: other}).build()).findings
    assert (finding.first_step, finding.severity) == (0, severity)


def test_a_number_that_is_tuned_beside_another_value_that_differs_is_a_warning():
    both = learned(calling(Families.CLIP_NORM, 10, max_norm=1.0, norm_type=2.0), "arguments")
    run = calling(Families.CLIP_NORM, 3, max_norm=0.5, norm_type=1.0).build()
    assert [finding.severity for finding in report_of(both, run).findings] == ["warning"]


def test_parameters_that_no_version_wrote_are_refused():
    with pytest.raises(ValueError, match="nothing is known"):
        decide("constant", {"of": "colours"}, [])


def given(labels: str, count: int) -> TraceBuilder:
    """A language model that is called with ids and labels, and shifts the labels itself."""
    trace = begin()
    for _ in range(count):
        trace.step()
        ids = {"dtype": "int64", "shape": [8, 32], "fingerprint": trace.new_fingerprint()}
        other = {**ids, "fingerprint": ids["fingerprint"] if labels == "ids" else labels}
        fields = {"module": "Lm", "root": True, "family": Families.MODULE}
        trace.call("__main__.Lm.forward", args={"0": ids, "labels": other}, **fields)
    return trace


def test_labels_that_are_no_longer_the_inputs(golden: Golden):
    same = learned(given("ids", 10), "equal")
    golden.each(same)
    assert report_of(same, given("ids", 3).build()).findings == []
    (finding,) = report_of(same, given("shifted", 3).build()).findings
    assert (finding.step, finding.subject.module) == (0, "Lm")
    assert not claims(learn(given("shifted", 10).build()), "constant", of="equal")


def loaded(*shapes: tuple[int, ...], loader: str = "loader0") -> TraceBuilder:
    trace = begin()
    for shape in shapes:
        trace.begin_step().batch(loader, leaves={"x": tensor_json(TensorSummary("float32", shape))})
        trace.zero_grad().forward().backward().optimizer_step()
    return trace


def parted(
    count: int,
    parts: str,
    *,
    others: str = "",
    evaluate: str = "",
    after: TraceBuilder | None = None,
) -> TraceBuilder:
    """Batches of loader0 made of these parts, beside those of a second one, and in evaluation."""

    def leaves(names: str) -> dict[str, object]:
        return {name: tensor_json(TensorSummary("float32", (64, 3))) for name in names}

    trace = after or begin()
    for _ in range(count):
        trace.begin_step().batch("loader0", leaves=leaves(parts))
        if others:
            trace.batch("loader1", leaves=leaves(others))
        trace.zero_grad().forward().backward().optimizer_step()
        if evaluate:
            trace.set_stage("eval")
            trace.batch("loader0", leaves=leaves(evaluate))
            trace.set_stage("train")
    return trace


def test_a_part_of_batches_that_is_missing(golden: Golden):
    claim = learned(parted(10, "wxy"), "batch")
    (finding,) = report_of(claim, parted(6, "xy").build()).findings
    assert (finding.first_step, finding.violations) == (0, 4)
    golden(finding)
    assert mentions(finding, "loader0")
    for healthy in (
        parted(6, "wxyz"),
        parted(3, "xy"),  # too few to tell
        parted(6, "xy", others="wxy"),  # loaders changed places
        parted(6, "ab"),  # another loader
        parted(6, "xy", evaluate="xy"),  # one to evaluate with
    ):
        assert report_of(claim, healthy.build()).findings == []
    (some,) = learned(parted(5, "xy", after=parted(5, "wxy")), "batch")
    assert "w" not in some.hypothesis.params["values"]


def test_batches_with_a_dim_more(golden: Golden):
    (parts,) = learned(loaded(*[(64, 3)] * 10), "batch")
    golden(parts)
    assert parts.hypothesis.params["values"] == {"x": "float32 of 2 dims"}
    assert report_of([parts], loaded(*[(8, 5)] * 3).build()).findings == []
    (finding,) = report_of([parts], loaded((64, 3), (1, 64, 3)).build()).findings
    assert finding.step == 1
    golden(finding)
    assert mentions(finding, 3)


def test_a_model_that_is_evaluated_in_training_mode(golden: Golden):
    off = learned(begin().steps(12, eval_every=1), "evaluated")
    golden.each(off)
    assert report_of(off, loop(3).evaluate(batches=2).build()).findings == []
    (finding,) = report_of(off, loop(3).forward(grad=False).build()).findings
    assert finding.step == 2
    golden(finding)
    probed = begin().forward(grad=False)  # for the shape of its results, before anything is trained
    assert report_of(off, probed.steps(3).build()).findings == []
    trace = begin()
    for _ in range(12):  # a teacher, or a policy that plays
        trace.step().forward(grad=False)
    assert not claims(learn(trace.build()), "constant", of="evaluated")


def test_targets_with_a_dim_less_than_predictions(golden: Golden):
    mse = "torch.nn.functional.mse_loss"

    def losses(target: list[int], count: int) -> TraceBuilder:
        trace = begin()
        for _ in range(count):
            args = {"input": {**TENSOR, "shape": [8, 1]}, "target": {**TENSOR, "shape": target}}
            trace.step().call(mse, args=args)
        return trace

    given = learned(losses([8, 1], 10), "arguments", "torch.nn.functional.mse_loss")
    assert report_of(given, losses([4, 1], 3).build()).findings == []
    (finding,) = report_of(given, losses([8], 3).build()).findings
    assert finding.step == 0
    golden(finding)
    assert mentions(finding, 2, 1)


def batches(
    *,
    given: str = "batch[0]",
    looks: bool = True,
    numel: int = 64,
    after: str = "loader1",
    ahead: int = 0,
    has_loss: bool = True,
    stale: bool = False,
):
    """Steps over a loader with two inputs, of which the model is given one.

    after: a loader of which a batch is fetched behind the update, for an evaluation. ahead: by how
    many steps batches are fetched before they are used. stale: the first one is used again.
    """
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for step in range(24):
        trace.begin_step()
        leaf = {"dtype": "float32", "shape": [numel, 1], "stats": {"min": 0, "max": 1}}
        for index in range(0 if step == 0 else step + ahead, step + ahead + 1):
            parts = {name: f"{name} {index}" for name in ("batch[0]", "batch[1]")}
            leaves = {path: {**leaf, "fingerprint": text} for path, text in parts.items()}
            trace.batch(leaves=leaves, index=index)
        now = 0 if stale else step
        known = {"fingerprint": f"{given} {now}"} if looks and step % 3 == 0 else {}
        trace.call(
            "__main__.Net.forward",
            family=Families.MODULE,
            module="Net",
            root=True,
            args={"0": {**leaf, **known}},
            grad_enabled=True,
        )
        if has_loss:
            trace.call(
                "torch.nn.functional.mse_loss",
                args={"input": leaf, "target": leaf},
                grad_enabled=True,
            )
        trace.zero_grad().backward().optimizer_step()
        other = {path: {**leaf, "fingerprint": f"{after} {text}"} for path, text in parts.items()}
        trace.batch(after, leaves=other, index=step)
    return trace.end_step().build()


USED = {"of": "used", "name": "loader0", "values": {"batch[0]": True}}


def test_which_parts_of_batches_are_used(golden: Golden):
    invariants = learn(batches()).invariants
    assert values_of(
        golden.each(claims(invariants, "constant", of="used")), "constant", "name"
    ) == ["loader0"]
    for healthy in (batches(), batches(after="loader0"), batches(ahead=1)):
        assert broken(decide("constant", USED, healthy)) == []
    wrong = batches(given="batch[1]")
    found = broken(decide("constant", USED, wrong))
    assert found == [(step, Symptom.WRONG_VALUE, "loader0 batch[0]") for step in range(0, 24, 3)]
    finding = report_of(invariants, wrong).findings[0]
    golden(finding)
    assert mentions(finding, "loader0", "[0]")


def test_a_batch_of_before_is_another_one():
    stale = broken(decide("constant", USED, batches(stale=True)))
    assert [step for step, *_ in stale] == [*range(3, 24, 3)]


@pytest.mark.parametrize(
    "options", [{"given": "noised batch[0]"}, {"given": "batch[1]", "has_loss": False}]
)
def test_what_the_loop_makes_of_a_batch_may_be_given_in_its_place(options):
    """Or used in a separate loss."""
    assert decide("constant", USED, batches(**options)) == []


@pytest.mark.parametrize("options", [{"looks": False}, {"numel": 8}])
def test_of_batches_that_are_not_known_again_nothing_is_said(options):
    assert decide("constant", USED, batches(**options)) == []
    assert not claims(learn(batches(**options)), "constant", of="used")
