"""The samples of the batch change places: each must keep its result."""

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
from traincheck.collect.probes.batch import Batch, InnerBatches
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.probes.laboratory import Bench, distance, rows
from traincheck.collect.probes.operations import Operation, first_of, taped
from traincheck.schema.probes.names import Experiments

TOLERANCE = 1e-3  # of the largest value


class BatchPlace(Experiment):
    """Rolls the batch by one."""

    name: ClassVar[str] = Experiments.BATCH_PLACE
    is_of_module: ClassVar[bool] = True

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        outcome = laboratory.measure(lambda: _compared(call))
        if outcome.reason:
            return unobservable(outcome.reason)
        return result_of(outcome.told, TOLERANCE, ("change", "samples"), ("operation",))


def _compared(call: Call) -> dict[str, Any]:
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
    if change > TOLERANCE:
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
        if distance(a, b.roll(-1, 0)) > TOLERANCE:
            return True
    return False
