"""The vector of the padding index is zeroed: the loss must stay what it is.

It gets no gradient. If it is not zero and takes part, it adds a constant that nothing has learned.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from traincheck.collect.probes.base import Call, Experiment, Laboratory, Result, unobservable
from traincheck.collect.tensors.reading import is_a, modules_in, own
from traincheck.schema.probes.names import Experiments, Status

TOLERANCE = 1e-5  # of the loss
_MOST = 4


class PaddingRow(Experiment):
    """Zeroes what an embedding gives for its padding index."""

    name: ClassVar[str] = Experiments.PADDING_ROW

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        parts = list(modules_in(call.module))
        found = [part for part in parts if _has_row(part) and not _is_shared(part, parts)][:_MOST]
        if not found:
            return None

        def zero(embedding: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
            return result.masked_fill((args[0] == embedding.padding_idx).unsqueeze(-1), 0.0)

        def change() -> None:
            for part in found:
                part.register_forward_hook(zero)

        outcome = laboratory.replay(change)
        if outcome.reason:
            return unobservable(outcome.reason)
        loss = float(outcome.told["loss"])
        moved = abs(loss - laboratory.loss) / max(abs(laboratory.loss), 1e-6)
        numbers = {"loss": laboratory.loss, "without": loss, "change": moved}
        if moved <= TOLERANCE:
            return Result(numbers=numbers)
        return Result(status=Status.MOVED, numbers=numbers, where=call.path(found[0]))


def _has_row(part: nn.Module) -> bool:
    if not is_a(part, nn.Embedding) or own(part).get("padding_idx") is None:
        return False
    with torch._C.DisableTorchFunction(), torch.no_grad():
        return bool(part.weight[part.padding_idx].any())


def _is_shared(part: Any, parts: list[nn.Module]) -> bool:
    """Whether another layer holds the vector too: an output layer, or what an adapter has copied.

    Then it is learned there, or was before the copy was made.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        weight, row = part.weight, part.padding_idx
        weights = [own(one).get("_parameters", {}).get("weight") for one in parts]
        alike = [
            torch.equal(other[row], weight[row])
            for other in weights
            if other is not None and other.shape == weight.shape and other.device == weight.device
        ]
        return sum(alike) > 1  # itself is one
