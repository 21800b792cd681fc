"""Models that serve the training of another: whether their weights stay what they are.

A teacher or a reference model is called without grad, and no optimizer holds any of it. Looked at
is what is in training mode then, in the first steps and in each tenth. Judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.parameter import is_lazy

from traincheck.collect.emit import Emitter
from traincheck.collect.fingerprint import fingerprint, hex128
from traincheck.schema.apis import Marks

if TYPE_CHECKING:
    from traincheck.collect.session import Session

MOMENT = "untrained"  # in ``parameter@untrained``
_FIRST, _EVERY = 8, 10  # steps with such a call at which is looked
_SAMPLES = 16  # parameters, spread over the model
_LARGEST = 1 << 14  # elements of each of them


class _Use:
    """One model. step: in which it was called last."""

    def __init__(self) -> None:
        self.step = -1
        self.steps = 0


class Untrained:
    """Looks at models that are called without grad, in training mode."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.is_wanted = session.tracker.wants("parameter", MOMENT)
        self._uses: dict[str, _Use] = {}

    def enter(self, em: Emitter, module: torch.nn.Module, path: str) -> None:
        """A forward without grad of a module in training mode begins. path: of the module."""
        step = self._session.steps.step
        use = self._uses.setdefault(path, _Use())
        if use.step == step:
            return
        use.step = step
        use.steps += 1
        if use.steps <= _FIRST or not use.steps % _EVERY:
            weights = self._weights(module)
            if weights is not None:
                em.event(
                    "mark", {"text": Marks.UNTRAINED, "data": {"model": path, "weights": weights}}
                )

    def _weights(self, module: torch.nn.Module) -> str | None:
        """What differs once any of the parameters was written to; None if one is being trained.

        Writes in place are counted by torch. Those by way of ``.data`` are not: hence the samples.
        """
        parameters = list(module.parameters())
        held = self._session.held()
        if not parameters or not held or not held.isdisjoint(map(id, parameters)):
            return None
        if any(is_lazy(p) or p.is_inference() for p in parameters):
            return None
        writes = sum(p._version for p in parameters)
        small = [p for p in parameters if 0 < p.numel() <= _LARGEST]
        samples = small[:: -(-len(small) // _SAMPLES)] if small else []
        state = " ".join([str(writes), *(str(fingerprint(p)) for p in samples)])
        return hex128(state.encode())
