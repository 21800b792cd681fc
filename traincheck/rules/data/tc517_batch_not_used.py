"""New batches are fetched, but training continues with an old one. Compares no contents."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.loaders import identified
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import LOSS_MODULES, TARGETED, Families

_PROOF = 4  # consecutive scans that repeat the same tensor
_MOST = 4096  # tensors of batches that are stored

_Place = tuple[str, str]  # of a call, and the name of its argument
_Origin = tuple[str, str]  # a loader, and the path of a tensor in its batches


@dataclass(slots=True)
class _Scan:
    """One step: tensors of batches by origin, and the inputs of models and losses."""

    leaves: dict[_Origin, set[str]] = field(default_factory=dict)
    given: dict[_Place, set[str]] = field(default_factory=dict)
    calls: dict[_Place, CallEvent] = field(default_factory=dict)

    def fresh(self) -> set[str]:
        """All tensors in the batches of this step."""
        return set().union(*self.leaves.values())

    def all_given(self) -> set[str]:
        """All tensors that models and losses received."""
        return set().union(*self.given.values())


class BatchNotUsed(EventRule, code="TC517", severity="error"):
    """batch-not-used: the loop trains on a batch that it fetched long ago.

    What it checks:
        The inputs of a model and its loss change while the loader returns new batches.

    Why it matters:
        The loop uses a variable left over from another loop, or a line written to overfit one
        batch, instead of the new batch. The loss falls faster than usual, and the data is never
        seen. With old labels for new inputs the model learns nothing.

    Fires on:
        - Four consecutive scans (at the first steps, then every tenth) in which a model or loss
          receives a tensor of an earlier batch again. The corresponding tensor of the new batch, or
          the whole batch, is unused.

    Stays quiet on:
        - Inputs and targets that the program creates itself.
        - An old batch beside the new one, e.g. one that is stored for comparison.
        - Training without a loader, or on the only batch of a loader.
        - Evaluation.
        - Tensors on a device, or whose shape or dtype changed since the batch.
        - Tensors of fewer than 16 elements or more than a million.
        - Tensors of one value, or of 0 to n.

    Fix:
        Pass the batch of this iteration to the model.

    Source:
        http://karpathy.github.io/2019/04/25/recipe/ (overfitting one batch on purpose, first)
    """

    title = "{subject} receives an old batch in every step"
    likely_cause = (
        "The loop may use a variable left over from another loop, or a batch that was fetched "
        "before, instead of the batch of the iteration."
    )
    fix = "Pass the batch that the loader just returned to the model and the loss."
    needs = Needs(
        calls=TARGETED | {Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=TARGETED | {"batch"},
    )
    _now = fresh(_Scan)
    _last = fresh(_Scan)
    _came: dict[str, tuple[_Origin, int]] = fresh(dict)  # fingerprint -> origin and batch
    _several: dict[_Origin, bool] = fresh(dict)  # whether it had more than one tensor
    _rows: dict[_Place, _Row] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, BatchEvent):
            for path, key in identified(event.leaves):
                origin = (event.loader, path)
                if event.stage == "train":
                    self._now.leaves.setdefault(origin, set()).add(key)
                if key in self._came or len(self._came) >= _MOST:
                    continue
                self._several[origin] = origin in self._several
                self._came[key] = (origin, event.index)
        elif isinstance(event, StepEvent):
            now, self._now = self._now, _Scan()
            if not now.leaves or not now.given:
                return []  # nothing was fetched, or nothing scanned
            last, self._last = self._last, now
            arrived = now.fresh()
            if not last.leaves or arrived <= last.fresh():
                return []
            self.triggered += 1
            again = {
                place
                for place, keys in now.given.items()
                if keys <= last.given.get(place, set())
                and keys.isdisjoint(arrived)
                and keys <= self._came.keys()
                and self._is_left_out(place, now, last)
            }
            before, self._rows = self._rows, {}
            for place in sorted(again, key=lambda place: (place[0] in TARGETED, place)):
                was_old = now.given[place].isdisjoint(last.fresh())  # in the previous scan too
                row = before.get(place) or _Row((last if was_old else now).calls[place])
                row.count += 1
                self._rows[place] = row
                if row.count >= _PROOF:
                    self.is_over = True
                    where, name = place
                    (loader, leaf), number = self._came[min(now.given[place])]
                    what = "the input" if name == "0" else name
                    return self.found(
                        row.call,
                        subject=Subject(api=row.call.api, module=row.call.module),
                        symptom=Symptom.REPEATED_DATA,
                        message=f"{what} of {where} is the same tensor in each step while new "
                        "batches arrive",
                        expected=f"{what} comes from the batch of the step",
                        observed=f"{what}, {leaf} of batch {number} of {loader}, was the same in "
                        f"{_PROOF + 1} consecutive scans, and each time there was a new batch",
                    )
            return []
        elif isinstance(event, CallEvent) and event.grad_enabled:
            self._call(event)
        return []

    def _call(self, event: CallEvent) -> None:
        if event.api in TARGETED:
            where, args = event.api, {"target": event.args.get("target")}
        # Whether it is a loss module of torch; the call of its function shows the target.
        elif (
            event.family == Families.MODULE
            and event.root
            and not event.api.startswith(LOSS_MODULES)
        ):
            where, args = event.module or event.api, dict(event.args)
        else:
            return
        for name, key in identified(args):
            place = (where, name)
            self._now.given.setdefault(place, set()).add(key)
            self._now.calls.setdefault(place, event)

    def _is_left_out(self, place: _Place, now: _Scan, last: _Scan) -> bool:
        """Whether the new tensors at the place of the old ones, or all new tensors, are unused."""
        given = now.all_given()
        for key in now.given[place]:
            origin, _ = self._came[key]
            new = now.leaves.get(origin, set()) - last.leaves.get(origin, set())
            is_kept = not new and not self._several[origin]  # the only batch of its loader
            if is_kept or not given.isdisjoint(new or now.fresh()):
                return False
        return True


@dataclass(slots=True)
class _Row:
    """Consecutive scans in which a place received the same tensor."""

    call: CallEvent
    count: int = 0
