"""What each reader tells of a run, in the class that a fault shows and in that of a healthy run."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import net
from tests.facts.pass_cases import NEAR, PASS_CASES
from tests.facts.state_cases import STATE_CASES
from tests.ranks import merged
from traincheck.facts.book import facts_of
from traincheck.facts.operations import Operations
from traincheck.facts.population import shipped
from traincheck.facts.row_kinds import RowsOfCalls
from traincheck.facts.table import KINDS
from traincheck.schema.events import CheckpointEvent, Event, StateEvent
from traincheck.schema.facts import Fact
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

STEPS = 8
ALL = frozenset(net().parameters())


def scalar(value: float | str) -> dict[str, Any]:
    return {**tensor_json(TensorSummary("float32", ())), "value": value}


def with_losses(*values: float | str) -> TraceBuilder:
    run = net()
    for value in values:
        run.step()
        root = [event for event in run.events if getattr(event, "api", "") == Families.BACKWARD][-1]
        run.edit(root, args={"tensors": scalar(value)})
    return run


def clipped(limit: float, *norms: float | str) -> TraceBuilder:
    run = net()
    for norm in norms:
        run.begin_step().batch().zero_grad().forward().backward()
        run.call(
            Families.CLIP_NORM, args={"max_norm": limit}, result=scalar(norm), where="train.py:86"
        )
        run.optimizer_step()
    return run


def scheduled(steps: Iterable[int], made: bool = True) -> TraceBuilder:
    run = net()
    if made:
        run.call(
            "torch.optim.lr_scheduler.StepLR.__init__",
            family=Families.SCHEDULER_CREATED,
            where="train.py:20",
        )
    for count in steps:
        run.step()
        for _ in range(count):
            run.scheduler_step()
    return run


def rated(*rates: float) -> TraceBuilder:
    run = net()
    for rate in rates:
        run.step()
        run.optimizers["opt0"].hyper["lr"] = rate
    return run


def delivered(epochs: Iterable[Iterable[str]], *, size: int = 0, drawn: int = 0) -> TraceBuilder:
    run = net()
    for epoch, rows in enumerate(epochs):
        run.step(omit=("batch",))
        run.batch(samples=tuple(rows), epoch=epoch, dataset_size=size, drawn=drawn, index=0)
    return run


def evaluated(trained: Iterable[str], tested: Iterable[str]) -> TraceBuilder:
    run = net()
    run.step(omit=("batch",)).batch(samples=tuple(trained))
    run.step()
    run.set_stage("eval")
    return run.batch(loader="loader1", samples=tuple(tested))


def two_optimizers(*stepped: str) -> TraceBuilder:
    run = TraceBuilder().process().model("Net", MLP).model("Critic", MLP)
    run.optimizer(names=["Net.fc1.weight"]).optimizer(names=["Critic.fc1.weight"])
    for _ in range(STEPS):
        run.begin_step().batch().forward().backward()
        for optimizer in stepped:
            run.optimizer_step(optimizer)
    return run


def zeroed(share: float, *names: str) -> TraceBuilder:
    """Gradients of these parameters are exactly 0 in a share of the updates."""
    run = net().steps(STEPS)
    for event in list(run.events):
        if (
            isinstance(event, StateEvent)
            and event.role == "gradient"
            and event.name in (names or ALL)
            and event.summary is not None
            and event.change == "set"
            and (event.step or 0) < share * STEPS
        ):
            summary = msgspec.structs.replace(event.summary, zero=True)
            run.edit(event, summary=summary)
    return run


def accumulated(*passes: int) -> TraceBuilder:
    run = net()
    for number in passes:
        run.step(accumulate=number)
    return run


def cleared(*times: int) -> TraceBuilder:
    run = net()
    for number in times:
        run.begin_step().batch()
        for _ in range(number):
            run.zero_grad()
        run.forward().backward().optimizer_step()
    return run


def kept(*losses: float, saved_after: int) -> TraceBuilder:
    """An evaluation after each step; the state of one is saved as the best."""
    run = net()
    for number, loss in enumerate(losses):
        run.step().train(False).set_stage("eval")
        run.call(
            "torch.nn.functional.cross_entropy",
            args={},
            result=scalar(loss),
            grad_enabled=False,
        )
        if number == saved_after:
            run.add(CheckpointEvent, op="save", target="Net", path="best.pt", where="train.py:97")
        run.train(True)
    return run.step()


def rows(start: int, stop: int) -> list[str]:
    return [f"{row:016x}" for row in range(start, stop)]


def healthy() -> TraceBuilder:
    return net().steps(STEPS, eval_every=4)


CASES: dict[tuple[str, str], Callable[[], TraceBuilder]] = {
    ("signal.loss", "not known"): lambda: with_losses(*[[]] * 3),  # type: ignore[arg-type]
    ("signal.loss", "changes"): healthy,
    ("signal.loss", "zero"): lambda: with_losses(0.0, 0.0, 0.0, 0.0),
    ("signal.loss", "often zero"): lambda: with_losses(0.0, 0.0, 0.0, 0.5),
    ("signal.loss", "constant"): lambda: with_losses(0.7, 0.7, 0.7),
    ("signal.loss", "not finite"): lambda: with_losses(0.7, 0.6, "nan"),
    ("signal.parameters that never change", "none"): healthy,
    ("signal.parameters that never change", "some"): lambda: net().steps(
        STEPS, not_updated=["Net.fc1.weight"]
    ),
    ("signal.parameters that never change", "all"): lambda: net().steps(STEPS, not_updated=ALL),
    ("signal.parameters without a gradient", "none"): healthy,
    ("signal.parameters without a gradient", "all"): lambda: net().steps(STEPS, no_gradient=ALL),
    ("signal.parameters without a gradient", "some"): lambda: net().steps(
        STEPS, no_gradient=["Net.fc1.weight"]
    ),
    ("signal.gradients of zero", "none"): healthy,
    ("signal.gradients of zero", "some often"): lambda: zeroed(0.7, "Net.fc1.weight"),
    ("signal.gradients of zero", "some always"): lambda: zeroed(1.0, "Net.fc1.weight"),
    ("signal.gradients of zero", "all"): lambda: zeroed(1.0),
    ("loop.backward passes", "one"): healthy,
    ("loop.backward passes", "several"): lambda: net().steps(STEPS, accumulate=3),
    ("loop.backward passes", "none"): lambda: net().steps(STEPS, omit=("backward",)),
    ("loop.backward passes", "varies"): lambda: accumulated(*[1, 3] * 4),
    ("loop.zero_grad", "one"): healthy,
    ("loop.zero_grad", "several"): lambda: cleared(*[2] * STEPS),
    ("loop.zero_grad", "varies"): lambda: cleared(*[0, 1, 2, 1] * 2),
    ("loop.zero_grad", "none"): lambda: net().steps(STEPS, omit=("zero_grad",)),
    ("loop.clipping", "none"): healthy,
    ("loop.clipping", "never bites"): lambda: clipped(5.0, 1.0, 2.0, 3.0),
    ("loop.clipping", "sometimes bites"): lambda: clipped(1.0, 0.5, 2.0, 3.0),
    ("loop.clipping", "always bites"): lambda: clipped(1.0, 1.5, 2.0, 3.0),
    ("loop.clipping", "always bites hard"): lambda: clipped(0.1, 1.5, 2.0, 3.0),
    ("loop.clipping", "of no gradient"): lambda: clipped(0.1, 0.0, 0.0, 0.0),
    ("loop.clipping", "not known"): lambda: clipped(1.0, "nan", "nan", "nan"),
    ("loop.learning rate", "constant"): healthy,
    ("loop.learning rate", "zero"): lambda: rated(0.0, 0.0, 0.0, 0.0),
    ("loop.learning rate", "falls"): lambda: rated(*[0.4] * 8, 0.3, 0.2, 0.18),
    ("loop.learning rate", "falls a little"): lambda: rated(0.4, 0.39, 0.38, 0.37),
    ("loop.learning rate", "falls to nothing"): lambda: rated(0.4, 0.3, 0.2, 0.1, 0.002),
    ("loop.learning rate", "rises"): lambda: rated(0.1, 0.2, 0.3, 0.4),
    ("loop.learning rate", "rises, then stays"): lambda: rated(0.1, 0.2, 0.3, 0.4, *[0.4] * 4),
    ("loop.learning rate", "rises, then falls"): lambda: rated(*[0.1] * 6, 0.2, 0.15, 0.08),
    ("loop.learning rate", "rises, then falls a little"): lambda: rated(0.1, 0.2, 0.19, 0.18),
    ("loop.learning rate", "rises, then falls to nothing"): lambda: rated(0.1, 0.2, 0.1, 0.001),
    ("loop.learning rate", "falls, then rises"): lambda: rated(0.3, 0.2, 0.1, 0.2),
    ("loop.learning rate", "goes up and down"): lambda: rated(0.1, 0.2, 0.1, 0.2),
    ("loop.learning rate", "jumps up"): lambda: rated(0.3, 0.2, 0.1, 0.05, 0.3),
    ("loop.schedulers", "none"): healthy,
    ("loop.schedulers", "never stepped"): lambda: scheduled([0] * STEPS),
    ("loop.schedulers", "each update"): lambda: scheduled([1] * STEPS),
    ("loop.schedulers", "more often"): lambda: scheduled([2] * STEPS),
    ("loop.schedulers", "less often"): lambda: scheduled([0, 0, 0, 1] * 2),
    ("loop.optimizers", "all step"): lambda: two_optimizers("opt0", "opt1"),
    ("loop.optimizers", "one never steps"): lambda: two_optimizers("opt0"),
    ("rows.repeated in a batch", "none"): lambda: delivered([rows(0, 32)]),
    ("rows.repeated in a batch", "few"): lambda: delivered([[*rows(0, 32), *rows(0, 1)]]),
    ("rows.repeated in a batch", "many"): lambda: delivered([rows(0, 24) + rows(0, 8)]),
    ("rows.repeated in a batch", "nearly all"): lambda: delivered([rows(0, 2) * 16]),
    ("rows.order in each epoch", "one epoch"): lambda: delivered([rows(0, 32)]),
    ("rows.order in each epoch", "the same order"): lambda: delivered([rows(0, 32)] * 3),
    ("rows.order in each epoch", "another order"): lambda: delivered(
        [rows(0, 32), rows(0, 32)[::-1]]
    ),
    ("rows.order in each epoch", "other rows"): lambda: delivered([rows(0, 32), rows(40, 72)]),
    ("rows.read of the data set", "all"): lambda: delivered([(), ()], size=64, drawn=64),
    ("rows.read of the data set", "not the last ones"): lambda: delivered(
        [(), ()], size=70, drawn=64
    ),
    ("rows.read of the data set", "a part"): lambda: delivered([(), ()], size=640, drawn=64),
    ("rows.read of the data set", "more"): lambda: delivered([(), ()], size=60, drawn=64),
    ("rows.evaluated and trained on", "no evaluation"): lambda: delivered([rows(0, 32)]),
    ("rows.evaluated and trained on", "none"): lambda: evaluated(rows(0, 32), rows(32, 64)),
    ("rows.evaluated and trained on", "few"): lambda: evaluated(rows(0, 32), rows(31, 64)),
    ("rows.evaluated and trained on", "some"): lambda: evaluated(rows(0, 32), rows(16, 48)),
    ("rows.evaluated and trained on", "all"): lambda: evaluated(rows(0, 32), rows(0, 32)),
    ("evaluation.mode", "evaluation mode"): healthy,
    ("evaluation.mode", "no evaluation"): lambda: net().steps(STEPS),
    ("evaluation.mode", "training mode"): lambda: net().steps(STEPS).forward(grad=False),
    ("evaluation.mode", "both modes"): lambda: net().steps(STEPS).forward(grad=False).evaluate(),
    ("evaluation.state that is kept", "none"): healthy,
    ("evaluation.state that is kept", "lowest loss"): lambda: kept(0.9, 0.5, 0.7, saved_after=1),
    ("evaluation.state that is kept", "highest loss"): lambda: kept(0.9, 0.5, 0.7, saved_after=0),
    ("evaluation.state that is kept", "another"): lambda: kept(0.9, 0.5, 0.7, saved_after=2),
    **STATE_CASES,
    **PASS_CASES,
}


def of_kind(events: Iterable[Event], kind: str) -> list[Fact]:
    return [fact for fact in facts_of(events) if fact.kind == kind]


@pytest.mark.parametrize(("kind", "seen_as"), CASES)
def test_a_fact_is_of_its_class(kind: str, seen_as: str) -> None:
    found = of_kind(CASES[kind, seen_as]().build(), kind)
    assert seen_as in {fact.seen_as for fact in found}
    for fact in found:
        sentence = KINDS.sentence(fact)
        assert "{" not in sentence
        assert "None" not in sentence


@pytest.mark.parametrize(("kind", "seen_as"), NEAR)
def test_what_looks_like_a_fault_is_of_the_calm_class(kind: str, seen_as: str) -> None:
    found = of_kind(NEAR[kind, seen_as]().build(), kind)
    assert {fact.seen_as for fact in found} == {seen_as}


def test_each_class_of_each_kind_is_shown() -> None:
    by_call = (*Operations.kinds, *RowsOfCalls.kinds)  # test_operations.py, test_row_kinds.py
    others = [kind for kind in KINDS if kind not in by_call]
    assert set(CASES) == {(kind.name, seen_as) for kind in others for seen_as in kind.classes}


def test_a_healthy_run_shows_calm_classes_alone() -> None:
    population = shipped()
    for fact in facts_of(healthy().build()):
        if fact.kind not in population.having:  # not yet counted: its first class is calm
            assert fact.seen_as == next(iter(KINDS[fact.kind].classes)), fact
            continue
        assert population.count(fact) > population.having[fact.kind] / 10, fact


def test_a_state_that_is_saved_after_a_load_is_not_the_one_that_was_evaluated() -> None:
    run = kept(0.9, 0.5, saved_after=7).train(False).set_stage("eval")
    run.call("torch.nn.functional.cross_entropy", args={}, result=scalar(0.7), grad_enabled=False)
    run.load("Net", values={"Net.fc1.weight": "xxh3-128:00"})
    run.add(CheckpointEvent, op="save", target="Net", path="best.pt", where="train.py:97")
    (found,) = of_kind(run.build(), "evaluation.state that is kept")
    assert found.seen_as == "none"


def test_what_all_ranks_show_is_one_fact() -> None:
    def rank(number: int) -> TraceBuilder:
        builder = TraceBuilder(rank=number).process().model("Net", MLP).optimizer()
        return builder.steps(STEPS, omit=("zero_grad",) if number == 1 else ())

    events = merged(rank(0).build(), rank(1).build(), rank(2).build())
    found = of_kind(events, "loop.zero_grad")
    assert {(fact.seen_as, fact.ranks) for fact in found} == {("one", (0, 2)), ("none", (1,))}
    (backward,) = of_kind(events, "loop.backward passes")
    assert backward.ranks == ()


def test_what_was_not_recorded_is_no_fact() -> None:
    run = TraceBuilder().process(instruments={"optimizers": "off: asked for"})
    events = run.model("Net", MLP).optimizer().steps(STEPS).build()
    assert of_kind(events, "loop.schedulers") == of_kind(events, "loop.zero_grad") == []
    assert of_kind(events, "evaluation.mode")


def test_workers_of_loaders_have_no_facts() -> None:
    assert facts_of(TraceBuilder(worker=True).process(worker=True).build()) == []


def with_rows(*, exchanged: bool) -> TraceBuilder:
    a, b = ["".join(f"{start + one:012x}" for one in range(16)) for start in (1, 100)]
    run = net()
    run.step(omit=("batch",)).batch(samples=(), rows={"a": a, "b": b})
    run.step(omit=("batch",)).set_stage("eval")
    rows = {"a": b, "b": a} if exchanged else {"a": a[12:] + a[:12], "b": b}
    return run.batch(loader="loader1", samples=(), rows=rows)


@pytest.mark.parametrize(("exchanged", "seen_as"), [(True, "all"), (False, "none")])
def test_a_row_is_known_by_all_of_its_tensors(exchanged: bool, seen_as: str) -> None:
    facts = facts_of(with_rows(exchanged=exchanged).build())
    (shared,) = [fact for fact in facts if fact.kind == "rows.evaluated and trained on"]
    assert (shared.seen_as, shared.values["rows"]) == (seen_as, 16)


def in_batches(*epochs: Iterable[int], rows: int = 8, skip: Iterable[int] = ()) -> TraceBuilder:
    """Epochs of batches, by what they begin with; those of some places are not recorded."""
    run, without = net(), set(skip)
    for epoch, starts in enumerate(epochs):
        for index, start in enumerate(starts):
            text = "".join(f"{start + one + 1:012x}" for one in range(rows))
            recorded = {} if epoch and index in without else {"a": text}
            run.step(omit=("batch",))
            run.batch(epoch=epoch, index=index, samples=(), rows=recorded, drawn=rows)
    return run


@pytest.mark.parametrize(
    ("run", "seen_as"),
    [
        (in_batches([0, 10, 20, 30], [0, 10, 20, 30], skip=[1]), {"the same order"}),
        (in_batches([0, 10, 20, 30], [30, 0, 10, 20], skip=[1]), {"another order"}),
        (in_batches([0, 10, 20, 30], [50, 60, 70, 80], skip=[1]), {"other rows"}),
        (in_batches([0], [0], rows=32), set()),  # all data in one batch
        (in_batches([0, 10], [0, 10], skip=[1]), set()),  # too few to tell
    ],
)
def test_the_order_of_epochs_is_known_from_some_batches(
    run: TraceBuilder, seen_as: set[str]
) -> None:
    found = of_kind(run.build(), "rows.order in each epoch")
    assert {fact.seen_as for fact in found} == seen_as


def test_the_first_batch_of_an_evaluation_counts_as_evaluated() -> None:
    run = net()
    run.step(omit=("batch",)).batch(samples=tuple(rows(0, 32)))
    run.batch(loader="loader1", samples=tuple(rows(40, 60)))  # fetched in stage train
    run.set_stage("eval").batch(loader="loader1", samples=tuple(rows(60, 80)))
    (shared,) = [f for f in facts_of(run.build()) if f.kind == "rows.evaluated and trained on"]
    assert (shared.seen_as, shared.values["rows"]) == ("none", 40)


def test_the_share_of_a_rank_is_no_part_of_the_data_set() -> None:
    run = net()
    for epoch in range(2):
        run.step(omit=("batch",)).batch(epoch=epoch, dataset_size=64, drawn=32, replicas=2)
    assert "rows.read of the data set" not in {fact.kind for fact in facts_of(run.build())}
