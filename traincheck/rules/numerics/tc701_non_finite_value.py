"""NaN or infinity reaches the parameters. Names the place where it was first recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from traincheck.readings import recorded
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_LOSSES = 3  # consecutive steps with a loss that is not finite
_BY_HAND = "{observed}; the program's own update applied it."
_CONFIRMED = 2  # steps with non-finite gradients, if parameters are not scanned after each


class NonFiniteValue(BuiltInRule, code="TC701", severity="error"):
    """non-finite-value: NaN or infinity reaches the parameters.

    What it checks:
        Parameters are finite after each update. If not, the batch, the module outputs, the loss and
        the gradients of that step show the origin.

    Why it matters:
        One NaN in a parameter makes every later result NaN, and many programs continue for hours.

    Fires on:
        - NaN or infinity in a parameter after an update.
        - Non-finite gradients at two consecutive updates whose parameters were not recorded.
        - A non-finite loss at three consecutive steps.

    Stays quiet on:
        - Steps that GradScaler or the program skips because of such a gradient.
        - Gradients that are repaired before the step.
        - Infinities in masks, missing values in a batch, or an occasional non-finite loss, while
          the parameters stay finite.

    Fix:
        Clean the data, lower the learning rate, and guard logarithms and divisions against zero.

    Source:
        https://github.com/cvignac/SMP/issues/3,
        https://github.com/irfanICMLL/structure_knowledge_distillation/issues/21
    """

    title = "NaN or infinity from step {step} on"
    likely_cause = "{observed}; the optimizer step{where} applied it."
    fix = (
        "Start with the first place that is named: clean the data, lower the learning rate, or "
        "guard logarithms, roots and divisions against zero. "
        "torch.autograd.set_detect_anomaly(True) finds the operation."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(
            calls=frozenset({Families.MODULE}),
            states=frozenset({"parameter@step"}),
            kinds=frozenset({"batch"}),
            stats=frozenset({"activation", "batch", "gradient", "parameter"}),
        )
    )

    def __init__(self) -> None:
        super().__init__()
        self._broken_parameters: dict[str, _Place] = {}  # in earlier steps, by name
        self._places: dict[str, _Place] = {}  # first of each kind in this step
        self._gradients: dict[str, StateEvent] = {}  # not finite now, by name
        self._seen: set[str] = set()  # parameters whose statistics were recorded in this step
        self._after: list[_Place] = []  # parameters that became non-finite in this step
        self._streak = 0
        self._first: tuple[int | None, _Place] | None = None
        self._losses = 0
        self._lost: tuple[int | None, _Place] | None = None  # first of consecutive losses
        self._stepped: CallEvent | None = None
        self._has_stepped = False  # an optimizer, ever
        self._backward: CallEvent | None = None  # the last of this step

    def observe(self, event: Event) -> Sequence[Violation]:
        if self.is_over:
            return ()
        if isinstance(event, StateEvent):
            self._state(event)
        elif isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, BatchEvent):
            for path, leaf in event.leaves.items():
                if recorded.non_finite(leaf):
                    words = f"{_many(leaf)} in {path} of {event.loader}"
                    self._note("batch", words, Subject(variable=path), event)
        elif isinstance(event, StepEvent):
            found: list[Violation] = []
            self.triggered += self._stepped is not None
            if not event.recorded:
                self._streak = 0
            elif self._stepped is not None:
                found = self._judge(event)
            for place in self._after:
                self._broken_parameters.setdefault(str(place.subject.variable), place)
            if self._stepped is not None or not event.recorded:
                self._places.clear()
            self._after, self._stepped, self._backward = [], None, None
            self._seen.clear()
            return found
        return ()

    def _note(self, kind: str, words: str, subject: Subject, event: Event) -> None:
        self._places.setdefault(kind, _Place(words, subject, event))

    def _state(self, event: StateEvent) -> None:
        if event.role == "gradient":
            if recorded.non_finite(event):
                self._gradients[event.name] = event
                words = f"{_many(event)} in the gradient of {event.name}"
                self._note("gradient", words, Subject(variable=event.name), event)
            elif self._gradients:
                self._gradients.pop(event.name, None)
        elif event.role == "parameter":
            if event.change == "gone":
                self._broken_parameters.pop(event.name, None)
            if event.summary is None or event.summary.stats is None:
                return
            self._seen.add(event.name)
            if event.change == "content" and not self._has_stepped:  # by the program itself
                self._stepped = self._stepped or self._backward
            if not recorded.non_finite(event):
                if self._broken_parameters:
                    self._broken_parameters.pop(event.name, None)
                return
            place = _Place(f"{_many(event)} in {event.name}", Subject(variable=event.name), event)
            if event.change in ("new", "replaced"):
                self._broken_parameters[event.name] = place
            else:
                self._after.append(place)

    def _call(self, event: CallEvent) -> None:
        family = event.family or event.api
        if family == Families.MODULE:
            # Without an optimizer, a forward after the update is of the same step
            is_due = event.grad_enabled and (self._has_stepped or self._backward is None)
            if is_due and recorded.non_finite(event.result):
                words = f"{_many(event.result)} in the result of {event.module or event.api}"
                self._note("module", words, Subject(module=event.module), event)
        elif family == Families.BACKWARD:
            self._backward = event
            value = recorded.loss_of(event)
            if value is not None and value != value:  # noqa: PLR0124  # NaN stands for both
                self._note("loss", "a loss that is not finite", Subject(), event)
        elif family == Families.OPTIMIZER_STEP and event.exception is None:
            self._has_stepped, self._stepped = True, event

    def _judge(self, event: StepEvent) -> list[Violation]:
        if self._after:
            step = event.step if self._first is None else self._first[0]
            shown = self._after[0]
            return [self._violation(step, event, self._begin() or shown, shown.words)]
        if self._is_loss_broken(event):
            step, place = self._lost or (event.step, self._places["loss"])
            return [self._violation(step, event, place, "a loss that is not finite")]
        unseen = [name for name in self._gradients if name not in self._seen]
        if not unseen or event.counters.get("scaler_step", 0):
            self._streak, self._first = 0, None
            return []
        self._streak += 1
        place = self._begin() or self._place_of(unseen[0])
        self._first = self._first or (event.step, place)
        if self._streak < _CONFIRMED:
            return []
        step, place = self._first
        return [self._violation(step, event, place, self._place_of(unseen[0]).words)]

    def _is_loss_broken(self, event: StepEvent) -> bool:
        if "loss" not in self._places or event.counters.get("scaler_step", 0):
            self._lost, self._losses = None, 0
            return False
        self._losses += 1
        self._lost = self._lost or (event.step, self._begin() or self._places["loss"])
        return self._losses >= _LOSSES

    def _place_of(self, name: str) -> _Place:
        look = self._gradients[name]
        return _Place(f"NaN or infinity in the gradient of {name}", Subject(variable=name), look)

    def _begin(self) -> _Place | None:
        """The first non-finite place, in the order in which a step computes."""
        if self._first is not None:
            return self._first[1]
        if self._broken_parameters:
            return next(iter(self._broken_parameters.values()))
        for kind in ("batch", "module", "loss", "gradient"):
            if kind in self._places:
                return self._places[kind]
        return None

    def _violation(
        self, step: int | None, event: StepEvent, place: _Place, shown: str
    ) -> Violation:
        self.is_over = True
        subject = place.subject if place.subject != Subject() else Subject(api=Families.BACKWARD)
        observed = place.words if place.words == shown else f"{place.words}, then {shown}"
        return self.violation(
            event,
            step=step,
            stage="train",
            subject=subject,
            symptom=Symptom.NON_FINITE,
            message=f"values are not finite: {observed}",
            expected="parameters are finite after each optimizer step",
            observed=observed,
            evidence=(place.event, *filter(None, [self._stepped])),
            likely_cause="" if self._has_stepped else _BY_HAND,
        )


class _Place(NamedTuple):
    """A non-finite value: its description, subject and event."""

    words: str
    subject: Subject
    event: Event


def _many(found: Any) -> str:
    is_many = (recorded.non_finite(found) or 0) > 1
    return "NaN or infinite elements" if is_many else "a NaN or infinite element"
