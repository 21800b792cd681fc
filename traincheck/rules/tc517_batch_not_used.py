"""TC517: new batches are fetched, and training goes on with an old one. Compares no contents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from traincheck.rules._losses import CROSS_ENTROPY, NLL, F
from traincheck.rules._single import SingleEvents
from traincheck.schema.apis import Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.values import TensorSummary, tensor_summary

_LOSSES = frozenset(
    {CROSS_ENTROPY, NLL}
    | {
        f"{F}{name}"
        for name in (
            "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
            "smooth_l1_loss", "huber_loss",
        )
    }
)  # fmt: skip
_PROOF = 4  # looks in a row at which the same tensor came again
_MOST = 4096  # tensors of batches that are remembered

_Place = tuple[str, str]  # of the call, and the name of its argument


class BatchNotUsed:
    """TC517 batch-not-used: the loop trains on a batch that it fetched long ago.

    What it checks:
        What a model and its loss are given changes while the loader gives new batches.

    Why it matters:
        A variable left over from another loop, or a line that was to overfit one batch, is used in
        place of the new batch. The loss falls, faster than usual, and the data is never seen. With
        old labels for new inputs the model learns nothing.

    Fires on:
        At four looks in a row, which are at the first steps and then at each tenth: a model or a
        loss that is given the very tensor of an earlier batch again; or a model all of whose inputs
        are as they were, and as large as a tensor of the batch that is new each time.

    Stays quiet on:
        Graphs and tables that are given whole while a loader draws indices; targets that a program
        makes itself; training without a loader, or on the only batch that a loader has; evaluation;
        tensors on a device, and of more than a million elements, which are not compared.

    Fix:
        Give the model the batch of this iteration.

    Source:
        http://karpathy.github.io/2019/04/25/recipe/ (overfitting one batch on purpose, first)
    """

    info = CheckInfo(
        check_id="TC517",
        kind="rule",
        code="TC517",
        severity="error",
        title="{subject} is given an old batch again and again",
        likely_cause=(
            "In place of the batch of the iteration the loop uses a variable that another loop has "
            "left, or a batch that was fetched before."
        ),
        fix="Give the model and the loss what the loader has just given.",
    )
    needs = Needs(
        calls=_LOSSES | {Families.MODULE},
        kinds=frozenset({"batch", "step"}),
        stats=_LOSSES | {"batch"},
    )

    def monitor(self) -> OldBatches:
        return OldBatches()


@dataclass(slots=True)
class _Look:
    """What was seen in one step: of a batch its new tensors, of calls what they were given."""

    leaves: dict[str, TensorSummary] = field(default_factory=dict)  # by fingerprint
    given: dict[_Place, dict[str, TensorSummary]] = field(default_factory=dict)
    calls: dict[_Place, CallEvent] = field(default_factory=dict)
    is_whole: bool = True  # each model's tensors are known by their content


@dataclass(slots=True)
class _Row:
    """Looks in a row at which a place was given the same."""

    call: CallEvent
    count: int = 0


class OldBatches(SingleEvents):
    """Compares what is given in a step with its batches, and with the step looked at before."""

    def __init__(self) -> None:
        super().__init__()
        self._now = _Look()
        self._last = _Look()
        self._came: dict[str, str] = {}  # fingerprint -> whose tensor it was, of earlier steps
        self._rows: dict[_Place, _Row] = {}
        self._is_over = False

    def judge(self, event: Event) -> list[Violation]:
        if self._is_over:
            return []
        if isinstance(event, BatchEvent):
            self._batch(event)
        elif isinstance(event, StepEvent):
            return self._step()
        elif isinstance(event, CallEvent) and event.stage == "train" and event.grad_enabled:
            self._call(event)
        return []

    def _batch(self, event: BatchEvent) -> None:
        for path, leaf in _known(event.leaves):
            key = str(leaf.fingerprint)
            if event.stage == "train":
                self._now.leaves[key] = leaf
            if len(self._came) < _MOST:
                self._came.setdefault(key, f"{path} of batch {event.index} of {event.loader}")

    def _call(self, event: CallEvent) -> None:
        if event.family == Families.MODULE and event.root:
            where, args = event.module or event.api, event.args
            tensors = [tensor_summary(value) for value in args.values()]
            if any(tensor is not None and not tensor.fingerprint for tensor in tensors):
                self._now.is_whole = False
        elif event.api in _LOSSES:
            where, args = event.api, {"target": event.args.get("target")}
        else:
            return
        for name, tensor in _known(args):
            place = (where, name)
            self._now.given.setdefault(place, {})[str(tensor.fingerprint)] = tensor
            self._now.calls.setdefault(place, event)

    def _step(self) -> list[Violation]:
        now = self._now
        self._now = _Look()
        if not now.leaves or not now.given:
            return []  # nothing was fetched, or nothing looked at
        last, self._last = self._last, now
        new = {key: leaf for key, leaf in now.leaves.items() if key not in last.leaves}
        if not last.leaves or not new:
            return []
        self.triggered += 1
        again = {
            place
            for place, tensors in now.given.items()
            if tensors.keys() <= last.given.get(place, {}).keys()
            and tensors.keys().isdisjoint(now.leaves)
            and _are_like(tensors, new)
        }
        inputs = {place for place in now.given if _is_input(place)}
        known = {place for place in again if now.given[place].keys() <= self._came.keys()}
        is_all = now.is_whole and inputs <= again
        return self._count(now, known | inputs if is_all else known)

    def _count(self, now: _Look, again: set[_Place]) -> list[Violation]:
        self._rows = {
            place: self._rows.get(place) or _Row(now.calls[place])
            for place in sorted(again, key=lambda place: (not _is_input(place), place))
        }
        for place, row in self._rows.items():
            row.count += 1
            if row.count >= _PROOF:
                self._is_over = True
                whose = next((self._came[k] for k in now.given[place] if k in self._came), None)
                return [_violation(place, row.call, whose)]
        return []


def _is_input(place: _Place) -> bool:
    return place[0] not in _LOSSES


def _known(values: Mapping[str, Any]) -> Iterator[tuple[str, TensorSummary]]:
    """The tensors that are known by their content."""
    for name, value in values.items():
        tensor = tensor_summary(value)
        if tensor is not None and tensor.fingerprint:
            yield name, tensor


def _are_like(tensors: Mapping[str, TensorSummary], new: Mapping[str, TensorSummary]) -> bool:
    """Whether each is as large as a new tensor of the batch, in whose place it may stand."""
    kinds = {(leaf.dtype, prod(leaf.shape)) for leaf in new.values()}
    return all((tensor.dtype, prod(tensor.shape)) in kinds for tensor in tensors.values())


def _violation(place: _Place, call: CallEvent, whose: str | None) -> Violation:
    where, name = place
    what = "the input" if name == "0" else name
    origin = f", {whose}," if whose else ""
    return Violation(
        check_id="TC517",
        step=call.step,
        rank=call.rank,
        stage=call.stage,
        subject=Subject(api=call.api, module=call.module),
        symptom=Symptom.REPEATED_DATA,
        message=f"{what} of {where} is the same tensor in each step, while new batches come",
        expected=f"{what} comes from the batch of the step",
        observed=(
            f"{what}{origin} was the same at {_PROOF + 1} looks in a row, and each time there was "
            "a new batch"
        ),
        evidence=(call,),
    )
