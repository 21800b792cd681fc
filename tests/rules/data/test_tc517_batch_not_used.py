"""TC517: an old batch that is trained on while new ones are fetched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf
from tests.rules.loss_runs import F
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LABELS = (4,)
Given = Callable[[int], dict[str, Any]]


def inputs(step: int, **more: Any) -> dict[str, Any]:
    return leaf(f"x{step}", **more)


def labels(step: int) -> dict[str, Any]:
    return leaf(f"y{step}", LABELS, dtype="int64")


def model_called(trace: TraceBuilder, grad: bool = True, **args: Any) -> None:
    named = {key.removeprefix("_"): value for key, value in args.items()}
    trace.call(
        "__main__.Classifier.forward",
        family=Families.MODULE,
        module="Classifier",
        root=True,
        args=named,
        grad_enabled=grad,
    )


def steps(
    given: Given = inputs, target: Given = labels, count: int = 8, **more: Any
) -> list[Event]:
    """Steps with a new batch each, whose model and loss get what these functions make."""
    trace = net()
    for step in range(count):
        trace.begin_step().batch(
            index=step, leaves={"batch[0]": inputs(step), "batch[1]": labels(step)}
        )
        trace.zero_grad()
        model_called(trace, _0=given(step), **more)
        args = {"input": leaf(shape=(4, 10)), "target": target(step), "reduction": "mean"}
        trace.call(F + "cross_entropy", args=args).backward().optimizer_step()
    return trace.build()


def old(step: int) -> dict[str, Any]:
    """From step 2 on that of step 1."""
    return inputs(min(step, 1))


BROKEN = steps(old)


def test_fires_and_names_the_batch_and_the_first_step(golden: Golden) -> None:
    finding = fires("TC517", BROKEN)
    assert (finding.first_step, finding.violations) == (2, 1)
    golden(finding)
    assert mentions(finding, "[0]", 1, "loader0")


def test_fires_on_old_labels(golden: Golden) -> None:
    finding = fires("TC517", steps(target=lambda step: labels(min(step, 3))))
    assert finding.first_step == 4
    golden(finding)
    assert mentions(finding, "[1]", 3, "loader0")


def test_fires_on_one_of_several_inputs(golden: Golden) -> None:
    assert mentions(golden(fires("TC517", steps(old, new=leaf("n")))), "[0]", 1)


@pytest.mark.parametrize("count", [4, 5])
def test_quiet_until_it_is_certain(count: int) -> None:
    assert quiet("TC517", steps(old, count=count)) is Verdict.HELD


@pytest.mark.parametrize(
    "given",
    [
        inputs,
        lambda _: leaf("graph", (100, 10)),  # a whole graph, of which the batch holds nodes
        lambda _: leaf("noise"),  # as large as the batch, and not of one
        lambda _: leaf(shape=(4, 10)),  # not known by its content
        lambda step: inputs(step - 1),  # fetched ahead
        lambda step: inputs(step // 2 * 2),  # two steps on each second batch
    ],
)
def test_quiet_on_other_inputs(given: Given) -> None:
    assert quiet("TC517", steps(given)) is Verdict.HELD


def test_quiet_on_targets_that_a_program_makes() -> None:
    made = leaf("arange", LABELS, dtype="int64")
    assert quiet("TC517", steps(target=lambda _: made)) is Verdict.HELD


def test_quiet_where_another_model_is_given_the_batch() -> None:
    trace = net()
    for step in range(8):
        trace.begin_step().batch(leaves={"batch[0]": inputs(step)}).zero_grad()
        model_called(trace, _0=leaf("noise"))
        model_called(trace, x=inputs(step))
        trace.backward().optimizer_step()
    assert quiet("TC517", trace.build()) is Verdict.HELD


def beside(*others: dict[str, Any], is_new_used: bool) -> list[Event]:
    """A batch of another loader that is kept from the first step on, and the loader's own."""
    kept = leaf("kept")
    trace = net()
    for step in range(8):
        trace.begin_step().batch(index=step, leaves={"batch[0]": inputs(step)})
        if step == 0:
            for one in (*others, kept):
                trace.batch(loader="loader1", leaves={"batch[0]": one})
        trace.zero_grad()
        model_called(trace, _0=kept)
        if is_new_used:
            model_called(trace, _0=inputs(step))
        trace.backward().optimizer_step()
    return trace.build()


def test_a_batch_that_is_kept_beside_the_new_one_is_no_fault() -> None:
    assert quiet("TC517", beside(leaf("other"), is_new_used=True)) is Verdict.HELD
    assert quiet("TC517", beside(is_new_used=False)) is Verdict.HELD  # all that there is of it
    assert fires("TC517", beside(leaf("other"), is_new_used=False)).first_step == 1


def test_what_is_of_one_value_came_from_nowhere() -> None:
    mask = leaf("ones", stats={"min": 1.0, "max": 1.0})
    trace = net()
    for step in range(8):
        shown = mask if step == 0 else inputs(step)
        trace.begin_step().batch(leaves={"batch[0]": shown}).zero_grad()
        model_called(trace, _0=leaf("ones"))
        trace.backward().optimizer_step()
    assert quiet("TC517", trace.build()) is Verdict.HELD


def test_labels_kept_for_a_second_loss_are_no_fault() -> None:
    trace = net()
    for step in range(8):
        trace.begin_step().batch(leaves={"batch[0]": inputs(step), "batch[1]": labels(step)})
        trace.zero_grad()
        model_called(trace, _0=inputs(step))
        for target in (labels(0), labels(step)):
            args = {"input": leaf(shape=(4, 10)), "target": target, "reduction": "mean"}
            trace.call(F + "cross_entropy", args=args)
        trace.backward().optimizer_step()
    assert quiet("TC517", trace.build()) is Verdict.HELD


def test_modules_that_are_losses_are_no_models() -> None:
    trace = net()
    for step in range(8):
        trace.begin_step().batch(leaves={"batch[0]": inputs(step)}).zero_grad()
        model_called(trace, _0=inputs(min(step, 1)))
        trace.call(
            "torch.nn.modules.loss.MSELoss.forward",
            family=Families.MODULE,
            module="MSELoss",
            root=True,
            args={"0": leaf(f"out{step}"), "1": leaf(f"t{step}")},
        )
        trace.backward().optimizer_step()
    assert fires("TC517", trace.build()).subject.module == "Classifier"


def test_the_first_look_at_which_it_was_old_is_told() -> None:
    """The first of the five is of a batch that may have been used when it was new."""
    trace = net()
    for step in range(10):
        trace.begin_step().batch(index=step, leaves={"batch[0]": inputs(step)}).zero_grad()
        model_called(trace, _0=inputs(step) if step < 4 else inputs(2))
        trace.backward().optimizer_step()
    assert fires("TC517", trace.build()).first_step == 4


def test_quiet_on_the_only_batch_of_a_loader_and_without_one() -> None:
    for fetched in (True, False):
        trace = net()
        for _ in range(8):
            trace.begin_step()
            if fetched:
                trace.batch(leaves={"batch[0]": inputs(0)})
            trace.zero_grad()
            model_called(trace, _0=inputs(0))
            trace.backward().optimizer_step()
        assert quiet("TC517", trace.build()) is Verdict.NOT_TRIGGERED


def test_quiet_on_evaluation() -> None:
    trace = net()
    for step in range(8):
        trace.begin_step().batch(leaves={"batch[0]": inputs(step)}).zero_grad()
        model_called(trace, _0=inputs(step))
        trace.backward().optimizer_step().train(False)
        trace.batch(loader="loader1", leaves={"batch[0]": inputs(100 + step)})
        model_called(trace, grad=False, _0=inputs(0))
        trace.train(True)
    assert quiet("TC517", trace.build()) is Verdict.HELD
