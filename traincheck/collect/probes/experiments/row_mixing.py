"""Another sample of the batch is changed: the results of all others must stay what they are.

The model runs in eval mode, where batch norms do not mix samples either. One sample becomes a copy
of another, so that ids, masks and one-hot rows stay valid. The operation that mixes is proven: with
its result of the unchanged batch put back, the results of the other samples return.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch

from traincheck.collect.probes.base import (
    Call,
    Experiment,
    Laboratory,
    Result,
    result_of,
    unobservable,
)
from traincheck.collect.probes.batch import Batch, InnerBatches, leaves, with_row
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.probes.models import Bench, distance, rows
from traincheck.collect.probes.operations import Operation, Tape, first_of, taped
from traincheck.handlers import give_back
from traincheck.schema.probes.names import Experiments

TOLERANCE = 2e-4  # of the largest value
_MOST_SUSPECTS = 12
# Rows that are exchanged by an index, as between the nodes of a graph
_BY_INDEX = frozenset(
    {
        "index_add", "index_add_", "index_select", "scatter", "scatter_add", "scatter_add_",
        "scatter_reduce", "segment_reduce",
    }
)  # fmt: skip
# Samples that are chosen or counted against each other, as by the capacity of an expert; statistics
# of the batch by design.
_BY_DESIGN = _BY_INDEX | {
    "argsort", "batch_norm", "cdist", "cumsum", "kthvalue", "sort", "topk", "unique",
}  # fmt: skip
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "mm", "spmm", "einsum", "addmm")


class RowMixing(Experiment):
    """Changes one sample, and compares the others."""

    name: ClassVar[str] = Experiments.ROW_MIXING
    is_of_module: ClassVar[bool] = True

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        outcome = laboratory.measure(lambda: _compared(call))
        told = outcome.told
        if not outcome.reason and told["change"] > TOLERANCE and told.get("is_by_design"):
            return unobservable(f"{told['operation']} relates samples to each other")
        numbers, detail = ("change", "samples", "own_change"), ("operation", "class", "first")
        return result_of(outcome, TOLERANCE, numbers, detail)


def _compared(call: Call) -> dict[str, Any]:
    batch = Batch.of_samples(call)
    row = 0
    other = batch.other_than(row)
    if other is None:
        raise UnfitError("all samples of the batch are equal")
    bench = Bench(call.module)
    inner = InnerBatches(call.module, batch.size)
    before = bench.forward(batch.given)
    inner.remove()
    if inner.reason:
        raise UnfitError(inner.reason)
    again = bench.forward(batch.given)
    base, second = rows(before, batch.size), rows(again, batch.size)
    if not base:
        raise UnfitError("no result has one row for each sample")
    if len(base) != len(second) or any(distance(a, b) for a, b in zip(base, second)):
        raise UnfitError("the model in eval mode gives two results for one batch")
    given = batch.mapped(with_row(row, other))
    changed = rows(bench.forward(given), batch.size)
    change, own = _changes(base, changed, row)
    found: dict[str, Any] = {"change": change, "own_change": own, "samples": batch.size}
    if change <= TOLERANCE:
        return found
    if batch.is_ambiguous or _is_second(bench, batch, base):
        raise UnfitError("the samples may be along the second dimension of the inputs")
    return {**found, **_culprit(call, bench, batch, given, row)}


def _changes(
    base: list[torch.Tensor], changed: list[torch.Tensor], row: int
) -> tuple[float, float]:
    """How far the other rows have moved, and how far the changed one."""
    if len(base) != len(changed) or any(a.shape != b.shape for a, b in zip(base, changed)):
        raise UnfitError("the shapes of the results depend on the content of the batch")
    others = [i for i in range(len(base[0])) if i != row]
    return (
        max(distance(a[others], b[others], a) for a, b in zip(base, changed)),
        max(distance(a[row], b[row], a) for a, b in zip(base, changed)),
    )


def _is_second(bench: Bench, batch: Batch, base: list[torch.Tensor]) -> bool:
    """Whether entries along dim 1 do not depend on each other: then these are the samples."""
    sizes = {t.shape[1] for t in leaves(batch.given) if t.dim() > 1}
    size = max(sizes, default=0)
    if len(sizes) != 1 or size < 2 or size == batch.size:
        return False
    along = Batch(batch.given, size)

    def change(tensor: torch.Tensor) -> torch.Tensor:
        changed = tensor.detach().clone()
        changed[:, 0] = changed[:, 1]
        return changed

    try:
        changed = rows(bench.forward(along.mapped(change, dim=1)), batch.size)
    except Exception as error:  # the model takes no such inputs
        give_back(error)
        return False
    pairs = [(a, b) for a, b in zip(base, changed) if a.dim() > 1 and a.shape[1] == size]
    if not pairs:
        return False
    moved = max(distance(a[:, 1:], b[:, 1:], a) for a, b in pairs)
    return moved <= TOLERANCE < max(distance(a[:, :1], b[:, :1], a) for a, b in pairs)


def _culprit(call: Call, bench: Bench, batch: Batch, given: Any, row: int) -> dict[str, Any]:
    """The operation that mixes samples: with its first result put back, the others are unmoved."""
    first, second = taped(bench, batch.given), taped(bench, given)
    names = [(one.name, len(one.results)) for one in first]
    if names != [(one.name, len(one.results)) for one in second]:
        return {}
    if any(_is_of_pairs(*both, row) for both in zip(first, second)):
        raise UnfitError(
            "samples are compared with each other: a result has a number for each pair"
        )
    exchanging = [each.name for each in first if _exchanges(each, batch.size)]
    if exchanging and not call.are_samples:
        raise UnfitError(f"the inputs are the same in each call, and {exchanging[0]} relates rows")
    base = rows(bench.forward(batch.given), batch.size)
    suspects = [
        index
        for index, (one, two) in enumerate(zip(first, second))
        if _spreads(one, two, batch.size)
    ]
    whole = _changes(base, rows(bench.forward(given), batch.size), row)[0]
    for index in suspects[:_MOST_SUSPECTS]:
        with Tape(call.module, {index: first[index].results}):
            result = rows(bench.forward(given), batch.size)
        left = _changes(base, result, row)[0]
        if left <= TOLERANCE:
            return _described(call, first[index], batch.size)
        if left != whole:  # later ones mix them, too
            # A batch norm that takes the batch in eval mode was built on the way.
            is_meant = any(
                _is_meant(first[i], batch.size) and "batch_norm" not in first[i].name
                for i in suspects
            )
            found = _described(call, first[index], batch.size)
            return {**found, "is_by_design": is_meant, "first": "yes"}
    return {}


def _is_of_pairs(one: Operation, two: Operation, row: int) -> bool:
    """Whether a result has a number for each pair of samples: a column has changed with its row."""
    for a, b in zip(one.results, two.results):
        if a.dim() == 2 and a.shape == b.shape and a.shape[0] == a.shape[1] > 2:
            changed = a != b
            changed[row] = False
            if bool(changed[:, row].any()) and not changed.sum() > changed[:, row].sum():
                return True
    return False


def _spreads(one: Operation, two: Operation, size: int) -> bool:
    """Whether a larger part of a result has changed than one sample is of the batch."""
    for a, b in zip(one.results, two.results):
        if a.shape != b.shape or not a.numel():
            continue
        if not a.is_floating_point():
            share = float((a != b).double().mean())
        else:
            scale = a.abs().nan_to_num(0, 0, 0).max()
            share = float(((a - b).abs() > TOLERANCE * scale).double().mean())
        if share > 1.0 / size + 1e-9:
            return True
    return False


def _exchanges(operation: Operation, size: int) -> bool:
    """Whether it gives rows to each other, as between the nodes of a graph."""
    name, given = operation.name.rpartition(".")[2], operation.given
    if name == "__getitem__":
        return len(given) == 2 and given[0][0][:1] == (size,) and given[1][1] is torch.int64
    return name in _BY_INDEX or (name in _PRODUCTS and bool(given) and given[0][0] == (size, size))


def _is_meant(operation: Operation, size: int) -> bool:
    """Whether it relates samples to each other by design."""
    return operation.name.rpartition(".")[2] in _BY_DESIGN or _exchanges(operation, size)


def _described(call: Call, operation: Operation, size: int) -> dict[str, Any]:
    module = operation.module
    return {
        "operation": operation.name,
        "is_by_design": _is_meant(operation, size),
        "place": operation.place,
        "where": call.path(module) if module is not None else call.name,
        "class": type(module).__name__ if module is not None else "",
    }


ROLLED_TOLERANCE = 1e-3  # of the largest value


class BatchPlace(Experiment):
    """Rolls the samples of the batch by one: each must keep its result."""

    name: ClassVar[str] = Experiments.BATCH_PLACE
    is_of_module: ClassVar[bool] = True

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        outcome = laboratory.measure(lambda: _rolled(call))
        return result_of(outcome, ROLLED_TOLERANCE, ("change", "samples"), ("operation",))


def _rolled(call: Call) -> dict[str, Any]:
    batch = Batch.of_samples(call)
    if not call.are_samples:
        raise UnfitError("the inputs are the same in each call: their rows can be one graph")
    bench = Bench(call.module)
    inner = InnerBatches(call.module, batch.size)
    base = rows(bench.forward(batch.given), batch.size)
    inner.remove()
    if bench.draws:
        raise UnfitError("the model draws random numbers in eval mode")
    if inner.reason or batch.is_ambiguous:
        raise UnfitError(inner.reason or "two dimensions of an input have the size of the batch")
    if not base:
        raise UnfitError("no result has one row for each sample")
    again = rows(bench.forward(batch.given), batch.size)
    given = batch.mapped(lambda tensor: tensor.roll(1, 0))
    rolled = rows(bench.forward(given), batch.size)
    if len(again) != len(base) or len(rolled) != len(base):
        raise UnfitError("the shapes of the results depend on the content of the batch")
    if any(distance(a, b) for a, b in zip(base, again)):
        raise UnfitError("the model in eval mode gives two results for one batch")
    change = max(distance(a, b.roll(-1, 0)) for a, b in zip(base, rolled))
    found: dict[str, Any] = {"change": change, "samples": batch.size}
    if change > ROLLED_TOLERANCE:
        operations, others = taped(bench, batch.given), taped(bench, given)
        found |= first_of(call, operations, others, partial(_breaks, batch.size))
    return found


def _breaks(size: int, one: Operation, two: Operation) -> bool:
    """Whether rows of a result do not follow those of the batch."""
    for a, b in zip(one.results, two.results):
        if a.dim() < 2 or a.shape != b.shape or a.shape[0] != size or not a.is_floating_point():
            continue
        if bool(torch.equal(a, b)):  # no function of the samples, such as a table of positions
            continue
        if distance(a, b.roll(-1, 0)) > ROLLED_TOLERANCE:
            return True
    return False
