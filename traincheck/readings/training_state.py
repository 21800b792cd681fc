"""The training state of one process: owners of parameters, and changes of gradients.

Scans may be written late (on CUDA), but always before the step ends. So the facts of a step are
made when it ends, in the order of the calls after which the scans took place.
"""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.readings import recorded
from traincheck.readings.gradients import Gradients
from traincheck.readings.loader_epochs import Passes
from traincheck.readings.modal_modules import AuxiliaryModels, ModalModules
from traincheck.readings.optimizers import Holders
from traincheck.readings.provider import RunState
from traincheck.readings.resumptions import brings_back
from traincheck.readings.step_changes import StepEntries
from traincheck.readings.step_facts import Parameter, StepFacts
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StateEvent,
    StepEvent,
)
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.gradients import (
    ReplacedGradients,
    UnclearedGradients,
    WrittenGradients,
)
from traincheck.schema.observations.models import AuxiliaryTraining, ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.torch_api import INITIALIZERS, MODAL, SOFTMAXES, Families
from traincheck.schema.words import is_unowned

_OBSERVATIONS: tuple[type[Observation], ...] = (
    AuxiliaryTraining,
    ReplacedGradients,
    UnclearedGradients,
    WrittenGradients,
    ModelStructure,
)
_LANDMARKS = frozenset(
    {
        Families.BACKWARD,
        Families.ZERO_GRAD,
        Families.OPTIMIZER_STEP,
        Families.SCALER_STEP,
        Families.SCALER_UPDATE,
        Families.SCALE,
        Families.UNSCALE,
        Families.CLIP_NORM,
        Families.CLIP_VALUE,
        Families.SCHEDULER_STEP,
        Families.SCHEDULER_CREATED,
        Families.EVAL,
    }
)

_UPDATES = ("optimizer_step", "scaler_step")  # counters


class TrainingState(RunState):
    """Follows the training of one process.

    ended: the facts of the step that ended last.
    """

    def __init__(self) -> None:
        self._holders = Holders()
        self.holders = self._holders.by_id
        self.parameters: dict[int, Parameter] = {}
        self.loose: dict[int, Parameter] = {}  # that an optimizer holds and no module owns
        self.ever_reached: set[int] = set()
        self.buffers: set[str] = set()
        self.loaded: set[str] = set()  # targets of loads that changed something
        self.has_read = False  # a file that may contain earlier training
        self.strided: set[str] = set()  # parameters that are not contiguous
        self.replaced: set[str] = set()  # names that were given to other objects during training
        self.off: set[str] = set()  # modules with an attribute requires_grad that is False
        self.modal = ModalModules()
        self.auxiliary = AuxiliaryModels()
        self.passes = Passes()
        self.born: dict[int, CallEvent] = {}  # identity -> its first initialization
        self._ids: dict[str, int] = {}
        self._gradients = Gradients(self.holders, self.parameters)
        self._has_stepped = False  # any optimizer
        self.has_gap = False  # events were lost, possibly with optimizers and parameters
        self._batch: tuple[str, int, int] | None = None
        self._page = StepEntries()
        self.ended: StepFacts | None = None

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._enter_state(event)
        elif isinstance(event, CallEvent):
            self._enter_call(event)
        elif isinstance(event, StepEvent):
            self.ended = self._turn(event)
        elif isinstance(event, OptimizerEvent):
            for identity, name in self._holders.enter(event).names.items():
                self._ids.setdefault(name, identity)
        elif isinstance(event, BatchEvent):
            self._batch = (event.loader, event.epoch, event.index)
            self.passes.enter(event)
        elif isinstance(event, CheckpointEvent):
            if brings_back(event):
                self.has_read |= event.op == "load"
                if event.op == "load_state_dict":
                    self.loaded.add(event.target or "")
        elif isinstance(event, MarkEvent):
            self._enter_mark(event)

    def held(self) -> set[int]:
        """Identities of all parameters that any optimizer holds."""
        return self._holders.held()

    def name(self, identity: int) -> str:
        """The name to show for a parameter."""
        parameter = self.parameters.get(identity)
        if parameter is not None:
            return parameter.name
        for holder in self.holders.values():
            if identity in holder.names:
                return holder.names[identity]
        return "a parameter"

    def one_of_several(self, owner: str) -> str:
        """``opt1 (Adam, train.py:12)``, with the line that created it; empty for the only one."""
        holder = self.holders.get(owner)
        if holder is None or len(self.holders) == 1:
            return ""
        line = short(holder.made.where)
        return f"{holder.label[:-1]}, {line})" if line else holder.label

    def names(self, identities: Iterable[int]) -> list[str]:
        return sorted({self.name(identity) for identity in identities})

    def _enter_call(self, event: CallEvent) -> None:
        family = event.family or event.api
        if family == Families.MODULE:
            self._page.use(event, self._batch)
        elif family in _LANDMARKS:
            self._page.add(event, self._batch)
        elif family in MODAL:
            self._page.forwards.wait(event)
        elif family in SOFTMAXES and event.grad_enabled:
            self._page.softmaxes.append(event)
        elif family in INITIALIZERS:
            identity = event.result.get("identity") if isinstance(event.result, dict) else None
            if isinstance(identity, int):
                self.born.setdefault(identity, event)

    def _enter_mark(self, event: MarkEvent) -> None:
        found = observed(event, *_OBSERVATIONS)
        if isinstance(found, AuxiliaryTraining):
            self.auxiliary.look(found, event.step)
        elif isinstance(found, ReplacedGradients):
            self._page.has_own = True
        elif isinstance(found, UnclearedGradients):
            self._page.kept = found
        elif isinstance(found, WrittenGradients):
            self._page.written.append(found)
        elif isinstance(found, ModelStructure):
            self.strided.update(found.strided)
            modules = found.modules
            off = {path for path, f in modules.items() if f.get("requires_grad") is False}
            self.off = (self.off - modules.keys()) | off
            self.modal.enter(found)

    def _enter_state(self, event: StateEvent) -> None:
        if event.role == "gradient":
            identity = self._ids.get(event.name)  # now: another object may have the name later
            if identity is not None and event.change != "unknown":
                self._page.look(event, identity)
        elif event.role == "buffer":
            self.buffers.add(event.name)
        elif event.role == "parameter":
            if event.change in ("content", "replaced"):
                self._page.changed.add(event.identity)
            elif event.change == "unknown":
                self._page.uncertain.add(event.identity)
            elif event.change == "flags":
                self._page.flipped.add(event.identity)
            if event.summary is not None and event.summary.stats:
                self._page.numbers[event.identity] = event
            known = self.parameters.get(event.identity) or self.loose.get(event.identity)
            # Nearly all events: a known parameter has changed content.
            if (
                known is None
                or event.change != "content"
                or known.requires_grad is not event.requires_grad
            ):
                self._enter_parameter(event)

    def _books(self, name: str) -> dict[int, Parameter]:
        return self.loose if is_unowned(name) else self.parameters

    def _enter_parameter(self, event: StateEvent) -> None:
        name, identity = event.name, event.identity
        known = self._ids.get(name)
        if known is not None and (event.change == "gone" or known != identity):
            self._forget_name(name, known)
        if event.change == "gone":
            return
        self._ids[name] = identity
        books = self._books(name)
        parameter = books.get(identity)
        if parameter is None:
            parameter = books[identity] = Parameter({name}, event.requires_grad)
        parameter.add_name(name)
        parameter.requires_grad = event.requires_grad
        if event.summary is not None:
            parameter.shape, parameter.dtype = event.summary.shape, event.summary.dtype
            if event.change in ("new", "replaced"):
                if event.change == "replaced" and event.stage == "train" and event.step:
                    self.replaced.add(name)
                is_zero = recorded.norm(event) == 0
                parameter.began_zero = is_zero or event.summary.zero is True

    def _forget_name(self, name: str, identity: int) -> None:
        self._ids.pop(name, None)
        books = self._books(name)
        parameter = books.get(identity)
        if parameter is None:
            return
        parameter.discard_name(name)
        if not parameter.names:
            del books[identity]
        if identity not in self.parameters and identity not in self.loose:
            self._gradients.forget(identity)
            self.ever_reached.discard(identity)

    def _turn(self, event: StepEvent) -> StepFacts:
        """End a step and begin the next."""
        page, self._page = self._page, StepEntries()
        self.has_gap |= event.is_gap
        if not event.recorded:
            # Gradients changed unrecorded; a scan after the gap shows the present ones, not since
            # when.
            self._gradients.forget()
        moments = self._gradients.walk(page) if event.recorded else []
        reached = frozenset[int]().union(*(moment.reached for moment in moments))
        self.ever_reached |= reached
        self._has_stepped |= any(event.counters.get(name) for name in _UPDATES)
        by_hand = frozenset() if self._has_stepped else reached & page.changed
        # Replaced parameters produce no further events
        self._gradients.nonzero.intersection_update(self.parameters.keys() | self.loose.keys())
        norms, broken = page.norms()
        return StepFacts(
            event=event,
            moments=moments,
            uses=page.uses,
            forwards=list(page.forwards.entries.values()),
            softmaxes=page.softmaxes,
            gradients=page.gradients,
            norms=norms,
            broken=broken,
            reached=reached,
            changed=frozenset(page.changed),
            flipped=frozenset(page.flipped),
            uncertain=frozenset(page.uncertain),
            numbers=page.numbers,
            kept=self._kept(page.kept),
            has_own=page.has_own,
            by_hand=by_hand,
            written=frozenset(self._named(name for found in page.written for name in found.names)),
        )

    def _named(self, names: Iterable[str]) -> set[int]:
        return {self._ids[name] for name in names if name in self._ids}

    def _kept(self, found: UnclearedGradients | None) -> dict[str, frozenset[int]]:
        """The gradients that were not cleared, by the optimizers that applied them."""
        if found is None:
            return {}
        ids = self._named(found.names)
        return {o: h.ids & ids for o, h in self.holders.items() if o in found.owners}
