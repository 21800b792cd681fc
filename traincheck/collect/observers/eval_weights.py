"""State in evaluation: the weights that are used, and what is written and drawn meanwhile.

Only the first forwards of some evaluations are observed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from traincheck.collect.observers.base import Hook, Observer
from traincheck.collect.observers.worker_rng import States, states
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.fingerprint import fingerprint, is_at_hand
from traincheck.collect.tensors.reading import detached, is_opaque, modes
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.schema.marks import Marks
from traincheck.schema.observations.models import EvalEffects, EvalWeights, EvalWrites

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder
    from traincheck.collect.tracking.tracked_model import TrackedModel

_FORWARDS = 2  # observed forwards of an evaluation: the first may initialize or normalize
_LARGEST = 1 << 22  # observed elements of a model
_MOST_VALUES = 64
_MOST_NAMES = 20
_TOLERANCE = 1e-4  # repeated normalization changes the last digits

_Found = dict[str, torch.Tensor]


class _Model:
    """One model, as it was when the first forward of an evaluation began.

    Attributes:
        written: parameters that this forward wrote.
        progress: of training.
        buffers: the object and the number of writes of each buffer, by name.
        generators: states of the random generators.
    """

    def __init__(self) -> None:
        self.use = UseSchedule(_FORWARDS)
        self.written: set[str] = set()
        self.progress = (0, 0, 0)
        self.buffers: dict[str, tuple[int, int]] = {}
        self.generators: States = {}


class EvalWeightObserver(Observer):
    """Compares the trained parameters of a model before and after forwards without grad.

    Buffers and random generators are compared from one forward in evaluation mode to the next.

    is_open: whether such a forward is running.
    """

    produces: ClassVar = (EvalWeights, EvalWrites, EvalEffects)
    hook: ClassVar = Hook.FORWARD

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self.is_open = False
        self._models: dict[str, _Model] = {}
        self._found: _Found = {}
        self._copies: _Found = {}
        self._digests: list[str | None] = []
        self._trained_so_far = (0, 0, 0)

    def enter(self, em: Emitter, root: TrackedModel, *, training: bool) -> None:
        """A forward begins. training: the mode of its model."""
        self.is_open = False
        step, so_far = self._session.clock.step, self._progress()
        if not (self.is_wanted and any(so_far)) or modes():  # nothing was trained so far
            return
        model = self._models.setdefault(root.name, _Model())
        is_due = model.use.is_due(step)
        if model.use.times == 1:
            model.written.clear()
        if not is_due:
            return
        self._found = self._trained(root)
        if not self._found:
            return
        self._digests = [fingerprint(tensor) for tensor in self._found.values()]
        if model.use.times == 1:
            values = dict(list(zip(self._found, self._digests))[:_MOST_VALUES])
            write(em, EvalWeights(root.name, values))
        if training:  # modules may write on purpose then
            self._found = {}
            return
        buffers, generators = _buffers(root), states(None)
        if model.use.times == 1:
            model.progress, model.buffers, model.generators = so_far, buffers, generators
        elif model.progress == so_far:
            names = [name for name, now in buffers.items() if model.buffers.get(name, now) != now]
            drawn = [one for one, state in model.generators.items() if generators[one] != state]
            first = tuple(sorted(names)[:_MOST_NAMES])
            write(em, EvalEffects(root.name, len(buffers), len(names), first, tuple(drawn)))
        self._copies = {name: self._found[name].detach().clone() for name in model.written}
        self._trained_so_far, self.is_open = so_far, True

    def leave(self, em: Emitter, root: TrackedModel) -> None:
        """The forward has ended."""
        self.is_open = False
        found, self._found = self._found, {}
        copies, self._copies = self._copies, {}
        if self._progress() != self._trained_so_far:
            return  # an evaluation that trains
        model = self._models[root.name]
        changed = {
            name
            for (name, tensor), digest in zip(found.items(), self._digests)
            if fingerprint(tensor) not in (None, digest)
        }
        if model.use.times < _FORWARDS:
            model.written = changed
            return
        names = sorted(
            name for name in changed & copies.keys() if _differ(found[name], copies[name])
        )
        if names:
            write(em, EvalWrites(root.name, tuple(names[:_MOST_NAMES]), len(names)))

    def _progress(self) -> tuple[int, int, int]:
        steps = self._session.steps
        return steps.step, steps.counters["optimizer_step"], steps.counters["backward"]

    def _trained(self, root: TrackedModel) -> _Found:
        """Parameters of a model that an optimizer updates, by name, up to so many elements."""
        held = self._session.live.optimized_ids()
        found: _Found = {}
        left = _LARGEST
        for tensor, (variable, _) in root.parameters:
            if tensor is None or id(tensor) not in held or not tensor.requires_grad:
                continue
            left -= tensor.numel()
            if left < 0:
                break
            if is_at_hand(tensor):
                found[variable.name] = tensor
        return found


def _buffers(root: TrackedModel) -> dict[str, tuple[int, int]]:
    """The object and the number of writes of each buffer, where torch counts them."""
    return {
        variable.name: (id(tensor), tensor._version)
        for variable, tensor in root.buffers_now()
        if not (is_opaque(type(tensor)) or tensor.is_inference())
    }


def _differ(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    now = detached(tensor)
    return not torch.allclose(now, before, rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True)


COMPLETE_FORWARDS = 32  # of a model in a step that are recorded with the calls within them,
EVERY_NTH = 32  # and the interval of later ones


# ``generate()`` calls a model once per token. After the first forwards of a step, more of them
# add size to a trace, but no evidence for rules.
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
        has_ranks = torch.distributed.is_available() and torch.distributed.is_initialized()
        if times <= COMPLETE_FORWARDS or times % EVERY_NTH == 0 or has_ranks:
            return False
        if not self._is_marked:  # from here on, calls that invariants miss may have happened
            self._is_marked = True
            em.event("mark", {"text": Marks.FOLDED})
        return True
