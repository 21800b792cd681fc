"""TC328: a view mixes the samples of a batch. Knows sizes of dims only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from traincheck.rules._single import SingleEvents
from traincheck.schema.apis import RESHAPES, Families
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.shapes import torn
from traincheck.schema.values import TensorSummary, tensor_summary, tensors_in

_ENOUGH = 2  # steps; sizes may be equal by chance in one
_MOST_VIEWS = 64  # of one step

Place = tuple[str, str | None, str | None]


class BatchTornByView:
    """TC328 batch-torn-by-view: view() or reshape() is used where dims are to be exchanged.

    What it checks:
        A tensor that has a dim as large as the batch, and is given other dims by view() or
        reshape(), has the same samples in the dim of that size afterwards.

    Why it matters:
        view() only says anew where dims end; it moves nothing. A tensor of (batch, time, features)
        viewed as (time, batch, features), or the last states of a bidirectional layer, (2, batch,
        features), viewed as (batch, 2 * features), has the right shape, and each of its rows holds
        pieces of several samples. The loss falls, as far as the batch can be learned by heart.

    Fires on:
        Two steps of training in which a view tears the samples of a batch apart though its result
        has a dim of their number.

    Stays quiet on:
        Dims that are merged, split, or cut in equal pieces, such as heads of attention, windows and
        ghost batches; dims exchanged by transpose() or permute() first; sizes that are multiples of
        each other, where the same view may be meant; tensors with several dims as large as the
        batch; batches whose tensors disagree about how many samples there are; evaluation.

    Fix:
        Exchange dims with transpose() or permute(), then reshape().

    Source:
        https://karpathy.github.io/2019/04/25/recipe/
    """

    info = CheckInfo(
        check_id="TC328",
        kind="rule",
        code="TC328",
        severity="warning",
        title="A view mixes the samples of a batch in {subject}",
        likely_cause="view() or reshape() is used to exchange dims: {observed}.",
        fix="Exchange the dims with transpose() or permute(), then reshape().",
    )
    needs = Needs(calls=RESHAPES | {Families.MODULE}, kinds=frozenset({"batch", "step"}))

    def monitor(self) -> Views:
        return Views()


class Views(SingleEvents):
    """Compares the views of each step with the size of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self._views: list[tuple[CallEvent, TensorSummary, TensorSummary]] = []
        self._batches: set[int | None] = set()  # sizes of what loaders gave
        self._given: set[int | None] = set()  # sizes of what models were given
        self._first: dict[Place, Violation] = {}
        self._steps: Counter[Place] = Counter()

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            return self._conclude()
        if isinstance(event, BatchEvent):
            self._batches.add(_rows(tensors_in(event.leaves).values()))
        elif isinstance(event, CallEvent) and event.grad_enabled and event.stage == "train":
            if event.api in RESHAPES:
                self._view(event)
            elif event.root:
                self._given.add(_rows(tensors_in(event.args).values()))
        return []

    def _view(self, event: CallEvent) -> None:
        before, after = [*tensors_in(event.args).values()], tensor_summary(event.result)
        if before and after is not None and len(self._views) < _MOST_VIEWS:
            self._views.append((event, before[0], after))

    def _conclude(self) -> list[Violation]:
        sizes = {n for n in self._batches or self._given if n is not None}
        views, self._views = self._views, []
        self._batches, self._given = set(), set()
        found: dict[Place, Violation] = {}
        for call, before, after in views if sizes else ():
            self.triggered += 1
            mixed = sizes.intersection(torn(before.shape, after.shape))
            place = call.api, call.module, call.where
            if mixed and place not in found:
                found[place] = _violation(call, min(mixed), before, after)
        self._steps.update(found.keys())
        self._first = {**found, **self._first}
        return [self._first[place] for place in found if self._steps[place] == _ENOUGH]


def _rows(tensors: Iterable[TensorSummary]) -> int | None:
    """How many samples tensors hold, where all agree."""
    sizes = {tensor.shape[0] for tensor in tensors if tensor.shape}
    return sizes.pop() if len(sizes) == 1 else None


def _violation(
    call: CallEvent, size: int, before: TensorSummary, after: TensorSummary
) -> Violation:
    name = call.api.rpartition(".")[2]
    return Violation(
        check_id="TC328",
        step=call.step,
        rank=call.rank,
        stage=call.stage,
        subject=Subject(api=call.api, module=call.module),
        symptom=Symptom.LOSS_INPUT,
        message=f"{name}() tears the {size} samples of a batch apart",
        expected=f"{size} samples that stay whole, as transpose() or permute() leaves them",
        observed=f"{name}() gives {before.shape} the shape {after.shape}",
        evidence=(call,),
    )
