"""Findings of a process with several optimizers name the one that they are about."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires
from tests.golden import Golden, mentions
from tests.together import together
from traincheck.rules.table import RULES
from traincheck.schema.events import Event
from traincheck.schema.torch_api import Families

GEN, DIS = ([f"{model}.{name}" for name in MLP] for model in "GD")
# Rules that say "the optimizer" and may, with several of them
EXEMPT = {
    "TC066": "what it observed names it",
    "TC067": "what it observed names it",
    "TC068": "what it observed names it",
    "TC069": "what it observed names it",
    "TC085": "the accumulation is for all of them",
    "TC086": "the parameter is named, whoever holds it",
    "TC107": "what it observed names it",
    "TC114": "the one that holds the parameter is named",
    "TC118": "what it observed names it",
    "TC205": "the clipping is for all of them",
    "TC223": "what it observed names those made",
    "TC614": "after the step of any of them",
    "TC807": "the state in a file is meant",
}


_CALL = re.compile(r"optimizer\.(step|zero_grad|load_state_dict)\(")


def two(each: Callable[[TraceBuilder], object], steps: int) -> list[Event]:
    """A generator that is trained well, and a discriminator with its own optimizer."""
    trace = TraceBuilder().process().model("G", MLP).model("D", MLP)
    trace.optimizer(names=GEN).optimizer(names=DIS).train()
    for _ in range(steps):
        trace.begin_step().batch().zero_grad("opt0").forward("G").backward(GEN)
        trace.optimizer_step("opt0")
        each(trace)
        trace.end_step()
    return trace.build()


def never(trace: TraceBuilder) -> None:
    trace.zero_grad("opt1").forward("D").backward(DIS)


def uncleared(trace: TraceBuilder) -> None:
    trace.forward("D").backward(DIS).optimizer_step("opt1")


def early(trace: TraceBuilder) -> None:
    trace.forward("D").backward(DIS).zero_grad("opt1").optimizer_step("opt1")


def twice(trace: TraceBuilder) -> None:
    trace.zero_grad("opt1").forward("D").backward(DIS)
    trace.optimizer_step("opt1").optimizer_step("opt1")


def without_effect(trace: TraceBuilder) -> None:
    trace.zero_grad("opt1").forward("D").backward(DIS).optimizer_step("opt1", skip=DIS)


def scheduled_early(trace: TraceBuilder) -> None:
    trace.zero_grad("opt1").forward("D").backward(DIS)
    trace.call("torch.optim.lr_scheduler.StepLR.step", family=Families.SCHEDULER_STEP, owner="opt1")
    trace.optimizer_step("opt1")


@pytest.mark.parametrize(
    ("code", "each", "steps"),
    [
        ("TC102", without_effect, 4),
        ("TC201", uncleared, 4),
        ("TC202", never, 32),
        ("TC203", early, 8),
        ("TC209", scheduled_early, 4),
        ("TC219", twice, 6),
    ],
)
def test_the_finding_fires_and_names_the_optimizer(
    code: str, each: Callable[[TraceBuilder], object], steps: int
) -> None:
    finding = fires(code, two(each, steps))
    for text in (finding.title, finding.fix) if code != "TC219" else (finding.title,):
        assert mentions(text, "opt1 (Adam, train.py:40)")
        assert not mentions(text, "opt0")


def test_an_optimizer_that_never_steps_is_named_with_its_model_and_the_one_that_does(
    golden: Golden,
) -> None:
    finding = golden(fires("TC202", two(never, 32)))
    assert mentions(finding.likely_cause, "opt1 (Adam)", "D", "opt0 (Adam)")


@together("rule", RULES, ids=lambda rule: rule.info.code)
def test_a_text_about_the_optimizer_has_another_for_several(rule) -> None:
    info = rule.info
    says = "the optimizer" in info.title.lower() or _CALL.search(info.fix)
    assert bool(says and not info.title_of_several) == (info.code in EXEMPT)
    assert bool(info.title_of_several or info.fix_of_several) is False or (
        "{optimizer}" in info.title_of_several + info.fix_of_several or info.code == "TC605"
    )
