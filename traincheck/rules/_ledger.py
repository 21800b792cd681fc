"""Books that rules about parameters share: who holds what, and what became of gradients.

Judges nothing.

Looks at state may be written late (on CUDA), but always before the step ends. So the books of a
step are made when it ends, in the order of the calls after which the looks were taken.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from traincheck.facts.auxiliary_models import AuxiliaryModels
from traincheck.facts.provider import Fact, Facts
from traincheck.rules._forwards import Forward
from traincheck.rules._page import Page
from traincheck.rules._passes import Passes
from traincheck.schema.apis import MODAL, SOFTMAXES, Families, Marks, is_loose
from traincheck.schema.claims import Needs
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
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.modal import ModalModules
from traincheck.schema.resumptions import brings_back

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

# "new" is the moment of discovery, which every view records: it asks for no look.
DISCOVERY = Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"optimizer", "step"}))
GRADIENTS = Needs(
    calls=frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP}),
    states=frozenset({"gradient@backward", "parameter@hand"}),
)
# Forward passes, their modes, and what depends on these.
MODES = Needs(calls=MODAL | {Families.MODULE, Families.EVAL})


@dataclass(slots=True)
class Parameter:
    """A parameter that a module owns.

    names: several when weights are tied. began_zero: whether all of it was zero when it was found.
    """

    names: set[str]
    requires_grad: bool
    shape: tuple[int, ...] = ()
    dtype: str = ""
    began_zero: bool = False

    @property
    def name(self) -> str:
        return min(self.names)

    @property
    def root(self) -> str:
        return self.name.partition(".")[0]

    @property
    def is_fine_scale(self) -> bool:
        """Whether it may be the scale of a normalization, and is not in half precision."""
        return len(self.shape) == 1 and self.dtype in ("float32", "float64")

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it to train: FSDP leaves some parameters of a rank so."""
        return 0 in self.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """An optimizer and what it holds.

    event: of its groups as they are. made: the first of it, which tells where it was made. names:
    by identity; groups: index of the group by identity.
    """

    event: OptimizerEvent
    made: OptimizerEvent
    ids: frozenset[int]
    names: dict[int, str]
    groups: dict[int, int]

    @property
    def label(self) -> str:
        """``opt0 (Adam)``."""
        return f"{self.event.id} ({self.event.cls.rpartition('.')[2]})"

    def is_loose(self, identity: int) -> bool:
        """Whether no module ever owned this one: a tensor that is optimized for itself."""
        return is_loose(self.names[identity])


class Moment(NamedTuple):
    """A landmark call and what became of gradients up to its end, as identities of parameters.

    cleared: gradients that left, became zero or were replaced; before those in reached. reached:
    gradients that came or changed and are not zero. applied: of an optimizer step, the non-zero
    gradients that its parameters had. present: of an optimizer step, all of them, zero or not.
    batch: loader, epoch and index of the batch that came last before it.

    Calls of outermost modules with grad enabled are moments too: of family MODULE.
    """

    call: CallEvent
    family: str
    cleared: frozenset[int]
    reached: frozenset[int]
    applied: frozenset[int]
    present: frozenset[int]
    batch: tuple[str, int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """The books of one step.

    gradients: the last look at each. changed: parameters that differ since; flipped: that were
    frozen, or are no longer, at some moment of it; uncertain: whose looks could not tell. numbers:
    of parameters, the last look that took any. kept: by optimizer, gradients that it has applied
    in a step that was not recorded, and that are there when the first backward pass begins.
    has_own: an optimizer was given other gradients than backward() left. by_hand: parameters with
    gradients that the program has updated itself, as no optimizer has stepped so far; written: of
    which it has changed a gradient itself before a backward pass. uses: paths of the modules
    that were called, in order; the first call of each. forwards: in order of their first.
    softmaxes: calls of softmax with grad enabled.
    """

    event: StepEvent
    moments: Sequence[Moment]
    uses: Mapping[str, CallEvent]
    forwards: Sequence[Forward]
    softmaxes: Sequence[CallEvent]
    gradients: Mapping[int, StateEvent]
    reached: frozenset[int]
    changed: frozenset[int]
    flipped: frozenset[int]
    uncertain: frozenset[int]
    numbers: Mapping[int, StateEvent]
    kept: Mapping[str, frozenset[int]] = field(default_factory=dict)
    has_own: bool = False
    by_hand: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()

    @property
    def is_gap(self) -> bool:
        """The step was not recorded: what was awaited may have happened here."""
        return not self.event.recorded

    @property
    def is_whole(self) -> bool:
        """Whether what is absent really did not happen."""
        return self.event.recorded and self.event.complete

    def updates(self) -> list[Moment]:
        """Optimizer steps that ran to their end."""
        return [
            moment
            for moment in self.moments
            if moment.family == Families.OPTIMIZER_STEP and moment.call.exception is None
        ]

    @property
    def applied(self) -> frozenset[int]:
        """Parameters whose gradients were applied, by optimizers or by the program itself."""
        return self.by_hand.union(*(moment.applied for moment in self.updates()))


class Ledger(Fact):
    """The books of one process. ended: the facts of the step that ended last."""

    def __init__(self) -> None:
        self.holders: dict[str, Holder] = {}
        self.parameters: dict[int, Parameter] = {}
        self.loose: dict[int, Parameter] = {}  # that an optimizer holds and no module owns
        self.ever_reached: set[int] = set()
        self.buffers: set[str] = set()
        self.loaded: set[str] = set()  # targets of loads that changed something
        self.has_read = False  # a file that may hold what was trained before
        self.strided: set[str] = set()  # parameters that are not contiguous
        self.replaced: set[str] = set()  # names that went to other objects while training
        self.off: set[str] = set()  # modules with an attribute requires_grad that is False
        self.modal = ModalModules()
        self.auxiliary = AuxiliaryModels()
        self.passes = Passes()
        self._ids: dict[str, int] = {}
        self._nonzero: set[int] = set()
        self._present: set[int] = set()
        self._has_stepped = False  # any optimizer
        self.has_gap = False  # events were lost: optimizers and parameters may be among them
        self._batch: tuple[str, int, int] | None = None
        self._page = Page()
        self.ended: StepFacts | None = None

    def observe(self, event: Event) -> None:
        if isinstance(event, StateEvent):
            self._enter_state(event)
        elif isinstance(event, CallEvent):
            self._enter_call(event)
        elif isinstance(event, StepEvent):
            self.ended = self._turn(event)
        elif isinstance(event, OptimizerEvent):
            self._enter_optimizer(event)
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
        return {identity for holder in self.holders.values() for identity in holder.names}

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
        """``opt1 (Adam, train.py:12)``, with the line that made it; empty if there is one only."""
        holder = self.holders.get(owner)
        if holder is None or len(self.holders) == 1:
            return ""
        line = str(holder.made.where or "").rpartition("/")[2]
        return f"{holder.label[:-1]}, {line})" if line else holder.label

    def names(self, identities: Iterable[int]) -> list[str]:
        return sorted({self.name(identity) for identity in identities})

    def _enter_call(self, event: CallEvent) -> None:
        family = event.family or event.api
        if family == Families.MODULE:
            self._page.use(event, self._batch)
        elif family in _LANDMARKS:
            self._page.add(event, None, self._batch)
        elif family in MODAL:
            self._page.forwards.wait(event)
        elif family in SOFTMAXES and event.grad_enabled:
            self._page.softmaxes.append(event)

    def _enter_mark(self, event: MarkEvent) -> None:
        if event.text == Marks.UNTRAINED:
            self.auxiliary.look(event)
        elif event.text == Marks.REPLACED:
            self._page.has_own = True
        elif event.text == Marks.KEPT:
            self._page.kept = event
        elif event.text == Marks.WRITTEN:
            self._page.written += [event]
        elif event.text == Marks.MODEL:
            self.strided.update(event.data.get("strided") or ())
            modules = event.data.get("modules") or {}
            off = {path for path, f in modules.items() if f.get("requires_grad") is False}
            self.off = (self.off - modules.keys()) | off
            self.modal.enter(event)

    def _enter_optimizer(self, event: OptimizerEvent) -> None:
        names: dict[int, str] = {}
        groups: dict[int, int] = {}
        for index, group in enumerate(event.groups):
            for name, identity in zip(group.params, group.ids):
                names[identity] = name
                groups[identity] = index
                self._ids.setdefault(name, identity)
        known = self.holders.get(event.id)
        self.holders[event.id] = Holder(
            event=event,
            made=event if known is None else known.made,
            ids=frozenset(names),
            names=names,
            groups=groups,
        )

    def _enter_state(self, event: StateEvent) -> None:
        if event.role == "buffer":
            self.buffers.add(event.name)
        elif event.role == "gradient":
            identity = self._ids.get(event.name)  # now: the name may go to another object later
            if identity is not None and event.change != "unknown":
                self._page.add(event, identity)
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
            # The one case of nearly all events: a known parameter has other content.
            if (
                known is None
                or event.change != "content"
                or known.requires_grad is not event.requires_grad
            ):
                self._enter_parameter(event)

    def _books(self, name: str) -> dict[int, Parameter]:
        return self.loose if is_loose(name) else self.parameters

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
        parameter.names.add(name)
        parameter.requires_grad = event.requires_grad
        if event.summary is not None:
            parameter.shape, parameter.dtype = event.summary.shape, event.summary.dtype
            if event.change in ("new", "replaced"):
                if event.change == "replaced" and event.stage == "train" and event.step:
                    self.replaced.add(name)
                is_zero = (event.summary.stats or {}).get("norm") == 0
                parameter.began_zero = is_zero or event.summary.zero is True

    def _forget_name(self, name: str, identity: int) -> None:
        self._ids.pop(name, None)
        books = self._books(name)
        parameter = books.get(identity)
        if parameter is None:
            return
        parameter.names.discard(name)
        if not parameter.names:
            del books[identity]
        if identity not in self.parameters and identity not in self.loose:
            self._nonzero.discard(identity)
            self._present.discard(identity)
            self.ever_reached.discard(identity)

    def _turn(self, event: StepEvent) -> StepFacts:
        """Close the page of a step and begin the next."""
        page, self._page = self._page, Page()
        self.has_gap |= event.is_gap
        if not event.recorded:
            # Gradients came and went unseen; a look after the gap tells what there is, not since
            # when.
            self._nonzero.clear()
            self._present.clear()
        moments = self._walk(page) if event.recorded else []
        reached = frozenset[int]().union(*(moment.reached for moment in moments))
        self.ever_reached |= reached
        self._has_stepped |= any(event.counters.get(name) for name in _UPDATES)
        by_hand = frozenset() if self._has_stepped else reached & page.changed
        # Of those replaced nothing more is seen
        self._nonzero.intersection_update(self.parameters.keys() | self.loose.keys())
        return StepFacts(
            event=event,
            moments=moments,
            uses=page.uses,
            forwards=list(page.forwards.entries.values()),
            softmaxes=page.softmaxes,
            gradients=page.gradients(),
            reached=reached,
            changed=frozenset(page.changed),
            flipped=frozenset(page.flipped),
            uncertain=frozenset(page.uncertain),
            numbers=page.numbers,
            kept=self._kept(page.kept),
            has_own=page.has_own,
            by_hand=by_hand,
            written=frozenset(self._named(name for mark in page.written for name in mark.names)),
        )

    def _named(self, names: Iterable[str]) -> set[int]:
        return {self._ids[name] for name in names if name in self._ids}

    def _kept(self, mark: MarkEvent | None) -> dict[str, frozenset[int]]:
        """Whose gradients a mark names, by the optimizers that it names."""
        if mark is None:
            return {}
        ids = self._named(mark.names)
        return {o: h.ids & ids for o, h in self.holders.items() if o in mark.owners}

    def _walk(self, page: Page) -> list[Moment]:
        spans = {entry.span for entry in page.entries if isinstance(entry, CallEvent)}
        looks: dict[int, list[tuple[StateEvent, int]]] = defaultdict(list)
        stray = False
        for look, identity in zip(page.entries, page.ids):
            if isinstance(look, StateEvent) and identity is not None:
                if look.after in spans:
                    looks[look.after].append((look, identity))
                else:
                    stray = True
        written = {(mark.after, name) for mark in page.written for name in mark.names}
        moments: list[Moment] = []
        cleared: set[int] = set()
        reached: set[int] = set()
        for entry, identity, batch in zip(page.entries, page.ids, page.batches):
            if isinstance(entry, CallEvent):
                for look, parameter in looks.get(entry.span, ()):
                    if (entry.span, look.name) in written:  # before it began, by the program
                        written.discard((entry.span, look.name))
                    else:
                        self._gradient(look, parameter, cleared, reached)
                moments.append(self._moment(entry, cleared, reached)._replace(batch=batch))
                cleared, reached = set(), set()
            elif stray and identity is not None and entry.after not in spans:
                self._gradient(entry, identity, cleared, reached)
        return moments

    def _gradient(
        self, look: StateEvent, identity: int, cleared: set[int], reached: set[int]
    ) -> None:
        if look.summary is None:
            cleared.add(identity)
            self._nonzero.discard(identity)
            self._present.discard(identity)
            return
        self._present.add(identity)
        # Set to None by hand and computed again: what was there before is gone.
        if look.change != "content":
            cleared.add(identity)
        if look.summary.zero is True:
            cleared.add(identity)
            self._nonzero.discard(identity)
        else:
            reached.add(identity)
            self._nonzero.add(identity)

    def _moment(self, call: CallEvent, cleared: set[int], reached: set[int]) -> Moment:
        family = call.family or call.api
        applied: frozenset[int] = frozenset()
        present: frozenset[int] = frozenset()
        if family == Families.ZERO_GRAD:
            zeroed = self._zeroed_by(call)
            cleared |= zeroed
            # What the same look finds set anew, by the program, is there afterwards.
            self._nonzero -= cleared - reached
            if call.args.get("set_to_none") is not False:
                self._present -= zeroed - reached
        elif family == Families.OPTIMIZER_STEP and call.owner in self.holders:
            applied = self.holders[call.owner].ids & self._nonzero
            present = self.holders[call.owner].ids & self._present
        return Moment(call, family, frozenset(cleared), frozenset(reached), applied, present)

    def _zeroed_by(self, call: CallEvent) -> set[int]:
        """Whose gradients a zero_grad clears, where no look after it tells."""
        if call.owner in self.holders:
            return set(self.holders[call.owner].names)
        below = f"{call.module}."
        return {
            identity
            for identity, parameter in self.parameters.items()
            if call.module is None or any(name.startswith(below) for name in parameter.names)
        }


class StepMonitor(ABC):
    """A monitor that judges whole steps by the state of training."""

    uses: ClassVar[Sequence[type[Fact]]] = (Ledger,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))
    ledger: Ledger

    def __init__(self) -> None:
        self.triggered = 0

    def bind(self, facts: Facts) -> None:
        self.ledger = facts.of(Ledger)

    def observe(self, event: Event) -> Sequence[Violation]:
        facts = self.ledger.ended if isinstance(event, StepEvent) else None
        return () if facts is None else self.judge(facts)

    def finish(self) -> Sequence[Violation]:
        """Nothing: a step that is not over proves nothing."""
        return ()

    @abstractmethod
    def judge(self, facts: StepFacts) -> Sequence[Violation]:
        """Violations that a step proves; also told of steps that were not recorded."""


def proof(
    what: tuple[str, Symptom] | tuple[str, Symptom, str],
    facts: StepFacts,
    *,
    subject: Subject,
    message: str,
    expected: str,
    observed: str,
    evidence: Sequence[Event] = (),
    step: int | None = None,
) -> Violation:
    """A violation at the step of ``facts``, or at an earlier one that it proves.

    what: code of the rule, the symptom, and perhaps the optimizer of several.
    """
    return Violation(
        check_id=what[0],
        step=facts.event.step if step is None else step,
        rank=facts.event.rank,
        stage="eval" if evidence and evidence[-1].stage == "eval" else "train",
        subject=subject,
        symptom=what[1],
        message=message,
        expected=expected,
        observed=observed,
        evidence=tuple(evidence) or (facts.event,),
        optimizer="".join(what[2:]),
    )
