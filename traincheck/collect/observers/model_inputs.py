"""Numbers of the inputs of models in training and in evaluation.

Inputs in floating point are observed, at the first calls and some later ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import torch

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.templates import MARK
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.observations.models import ModelInputs

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

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
