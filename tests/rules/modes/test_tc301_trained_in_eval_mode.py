"""TC301: training in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.builders import MLP, MLP_BN, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.models import model
from tests.rules.window import dropout, evaluates, forward, norm
from traincheck.schema.events import CallEvent, CheckpointEvent, Event
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families


def loop(
    modes: Sequence[bool], *, drops: bool = True, trace: TraceBuilder | None = None
) -> TraceBuilder:
    trace = net() if trace is None else trace
    before = True
    for mode in modes:
        trace.begin_step()
        if before and not mode:
            evaluates(trace)
        before = mode
        inner = [dropout("Net.drop", on=mode)] if drops else []
        forward(trace.zero_grad(), *inner, mode=mode).backward().optimizer_step()
    return trace


BROKEN: list[Event] = loop([True, True, False, False, False]).build()


def test_fires_where_eval_is_left_on() -> None:
    finding = fires("TC301", BROKEN)
    assert (finding.first_step, finding.last_step) == (2, 4)
    assert finding.subject.module == "Net"
    assert mentions(finding, "train.py:70", "Net.drop")


def test_fires_when_it_was_never_in_training_mode() -> None:
    assert fires("TC301", loop([False, False, False]).build()).first_step == 0


def test_fires_where_eval_was_called_before_the_recording(golden: Golden) -> None:
    """The line of the forward pass is not given as that of eval()."""
    events = loop([False, False, False]).build()
    unrecorded = [e for e in events if not (isinstance(e, CallEvent) and e.api == Families.EVAL)]
    assert len(unrecorded) < len(events)
    golden(fires("TC301", unrecorded))


def with_norm(modes: Sequence[bool], frozen: Sequence[str] = ()) -> TraceBuilder:
    trace = TraceBuilder().process().model("Net", MLP_BN, frozen=frozen).optimizer()
    for mode in modes:
        forward(trace.begin_step().zero_grad(), norm("Net.bn", on=mode), mode=mode)
        trace.backward().optimizer_step()
    return trace


def blank(modes: Sequence[bool], *, loads: bool = False, is_initial: bool = True) -> TraceBuilder:
    trace = TraceBuilder().process().model("Net", MLP_BN).optimizer()
    facts = {"family": "batch norm", **({"initial": True} if is_initial else {})}
    model({"bn": facts}, trace=trace)
    if loads:
        trace.add(CheckpointEvent, op="load_state_dict", target="Net")
    for mode in modes:
        forward(trace.begin_step().zero_grad(), norm("Net.bn", on=mode), mode=mode)
        trace.backward().optimizer_step()
    return trace


def test_fires_on_batch_norm_that_never_saw_a_batch() -> None:
    finding = fires("TC301", blank([False] * 3).build())
    assert finding.first_step == 0
    assert mentions(finding, "Net.bn")


def test_quiet_on_batch_norm_with_statistics() -> None:
    assert quiet("TC301", blank([False] * 3, is_initial=False).build()) is Verdict.HELD
    assert quiet("TC301", blank([False] * 3, loads=True).build()) is Verdict.HELD
    assert quiet("TC301", blank([True] * 3).build()) is Verdict.HELD


def test_fires_on_batch_norm_that_was_in_training_mode() -> None:
    assert fires("TC301", with_norm([True, False, False]).build()).first_step == 1


def test_quiet_on_batch_norm_kept_in_evaluation_mode() -> None:
    assert quiet("TC301", with_norm([False] * 4).build()) is Verdict.HELD
    frozen = ["Net.bn.weight", "Net.bn.bias"]
    assert quiet("TC301", with_norm([True, False, False], frozen).build()) is Verdict.HELD


@pytest.mark.parametrize("modes", [[True] * 4, [True, True, False, True]])
def test_quiet_in_training_mode(modes: list[bool]) -> None:
    assert quiet("TC301", loop(modes).build()) is Verdict.HELD


def test_quiet_where_modes_make_no_difference() -> None:
    assert quiet("TC301", loop([True, False, False, False], drops=False).build()) is Verdict.HELD


@pytest.mark.parametrize(
    ("cls", "drops"),
    [
        ("timm.layers.drop.DropPath", True),
        ("torchvision.ops.stochastic_depth.StochasticDepth", True),
        ("transformers.models.swin.modeling_swin.SwinDropPath", True),
        ("torch.nn.modules.dropout.Dropout", False),  # its calls tell whether it drops
        ("__main__.Backdrop", False),
    ],
)
def test_modules_that_drop_paths_are_known_by_their_class(cls: str, drops: bool) -> None:
    def trained(modes: Sequence[bool]) -> list[Event]:
        return loop(modes, drops=False, trace=model({"drop_path": {"class": cls}})).build()

    if drops:
        finding = fires("TC301", trained([True, False, False]))
        assert finding.first_step == 1
        assert mentions(finding, "Net.drop_path")
    else:
        assert quiet("TC301", trained([True, False, False])) is Verdict.HELD
    assert quiet("TC301", trained([True, True, True])) is Verdict.HELD
    assert quiet("TC301", trained([False, False, False])) is Verdict.HELD


def test_quiet_on_adversarial_examples() -> None:
    trace = net()
    for _ in range(4):
        forward(trace.begin_step(), dropout("Net.drop", on=False), mode=False).backward()
        forward(trace.zero_grad(), dropout("Net.drop", on=True)).backward().optimizer_step()
    assert quiet("TC301", trace.build()) is Verdict.HELD


def test_quiet_on_a_frozen_body_in_evaluation_mode() -> None:
    names = [f"Net.{name}" for name in MLP]
    trace = TraceBuilder().process().model("Net", MLP, frozen=names[:2]).optimizer(names=names[2:])
    for _ in range(4):
        inner = dropout("Net.fc1.drop", on=False)
        forward(trace.begin_step().zero_grad(), inner, mode=False).backward().optimizer_step()
    assert quiet("TC301", trace.build()) is Verdict.HELD


def test_quiet_on_a_model_that_nobody_trains() -> None:
    trace = net().model("Loss", MLP)
    for _ in range(4):
        forward(trace.begin_step().zero_grad(), dropout("Net.drop", on=True))
        forward(trace, dropout("Loss.drop", on=False), mode=False, module="Loss")
        trace.backward().optimizer_step()
    assert quiet("TC301", trace.build()) is Verdict.HELD


def fed(*phases: tuple[str, bool]) -> list[Event]:
    """Three updates each on batches of a loader, in a mode that makes no difference."""
    trace = net()
    for loader, mode in phases:
        for index in range(3):
            trace.begin_step().batch(loader, index=index).zero_grad()
            forward(trace, mode=mode).backward().optimizer_step()
    return trace.build()


def test_fires_on_updates_in_the_loop_that_evaluates(golden: Golden) -> None:
    phases = [("loader0", True), ("loader1", False)]
    finding = fires("TC301", fed(*phases, *phases, *phases))
    assert (finding.first_step, finding.last_step) == (3, 11)
    golden(finding)
    assert mentions(finding, "loader1", "loader0", "no_grad")


def test_quiet_on_other_data_where_training_mode_does_not_return() -> None:
    stuck = [("loader0", True), ("loader1", False), ("loader2", False)]  # a loader for each epoch
    assert quiet("TC301", fed(*stuck)) is Verdict.HELD
    same = [("loader0", True), ("loader0", False)] * 2
    assert quiet("TC301", fed(*same)) is Verdict.HELD
    modes = [("loader0", True), ("loader1", True)] * 2
    assert quiet("TC301", fed(*modes)) is Verdict.HELD
    other = [("loader0", True), ("loader1", False), ("loader2", True)]  # phases of training
    assert quiet("TC301", fed(*other)) is Verdict.HELD
