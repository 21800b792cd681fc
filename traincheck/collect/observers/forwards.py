"""Calls of models: numbers of their inputs, and weights of auxiliary models that change.

A teacher, a reference model or an average of weights is called without grad, and no optimizer holds
its parameters. They are scanned in the first steps and in every 10th. Models in training mode, and
models whose batch norms use their initial statistics, are distinguished.

Inputs in floating point are observed in training and in evaluation, at the first calls and some
later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.templates import MARK
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.fingerprint import fingerprint, hex128
from traincheck.collect.tensors.reading import (
    is_countable,
    is_lazy,
    is_training,
    modules_in,
    tensors_in,
)
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.model_structure import has_initial_statistics
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
    ModelInputs,
)

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_SAMPLES = 16  # parameters, spread over the model
_LARGEST = 1 << 14  # elements of each of them
_MOST_NORMS = 4  # batch norms of a model


class AuxiliaryModelObserver(Observer):
    """Scans models that are called without grad."""

    produces: ClassVar = (AuxiliaryTraining, AuxiliaryEval, AuxiliaryInitialNorms)
    hook: ClassVar = Hook.FORWARD

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._uses: dict[tuple[str, bool], UseSchedule] = {}  # by path and mode

    def enter(self, em: Emitter, module: torch.nn.Module, path: str, *, training: bool) -> None:
        """A forward without grad begins. path: of the module; training: its mode."""
        use = self._uses.setdefault((path, training), UseSchedule(1))
        if not use.is_due(self._session.steps.step):
            return
        weights = self._weights(module)
        if weights is None:
            return
        cls = dotted(type(module))
        if training:
            write(em, AuxiliaryTraining(path, cls, weights))
            return
        using = (  # batch norms that use statistics
            norm
            for norm in modules_in(module)
            if isinstance(norm, _BatchNorm) and not is_training(norm) and norm.track_running_stats
        )
        norms = list(islice(using, _MOST_NORMS))
        is_blank = bool(norms) and all(map(has_initial_statistics, norms))
        statistics = "copied" if norms and _is_mean(module) else None
        kind = AuxiliaryInitialNorms if is_blank else AuxiliaryEval
        write(em, kind(path, cls, weights, statistics))

    def _weights(self, module: torch.nn.Module) -> str | None:
        """A text that changes when any parameter is written; None if one is being trained.

        Torch counts writes in place, but not those through ``.data``: hence the samples.
        """
        parameters = list(tensors_in(module))
        held = self._session.live.optimized_ids()
        if not parameters or not held or not held.isdisjoint(map(id, parameters)):
            return None
        if any(is_lazy(p) or p.is_inference() for p in parameters):
            return None
        writes = sum(p._version for p in parameters)
        small = [p for p in parameters if 0 < p.numel() <= _LARGEST]
        samples = small[:: -(-len(small) // _SAMPLES)] if small else []
        state = " ".join([str(writes), *(str(fingerprint(p)) for p in samples)])
        return hex128(state.encode())


def _is_mean(module: torch.nn.Module) -> bool:
    """Whether this is a plain mean of weights whose buffers are copied from the latest model."""
    return (
        isinstance(module, AveragedModel)
        and not module.use_buffers
        and module.avg_fn is None
        and module.multi_avg_fn is None
        and is_countable(module.n_averaged)
        and host(module.n_averaged).item() > 1
    )


_CALLS = 4  # of an observed step
_MOST = 2  # tensors of a call


class ModelInputObserver(Observer):
    """Observes the inputs of outermost model calls."""

    produces: ClassVar = (ModelInputs,)
    hook: ClassVar = Hook.FORWARD

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._uses: dict[tuple[str, bool], UseSchedule] = {}

    def enter(
        self,
        em: Emitter,
        model: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        training: bool,
    ) -> None:
        """A forward begins: in training mode with grad, or in evaluation mode without."""
        if not self.is_wanted:
            return
        use = self._uses.setdefault((model, training), UseSchedule(_CALLS))
        if not use.is_due(self._session.clock.step):
            return
        found: list[bytes] = []
        for name, value in (*enumerate(args), *kwargs.items()):
            if type(value) is torch.Tensor and len(found) < _MOST:
                text = self._session.stats.arguments.for_model_input(em, value)
                if text:
                    found.append(b"%b:%b" % (orjson.dumps(str(name)), text))
        if found:
            head = orjson.dumps({"model": model, "training": training})[:-1]
            data = b'%b,"inputs":{%b}}' % (head, b",".join(found))
            em.write_json("mark", MARK % (ModelInputs.text.encode(), data))
