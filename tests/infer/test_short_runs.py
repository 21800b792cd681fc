"""A short run beside a long one: what it cannot show it does not take away, what it breaks it does.

Each example is of one relation: a healthy program, and what the short run does otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.builders import MLP, TraceBuilder
from tests.learning import learn, texts
from tests.relations.test_distinct import epochs, shuffled
from tests.relations.test_scales import sized
from traincheck.schema.events import CheckpointEvent
from traincheck.schema.torch_api import Families

DROPOUT = "torch.nn.functional.dropout"
CROSS_ENTROPY = "torch.nn.functional.cross_entropy"
TANH = "torch.nn.modules.activation.Tanh"
Play = Callable[[TraceBuilder], None]


def run(steps: int, play: Play | None = None, **options) -> list:
    """A program of so many steps; ``play`` says what it does more in each."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer().train()
    for _ in range(steps):
        trace.step(**options)
        if play is not None:
            play(trace)
    return trace.build()


def dropped(p: float) -> Play:
    def play(trace: TraceBuilder) -> None:
        trace.call(DROPOUT, args={"p": p, "training": True}, training=True)

    return play


def evaluated(trace: TraceBuilder) -> None:
    dropped(0.2)(trace)
    trace.train(False)
    for _ in range(2):
        args = {"p": 0.2, "training": False}
        trace.call(DROPOUT, args=args, training=False, grad_enabled=False)
        trace.forward(grad=False)
    trace.train(True)


def called(times: int) -> Play:
    def play(trace: TraceBuilder) -> None:
        for _ in range(times):
            trace.call("torch.set_rng_state")

    return play


def scheduled(rates: list[float]) -> list:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(lr=rates[0]).train()
    for rate in rates:
        trace.step()
        trace.optimizers["opt0"].hyper["lr"] = rate
        api = "torch.optim.lr_scheduler.StepLR.step"
        trace.call(api, family=Families.SCHEDULER_STEP, owner="sched0")
    return trace.build()


def loaded(matched: int) -> Play:
    def play(trace: TraceBuilder) -> None:
        load = {"missing": [], "unexpected": [], "matched": matched, "entries": matched}
        trace.add(CheckpointEvent, op="load_state_dict", target="Net", **load)

    return play


def copied(steps: int, every: int) -> list:
    """The parameters of a model that nothing trains change now and then."""
    trace = TraceBuilder().process().model("Net", MLP).optimizer().train()
    trace.model("Target", {"w": "Q"})
    for number in range(steps):
        trace.step()
        if number % every == 0:
            trace.state(trace.models["Target"].parameters["Target.w"], "parameter", "content")
    return trace.build()


def seen(low: float) -> Play:
    """What a loss is given; a sign is no accident if it is clear in each call."""

    def play(trace: TraceBuilder) -> None:
        stats = {"min": low, "max": 1.0}
        given = {"dtype": "float32", "shape": [32, 10], "stats": stats}
        trace.call(CROSS_ENTROPY, args={"input": given})

    return play


def trained(requires_grad: bool, *, grad: bool = True) -> Play:
    def play(trace: TraceBuilder) -> None:
        result = {"dtype": "float32", "shape": [4, 4], "requires_grad": requires_grad}
        trace.call(f"{TANH}.forward", result=result, family=Families.MODULE, grad_enabled=grad)

    return play


@dataclass
class Example:
    """says: part of a sentence. long: the program; short: less of it; wrong: short, and broken."""

    says: str
    long: list
    short: list
    wrong: list


EXAMPLES = {
    "count": Example(
        "torch.set_rng_state is called exactly 2 times in every training step",
        run(12, called(2)),
        run(2, called(2)),
        run(2, called(3)),
    ),
    "count of accumulated steps": Example(
        "backward is called exactly 4 times in every training step",
        run(12, accumulate=4),
        run(1, accumulate=4),
        run(3, accumulate=2),
    ),
    "count of a call that is missing": Example(
        "torch.set_rng_state is called exactly 2 times in every training step",
        run(12, called(2)),
        run(1),
        run(3),
    ),
    "distinct": Example(
        "the batches of loader0 differ from those of the epoch before",
        epochs(shuffled, 4).build(),
        epochs(shuffled, 1).build(),
        epochs(lambda epoch, index: index, 2).build(),
    ),
    "constant": Example(
        "functional.dropout gets p=0.2, training=True, and training=False in evaluation mode",
        run(12, evaluated),
        run(2, dropped(0.2)),
        run(2, dropped(0.4)),
    ),
    "constant in evaluation": Example(
        "Net is in evaluation mode whenever it is called with gradients off",
        run(12, evaluated),
        run(2),
        run(2, lambda trace: trace.forward(grad=False)),
    ),
    "schedule": Example(
        "learning rates never rise",
        scheduled([1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.015, 0.007, 0.003]),
        run(2),
        scheduled([1.0, 2.0, 2.0]),
    ),
    "restored": Example(
        "every load of Net restores 4 values",
        run(12, loaded(4)),
        run(2),
        run(2, loaded(3)),
    ),
    "periodic": Example(
        "every parameter of Target changes at least once every 3 training steps",
        copied(24, 3),
        copied(3, 3),
        copied(8, 6),
    ),
    "bounded": Example(
        "the smallest element of the input of functional.cross_entropy is below 0",
        run(12, seen(-2.0)),
        run(2, seen(-0.1)),
        run(2, seen(0.5)),
    ),
    "scales": Example(
        "the losses passed to backward() before the first update sum to at most 7.2",
        sized(),
        sized(losses=(2.3, 2.2)),
        sized(8),
    ),
    "input_output": Example(
        "the result of Tanh.forward requires grad",
        run(12, trained(True)),
        run(2, trained(False, grad=False)),
        run(2, trained(False)),
    ),
}
examples = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


def says(example: Example, *runs: list) -> bool:
    return any(example.says in text for text in texts(learn(*runs)))


@examples
def test_a_run_that_is_too_short_to_show_it_takes_nothing_away(example):
    assert says(example, example.long)
    assert says(example, example.long, example.short)
    assert says(example, example.short, example.long)


@examples
def test_a_short_run_that_breaks_it_does(example):
    assert not says(example, example.long, example.wrong)
    assert not says(example, example.long, example.short, example.wrong)


def test_an_update_within_eight_steps_is_not_asked_of_fewer():
    text = "Optimizer.step is called at least once in 8 training steps."
    without = {"omit": ("optimizer_step",)}
    assert text in texts(learn(run(12), run(3, **without)))
    assert text not in texts(learn(run(12), run(9, **without)))


def test_another_program_of_the_same_file_name_takes_nothing_away():
    other = TraceBuilder().process().model("Other", {"w": "Q", "v": "Q"}).optimizer().train()
    both = learn(run(12, called(2)), other.steps(12).build())
    assert any("torch.set_rng_state is called exactly 2" in text for text in texts(both))


def test_of_limits_that_were_seen_often_enough_the_wider_one_stays():
    def norms(steps: int, size: float) -> list:
        trace = TraceBuilder().process().model("Net", MLP).optimizer().train()
        for _ in range(steps):
            trace.step()
        return [
            event.replace(summary=event.summary.replace(stats={"norm": size}))
            if event.kind == "state" and event.role == "gradient" and event.change == "set"
            else event
            for event in trace.build()
        ]

    says = "the norm of the gradients of an update is at most"
    for runs in ((norms(16, 4.0), norms(16, 1.0)), (norms(16, 4.0), norms(4, 1.0))):
        for given in (runs, runs[::-1]):
            assert [t for t in texts(learn(*given)) if says in t] == [f"In train.py, {says} 240."]
    assert not any(says in text for text in texts(learn(norms(16, 0.1), norms(4, 4.0))))


def test_a_short_run_adds_no_claims_of_its_own():
    for example in EXAMPLES.values():
        alone = texts(learn(example.long))
        assert set(texts(learn(example.long, example.short))) <= set(alone)
