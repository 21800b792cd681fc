"""No activation overwrites its input: the loss must stay what it is to the last digits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from torch import nn

from traincheck.collect.probes.autograd import nodes_of
from traincheck.collect.probes.base import Call, Experiment, Laboratory, Result, Root, unobservable
from traincheck.collect.probes.batch import leaves
from traincheck.collect.tensors.reading import modules_in, own
from traincheck.schema.probes.names import Experiments, Status

TOLERANCE = 1e-6  # of the loss
_MOST_ALONE = 12


class InPlace(Experiment):
    """Turns ``inplace=True`` of layers off."""

    name: ClassVar[str] = Experiments.IN_PLACE

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        parts = [part for part in modules_in(call.module) if own(part).get("inplace") is True]
        if not parts:
            return None
        moved = _moved(laboratory, parts)
        if isinstance(moved, str):
            return unobservable(moved)
        numbers = {"change": moved, "layers": len(parts)}
        if moved <= TOLERANCE:
            return Result(numbers=numbers)
        where = ""  # the first layer that alone moves the loss
        for part in parts[:_MOST_ALONE]:
            alone = _moved(laboratory, [part])
            if not isinstance(alone, str) and alone > TOLERANCE:
                where = call.path(part)
                break
        return Result(status=Status.MOVED, numbers=numbers, where=where)


def _moved(laboratory: Laboratory, parts: Sequence[nn.Module]) -> float | str:
    """How far the loss moves without writing in place; or why that shows nothing."""
    results: list[Any] = []

    def change() -> None:
        for part in parts:
            part.inplace = False  # type: ignore[assignment]
            part.register_forward_hook(lambda part, args, result: results.append(result))

    def read(root: Root) -> Mapping[str, Any]:
        nodes = nodes_of(root.tensors)
        made = [t.grad_fn for result in results for t in leaves(result) if t.grad_fn is not None]
        return {"unused": any(node not in nodes for node in made)}

    outcome = laboratory.replay(change, read)
    if outcome.reason:
        return outcome.reason
    if outcome.told["unused"]:
        return "the program does not use the result of a layer, only what it has overwritten"
    return abs(float(outcome.told["loss"]) - laboratory.loss) / max(abs(laboratory.loss), 1e-6)
