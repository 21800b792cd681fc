"""State of models that are evaluated: buffers that go on changing in eval mode.

No copy is made: buffers are compared between the first evaluations of a model. Only those count
that training changes, too: others are caches.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch
from torch import nn

from traincheck.collect.probes.base import Result
from traincheck.collect.probes.models import distance
from traincheck.collect.tensors.devices import is_remote
from traincheck.collect.tensors.reading import (
    PLAIN_TYPES,
    is_training,
    named_modules,
    own,
    table_of,
    undispatched,
)
from traincheck.collect.tracking.naming import unwrap
from traincheck.schema.probes.names import Status

TOLERANCE = 1e-6  # of the largest value
_TRAINED = 16  # calls in training that are observed
_EVALUATED = 32  # calls in evaluation
_MOST_VALUES = 1 << 20
_MOST_MODELS = 16


@dataclass(slots=True)
class _Model:
    """The state of one model.

    Attributes:
        buffers: persistent ones of numbers, by name, with references to their modules.
        values: at the last call.
        was_training: whether that was one in training.
        learned: names of those that training changes.
        trained, evaluated: calls that were observed.
    """

    ref: weakref.ref[nn.Module]
    buffers: dict[str, tuple[weakref.ref[nn.Module], str]]
    values: dict[str, torch.Tensor] = field(default_factory=dict)
    was_training: bool | None = None
    learned: set[str] = field(default_factory=set)
    trained: int = 0
    evaluated: int = 0


class Evaluations:
    """Follows the outermost calls of models."""

    def __init__(self) -> None:
        self._models: dict[int, _Model] = {}

    def called(self, module: nn.Module) -> Result | None:
        """A model is called. Returns a result where two evaluations in a row were compared."""
        known = self._models.get(id(module))
        if known is None or known.ref() is not module:
            if len(self._models) >= _MOST_MODELS:
                return None
            known = self._models[id(module)] = _Model(weakref.ref(module), _buffers(module))
        if not known.buffers:
            return None
        training = is_training(module)
        count = known.trained if training else known.evaluated
        if count >= (_TRAINED if training else _EVALUATED):
            known.was_training = None
            return None
        with undispatched():
            now = {
                name: buffer.detach().clone()
                for name, (ref, key) in known.buffers.items()
                if (part := ref()) is not None
                and type(buffer := table_of(part, "_buffers").get(key)) in PLAIN_TYPES
            }
            changed = {
                name: value
                for name, value in known.values.items()
                if name in now and value.shape == now[name].shape
                if not bool(torch.equal(value, now[name]))
            }
        found = None
        if training:
            known.trained += 1
            if known.was_training:
                known.learned |= changed.keys()
        else:
            known.evaluated += 1
            if known.was_training is False and not torch.is_grad_enabled():
                found = _result(known, changed, now)
        known.values, known.was_training = now, training
        return found


def _buffers(module: nn.Module) -> dict[str, tuple[weakref.ref[nn.Module], str]]:
    found, values = {}, 0
    for path, part in named_modules(unwrap(module)):
        for key, buffer in table_of(part, "_buffers").items():
            if key in own(part)["_non_persistent_buffers_set"] or type(buffer) not in PLAIN_TYPES:
                continue
            if buffer.is_floating_point() and not is_remote(buffer):
                found[f"{path}.{key}" if path else key] = (weakref.ref(part), key)
                values += buffer.numel()
    return found if values <= _MOST_VALUES else {}


def _result(
    known: _Model, changed: dict[str, torch.Tensor], now: dict[str, torch.Tensor]
) -> Result | None:
    if not known.learned:
        return None  # it has no statistics that training would change
    for name in sorted(known.learned & changed.keys()):
        part = known.buffers[name][0]()
        moved = distance(changed[name], now[name])
        if part is not None and not is_training(part) and moved > TOLERANCE:
            return Result(
                status=Status.MOVED,
                numbers={"change": moved},
                detail={"buffer": name, "class": type(part).__name__},
            )
    return Result(numbers={"change": 0.0})
