"""Optimizers over copies of a model's parameters, e.g. float32 master weights."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import Parameter
from traincheck.readings.training_state import TrainingState


def are_masters(ledger: TrainingState, holder: Holder, root: str) -> bool:
    """Whether the tensors of an optimizer can be copies of all trained parameters of a model.

    There is one tensor per parameter, or flat tensors of the same total size (fp16 utilities).
    """
    books = ledger.loose | ledger.parameters
    theirs = [books[identity] for identity in holder.ids if identity in books]
    ours = [p for p in ledger.parameters.values() if p.root == root and p.requires_grad]
    if not theirs or not ours or len(theirs) > len(ours):
        return False
    if len(theirs) == len(ours):
        return sorted(p.shape for p in theirs) == sorted(p.shape for p in ours)
    is_flat = all(len(p.shape) == 1 for p in theirs)
    return is_flat and _size(theirs) == _size(ours)


def _size(parameters: Iterable[Parameter]) -> int:
    return sum(prod(parameter.shape) for parameter in parameters)
