"""TC521: rows of an evaluation that were trained on."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.collect.recording import recording
from tests.golden import Golden, mentions
from tests.ranks import RankBuilder, merged
from tests.rules.batches import leaf
from traincheck.schema.events import Event
from traincheck.schema.findings import Verdict

SIZE, OF_ALL = 16, 320
Rows = Sequence[tuple[int, ...]]


def deliver(run: TraceBuilder, rows: Rows, data: int, **fields: Any) -> None:
    """A batch of these rows, each given as the numbers of its parts, of one data set."""
    parts = {
        f"batch[{i}]": "".join(f"{one + 1:012x}" for one in part)
        for i, part in enumerate(zip(*rows))
    }
    told = {
        "samples": (),
        "rows": parts,
        "leaves": {path: leaf(shape=(len(rows), 4)) for path in parts},
        "dataset": f"dataset{data}",
        "dataset_size": 256 if data == 0 else 64,
        "drawn": len(rows),
        "index": 0,
        **fields,
    }
    run.batch(f"loader{data}", **told)


def train(run: TraceBuilder, rows: Rows, data: int = 0, **fields: Any) -> None:
    for start in range(0, len(rows), SIZE):
        run.begin_step()
        deliver(run, rows[start : start + SIZE], data, **fields)
        run.zero_grad().forward().backward().optimizer_step()


def evaluate(run: TraceBuilder, rows: Rows, data: int = 1, **fields: Any) -> None:
    run.train(False)
    for start in range(0, len(rows), SIZE):
        deliver(run, rows[start : start + SIZE], data, **fields)
        run.forward(grad=False)
    run.train(True)


def of(*numbers: int) -> Rows:
    """Rows of an input and a label."""
    return [(one, 10_000 + one % 3) for one in numbers]


def shuffled(seed: int) -> list[int]:
    return random.Random(seed).sample(range(OF_ALL), OF_ALL)


def split(trained: Rows, evaluated: Rows, epochs: int = 2, **fields: Any) -> list[Event]:
    run = net()
    for epoch in range(epochs):
        train(run, trained, epoch=epoch)
        evaluate(run, evaluated, epoch=epoch, **fields)
    return run.build()


CLEAN = split(of(*shuffled(1)[:256]), of(*shuffled(1)[256:]))
BROKEN = split(of(*shuffled(1)[:256]), of(*shuffled(2)[256:]))


def test_fires_on_two_shuffles_with_the_share(golden: Golden) -> None:
    assert quiet("TC521", CLEAN) is Verdict.HELD
    shared = len({*shuffled(1)[:256]} & {*shuffled(2)[256:]})
    assert 40 < shared < 60
    finding = fires("TC521", BROKEN)
    assert (finding.severity, finding.variables) == ("warning", ("loader1",))
    assert mentions(finding.observed, shared, 64)
    golden(finding)


@pytest.mark.parametrize(("shared", "is_told"), [(7, False), (8, True), (60, True), (61, False)])
def test_needs_some_rows_and_not_all(shared: int, is_told: bool) -> None:
    events = split(of(*range(256)), of(*range(256 - shared, 320 - shared)))
    if is_told:
        assert mentions(fires("TC521", events).observed, shared, 64)
    else:
        assert quiet("TC521", events) is Verdict.HELD


def test_quiet_on_a_few_of_very_many_rows() -> None:
    assert quiet("TC521", split(of(*range(256)), of(*range(248, 700)))) is Verdict.HELD


def pairs(seed: int) -> list[tuple[int, ...]]:
    drawn = random.Random(seed)
    return [tuple(drawn.sample(range(200), 2)) for _ in range(160)]


def test_fires_on_pairs_whose_ids_are_exchanged(golden: Golden) -> None:
    once = sorted({tuple(sorted(pair)) for pair in pairs(3)})
    both = [*once, *((b, a) for a, b in once)]
    random.Random(4).shuffle(both)
    finding = fires("TC521", split(both[:256], both[256:]))
    assert mentions(finding.message, "exchanged")
    golden(finding)
    held, rest = once[:40], once[40:]
    assert quiet("TC521", split([*rest, *((b, a) for a, b in rest)], held)) is Verdict.HELD


def test_quiet_on_ids_of_two_kinds_that_are_equal_by_chance() -> None:
    """Users and items: a fifth of the pairs also exist the other way round."""
    every = [(user, item) for user in range(40) for item in range(40) if user != item]
    random.Random(5).shuffle(every)
    known = every[:320]
    exchanged = {(b, a) for a, b in known[:256]} & {*known[256:]}
    assert len(exchanged) >= 8
    assert quiet("TC521", split(known[:256], known[256:])) is Verdict.HELD


def test_quiet_where_only_some_parts_of_rows_are_equal() -> None:
    trained = [(one, 10_000 + one) for one in range(256)]
    evaluated = [(one, 20_000 + one) for one in range(64)]
    assert quiet("TC521", split(trained, evaluated)) is Verdict.HELD


def test_quiet_on_data_of_few_values() -> None:
    drawn = random.Random(6)
    rows = [(drawn.randrange(30), drawn.randrange(30)) for _ in range(OF_ALL)]
    assert len({*rows[:256]} & {*rows[256:]}) >= 8
    assert quiet("TC521", split(rows[:256], rows[256:])) is Verdict.HELD


@pytest.mark.parametrize(
    "fields",
    [
        {"dataset": "dataset0"},
        {"part_of": "dataset0"},
        {"dataset_size": 256},
        {"drawn": 3},
    ],
)
def test_quiet_on_training_data_and_on_rows_that_are_no_samples(fields: dict[str, Any]) -> None:
    trained, evaluated = of(*shuffled(1)[:256]), of(*shuffled(2)[256:])
    assert quiet("TC521", split(trained, evaluated, **fields)) is not Verdict.VIOLATED


def beside(copied: int, other: int) -> list[Event]:
    """Of these rows of a copy every second was recorded in training; others are held out."""
    run = net()
    for epoch in range(2):
        train(run, of(*range(0, 256, 2)), epoch=epoch)
        evaluate(run, of(*range(64), *range(1000, 1000 + copied)), 1, epoch=epoch)
        if other:
            evaluate(run, of(*range(2000, 2000 + other)), 2, epoch=epoch)
    return run.build()


def test_a_copy_of_training_rows_beside_held_out_rows_is_meant() -> None:
    assert quiet("TC521", beside(0, 32)) is Verdict.HELD
    assert mentions(fires("TC521", beside(0, 0)).observed, 32, 64)
    # So many rows would not be unrecorded by chance
    assert mentions(fires("TC521", beside(200, 32)).observed, 32, 264)


def test_quiet_on_rows_that_are_evaluated_first() -> None:
    run = net()
    train(run, of(*range(100, 228)))
    evaluate(run, of(*range(64)))
    train(run, of(*range(40), *range(300, 400)))
    assert quiet("TC521", run.build()) is Verdict.HELD


def folds(begin: Callable[[TraceBuilder], object]) -> list[Event]:
    run = net()
    for fold in range(4):
        begin(run)
        held = range(fold * 64, fold * 64 + 64)
        evaluate(run, of(*held), 2 * fold + 1)
        train(run, of(*[one for one in range(256) if one not in held]), 2 * fold)
        evaluate(run, of(*held), 2 * fold + 1)
    return run.build()


def test_cross_validation_is_quiet_where_each_fold_begins_again() -> None:
    def by_load(run: TraceBuilder) -> None:
        run.load("Net")

    def by_optimizer(run: TraceBuilder) -> None:
        run.model(f"Net{len(run.models)}", MLP).optimizer()

    assert quiet("TC521", folds(by_load)) is Verdict.HELD
    assert quiet("TC521", folds(by_optimizer)) is Verdict.HELD


def test_a_load_before_the_last_evaluation_hides_nothing() -> None:
    run = net()
    train(run, of(*shuffled(1)[:256]))
    run.load("Net")
    evaluate(run, of(*shuffled(2)[256:]))
    assert fires("TC521", run.build()).variables == ("loader1",)


def test_rows_of_an_evaluation_within_a_step_are_not_trained_on() -> None:
    run = net()
    rows = of(*range(256))
    for start in range(0, 256, SIZE):
        run.begin_step()
        deliver(run, rows[start : start + SIZE], 0)
        if start % 64 == 0:
            evaluate(run, of(*range(1000, 1064)))
        run.zero_grad().forward().backward().optimizer_step()
    assert quiet("TC521", run.build()) is Verdict.HELD


def rank(number: int, trained: Rows, evaluated: Rows, *, wrap: bool = True) -> TraceBuilder:
    run = RankBuilder(number)
    run.model("Net", MLP)
    if wrap:
        run.wrap()
    run.optimizer()
    for epoch in range(2):
        train(run, trained, epoch=epoch)
        evaluate(run, evaluated, epoch=epoch)
    return run


def ranks(seeds: Sequence[int], *, wrap: bool = True) -> list[Event]:
    orders = map(shuffled, seeds)
    return merged(
        *(
            rank(number, of(*order[:256]), of(*order[256:]), wrap=wrap)
            for number, order in enumerate(orders)
        )
    )


def test_fires_on_rows_that_another_rank_trains_on(golden: Golden) -> None:
    finding = fires("TC521", ranks((1, 2)))
    assert mentions(finding.message, "rank 0", "rank 1")
    golden(finding)


def test_quiet_on_one_split_for_all_ranks_and_on_ranks_that_train_apart() -> None:
    assert quiet("TC521", ranks((1, 1))) is Verdict.HELD
    assert quiet("TC521", ranks((1, 2), wrap=False)) is Verdict.HELD


def test_judges_nothing_after_steps_that_were_not_recorded() -> None:
    run = net()
    train(run, of(*shuffled(1)[:256]))
    run.skipped_steps(1)
    evaluate(run, of(*shuffled(2)[256:]))
    assert quiet("TC521", run.build()) is Verdict.HELD


def sets(kind: str) -> tuple[Dataset[Any], Dataset[Any]]:
    """The training and the validation set of a program."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(300, 6, generator=draw)
    data, order = TensorDataset(x, (x[:, 0] > 0).long()), torch.randperm(300, generator=draw)
    if kind == "a margin twice":
        return Subset(data, order[:240].tolist()), Subset(data, order[200:].tolist())
    if kind == "a cut":
        return Subset(data, order[:240].tolist()), Subset(data, order[240:].tolist())
    if kind == "a part of training":
        whole = Subset(data, order[:240].tolist())
        return whole, Subset(whole, range(60))
    return Subset(data, order[:240].tolist()), data


@pytest.mark.parametrize(
    ("kind", "is_wrong"),
    [
        ("a margin twice", True),
        ("a cut", False),
        ("a part of training", False),
        ("all data", False),
    ],
)
def test_real_loaders(tmp_path: Path, kind: str, is_wrong: bool) -> None:
    trained, evaluated = sets(kind)
    with recording(tmp_path) as run:
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model.train()
            for x, y in DataLoader(trained, batch_size=30, shuffle=True):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for x, _ in DataLoader(evaluated, batch_size=20):
                    model(x)
    if is_wrong:
        assert mentions(fires("TC521", run.events).observed, 40, 100)
    else:
        assert quiet("TC521", run.events) is Verdict.HELD
