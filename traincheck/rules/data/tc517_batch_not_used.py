"""New batches are fetched, and training goes on with an old one. Compares no contents."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.loaders import identified
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import LOSS_MODULES, TARGETED, Families

_PROOF = 4  # looks in a row at which the same tensor came again
_MOST = 4096  # tensors of batches that are remembered

_Place = tuple[str, str]  # of a call, and the name of its argument
_Origin = tuple[str, str]  # a loader, and the path of a tensor in its batches


class BatchNotUsed(EventRule, code="TC517", severity="error"):
    """batch-not-used: the loop trains on a batch that it fetched long ago.

    What it checks:
        What a model and its loss are given changes while the loader gives new batches.

    Why it matters:
        A variable left over from another loop, or a line that was to overfit one batch, is used in
        place of the new batch. The loss falls, faster than usual, and the data is never seen. With
        old labels for new inputs the model learns nothing.

    Fires on:
        At four looks in a row, which are at the first steps and then at each tenth: a model or a
        loss that is given the very tensor of an earlier batch again, while the same place of the
        new batch, or all of it, is given to nobody.

    Stays quiet on:
        Inputs and targets that a program makes itself; an old batch beside the new one, as one that
        is kept to compare with; training without a loader, or on the only batch that a loader has;
        evaluation. Tensors in another shape or dtype than they came in, on a device, of fewer than
        16 elements or more than a million, of one value, or 0 to n, are not compared.

    Fix:
        Give the model the batch of this iteration.

    Source:
        http://karpathy.github.io/2019/04/25/recipe/ (overfitting one batch on purpose, first)
    """

    title = "{subject} is given an old batch again and again"
    likely_cause = (
        "In place of the batch of the iteration the loop uses a variable that another loop has "
        "left, or a batch that was fetched before."
    )
    fix = "Give the model and the loss what the loader has just given."
    needs = Needs(
        calls=TARGETED | {Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=TARGETED | {"batch"},
    )

    def __init__(self) -> None:
        super().__init__()
        self._now = _Look()
        self._last = _Look()
        self._came: dict[str, tuple[_Origin, int]] = {}  # fingerprint -> origin and batch
        self._several: dict[_Origin, bool] = {}  # whether it gave more than one tensor
        self._rows: dict[_Place, _Row] = {}
        self._is_over = False

    def judge(self, event: Event) -> list[Violation]:
        if self._is_over:
            return []
        if isinstance(event, BatchEvent):
            self._batch(event)
        elif isinstance(event, StepEvent):
            return self._step()
        elif isinstance(event, CallEvent) and event.grad_enabled:
            self._call(event)
        return []

    def _batch(self, event: BatchEvent) -> None:
        for path, key in identified(event.leaves):
            origin = (event.loader, path)
            if event.stage == "train":
                self._now.leaves.setdefault(origin, set()).add(key)
            if key in self._came or len(self._came) >= _MOST:
                continue
            self._several[origin] = origin in self._several
            self._came[key] = (origin, event.index)

    def _call(self, event: CallEvent) -> None:
        if event.api in TARGETED:
            where, args = event.api, {"target": event.args.get("target")}
        elif event.family == Families.MODULE and event.root and not _is_loss(event):
            where, args = event.module or event.api, dict(event.args)
        else:
            return
        for name, key in identified(args):
            place = (where, name)
            self._now.given.setdefault(place, set()).add(key)
            self._now.calls.setdefault(place, event)

    def _step(self) -> list[Violation]:
        now, self._now = self._now, _Look()
        if not now.leaves or not now.given:
            return []  # nothing was fetched, or nothing looked at
        last, self._last = self._last, now
        fresh = now.fresh()
        if not last.leaves or fresh <= last.fresh():
            return []
        self.triggered += 1
        again = {
            place
            for place, keys in now.given.items()
            if keys <= last.given.get(place, set())
            and keys.isdisjoint(fresh)
            and keys <= self._came.keys()
            and self._is_left_out(place, now, last)
        }
        return self._count(now, last, again)

    def _is_left_out(self, place: _Place, now: _Look, last: _Look) -> bool:
        """Whether what is new in the place of the old tensors, or all of it, is given to nobody."""
        given = now.all_given()
        for key in now.given[place]:
            origin, _ = self._came[key]
            new = now.leaves.get(origin, set()) - last.leaves.get(origin, set())
            is_kept = not new and not self._several[origin]  # the only batch of its loader
            if is_kept or not given.isdisjoint(new or now.fresh()):
                return False
        return True

    def _count(self, now: _Look, last: _Look, again: set[_Place]) -> list[Violation]:
        before, self._rows = self._rows, {}
        for place in sorted(again, key=lambda place: (not _is_input(place), place)):
            was_old = now.given[place].isdisjoint(last.fresh())  # at the look before, too
            row = before.get(place) or _Row((last if was_old else now).calls[place])
            row.count += 1
            self._rows[place] = row
            if row.count >= _PROOF:
                self._is_over = True
                return [self._violation(place, row.call, self._came[min(now.given[place])])]
        return []

    def _violation(self, place: _Place, call: CallEvent, came: tuple[_Origin, int]) -> Violation:
        where, name = place
        (loader, path), index = came
        what = "the input" if name == "0" else name
        return self.violation(
            call,
            subject=Subject(api=call.api, module=call.module),
            symptom=Symptom.REPEATED_DATA,
            message=f"{what} of {where} is the same tensor in each step, while new batches come",
            expected=f"{what} comes from the batch of the step",
            observed=(
                f"{what}, {path} of batch {index} of {loader}, was the same at {_PROOF + 1} looks "
                "in a "
                "row, and each time there was a new batch"
            ),
        )


@dataclass(slots=True)
class _Look:
    """What was seen in one step: tensors of batches by where they came from, and what was given."""

    leaves: dict[_Origin, set[str]] = field(default_factory=dict)
    given: dict[_Place, set[str]] = field(default_factory=dict)
    calls: dict[_Place, CallEvent] = field(default_factory=dict)

    def fresh(self) -> set[str]:
        """All that the batches of this step hold."""
        return set().union(*self.leaves.values())

    def all_given(self) -> set[str]:
        """All that models and losses were given."""
        return set().union(*self.given.values())


@dataclass(slots=True)
class _Row:
    """Looks in a row at which a place was given the same."""

    call: CallEvent
    count: int = 0


def _is_input(place: _Place) -> bool:
    return place[0] not in TARGETED


def _is_loss(event: CallEvent) -> bool:
    """Whether a module of torch that is a loss was called: its function tells what it was given."""
    return event.api.startswith(LOSS_MODULES)
