"""Decide which evaluation forwards are recorded without the calls within them.

``generate()`` calls a model once per token. After the first forwards of a step, more of them add
size to a trace, but no evidence for rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.marks import Marks

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder
    from traincheck.collect.tracking.tracked_model import TrackedModel

COMPLETE_FORWARDS = 32  # of a model in a step that are recorded with the calls within them,
EVERY_NTH = 32  # and the interval of later ones


class EvalFolding:
    """Counts the forwards without grad of each model in a step.

    Inactive unless the settings request it, and with several ranks: collectives within a forward
    are compared between ranks.
    """

    def __init__(self, session: Recorder) -> None:
        self._session = session
        self._is_wanted = session.settings.fold
        self._step: int | None = -1
        self._times: dict[str, int] = {}
        self._is_marked = False

    def folds(self, em: Emitter, root: TrackedModel) -> bool:
        """Whether the forward without grad that begins is recorded as one call."""
        if not self._is_wanted:
            return False
        step = self._session.clock.step
        if step != self._step:
            self._step, self._is_marked = step, False
            self._times.clear()
        times = self._times[root.name] = self._times.get(root.name, 0) + 1
        if times <= COMPLETE_FORWARDS or times % EVERY_NTH == 0 or _is_distributed():
            return False
        if not self._is_marked:  # from here on, calls that invariants miss may have happened
            self._is_marked = True
            em.event("mark", {"text": Marks.FOLDED})
        return True


def _is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
