"""view() where dims must be swapped. Compares the sizes of dims only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import permutations
from math import prod

from traincheck.readings.losses import CROSS_ENTROPY, NLL, as_loss, given
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.shapes import cuts_heads, loses_classes, torn
from traincheck.schema.torch_api import RESHAPES, Families
from traincheck.schema.values import TensorSummary, tensor_summary, tensors_in

_ENOUGH = 2  # steps; sizes may be equal by chance in one
_MOST_VIEWS = 64  # of one step
_MOST_DIMS = 6  # for which all orders are tried
_OF_CLASSES = (CROSS_ENTROPY, NLL)

Place = tuple[str, str | None, str | None]


class ViewForTranspose(EventRule, code="TC328"):
    """view-for-transpose: view() or reshape() is used where dims must be swapped.

    What it checks:
        view() and reshape() keep slices intact along the batch dim, and along dims whose order
        changes.

    Why it matters:
        view() changes only the boundaries of dims and moves no data. The shape is right, but the
        rows are mixed:

        - (batch, time, features) viewed as (time, batch, features): each row holds pieces of
          several samples. The same happens to the last states (2, batch, features) of a
          bidirectional layer, viewed as (batch, 2 * features).
        - Pixels (batch, channels, height, width) viewed as (batch, height * width, channels): a row
          is not the color of a pixel.
        - Scores (batch, classes, height, width) viewed as (pixels, classes): a row holds
          neighbouring pixels, not classes.
        - Attention heads cut from (batch, time, features) without a transpose: a head holds a part
          of the time.

        The loss still falls as far as the batch can be memorized.

    Fires on:
        - Two training steps in which a view splits the samples of a batch, and its result has a dim
          of the batch size.
        - A view that gives a batch the dims of a permutation and splits their slices.
        - A view from (batch, time, heads * size) to (batch, heads, time, size).
        - A view from (batch, classes, ...) to (rows, classes) for cross_entropy or nll_loss.

    Stays quiet on:
        - Dims that are merged, split, or cut into equal pieces, e.g. attention heads, windows,
          ghost batches.
        - Dims swapped with transpose() or permute() first.
        - Sizes that are multiples of each other, where the same view may be intended.
        - Tensors with several dims of one size.
        - Batches whose tensors disagree about the number of samples.
        - Evaluation.

    Fix:
        Swap dims with transpose() or permute(), then reshape().

    Source:
        https://karpathy.github.io/2019/04/25/recipe/
    """

    title = "A view mixes {subject}"
    likely_cause = "view() or reshape() is used to swap dims: {observed}."
    fix = "Swap the dims with transpose() or permute(), then reshape()."
    needs = Needs(
        calls=RESHAPES | {Families.MODULE, *_OF_CLASSES}, kinds=frozenset({"batch", "step"})
    )
    _views: list[tuple[CallEvent, TensorSummary, TensorSummary]] = fresh(list)
    _batches: set[int | None] = fresh(set)  # batch sizes of loaders
    _given: set[int | None] = fresh(set)  # batch sizes of model inputs
    _scores: set[tuple[int, ...]] = fresh(set)  # shapes of loss inputs
    _first: dict[Place, Violation] = fresh(dict)
    _steps: Counter[Place] = fresh(Counter)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            sizes = {n for n in self._batches or self._given if n is not None}
            views, self._views = self._views, []
            self._batches, self._given = set(), set()
            scores, self._scores = self._scores, set()
            found: dict[Place, Violation] = {}
            for call, before, after in views if sizes else ():
                self.triggered += 1
                mixed = _mixed(before.shape, after.shape, sizes)
                if after.shape in scores and loses_classes(before.shape, after.shape):
                    mixed = f"the scores of {after.shape[1]} classes"
                if mixed is not None:
                    place = call.api, call.module, call.where
                    name = call.api.rpartition(".")[2]
                    found.setdefault(
                        place,
                        self.violation(
                            call,
                            subject=Subject(api=call.api, module=call.module),
                            symptom=Symptom.LOSS_INPUT,
                            message=f"{name}() mixes {mixed}",
                            expected=f"{mixed} stay intact, as with transpose() or permute()",
                            observed=f"{name}() changes the shape {tuple(before.shape)} to "
                            f"{tuple(after.shape)}",
                            title=f"A view mixes {mixed}"
                            + (f" in {call.module}" if call.module else ""),
                        ),
                    )
            self._steps.update(found.keys())
            self._first = {**found, **self._first}
            return [self._first[place] for place in found if self._steps[place] == _ENOUGH]
        if isinstance(event, BatchEvent):
            self._batches.add(_rows(tensors_in(event.leaves).values()))
        elif isinstance(event, CallEvent) and event.grad_enabled and event.stage == "train":
            if event.api in RESHAPES:
                tensors, result = [*tensors_in(event.args).values()], tensor_summary(event.result)
                if tensors and result is not None and len(self._views) < _MOST_VIEWS:
                    self._views.append((event, tensors[0], result))
            elif (loss := as_loss(event, _OF_CLASSES)) is not None:
                logits = given(loss, "input")
                self._scores.update(() if logits is None else {logits.shape})
            elif event.root:
                self._given.add(_rows(tensors_in(event.args).values()))
        return []


def _rows(tensors: Iterable[TensorSummary]) -> int | None:
    """The number of samples in tensors, if all agree."""
    sizes = {tensor.shape[0] for tensor in tensors if tensor.shape}
    return sizes.pop() if len(sizes) == 1 else None


def _mixed(old: Sequence[int], new: Sequence[int], batches: set[int]) -> str | None:
    """Describe the slices that a view mixes; None if no known unit is split."""
    sizes = torn(old, new)
    samples = batches.intersection(sizes)
    if samples:
        return f"the {min(samples)} samples of a batch"
    if sizes and old[0] == new[0] and old[0] in batches and _is_exchange(old[1:], new[1:]):
        return f"the {sizes[0]} slices of a dim"
    if old[:1] and old[0] in batches and cuts_heads(old, new):
        return f"the {old[1]} positions of a sequence"
    return None


def _is_exchange(old: Sequence[int], new: Sequence[int]) -> bool:
    """Whether the new dims result from a permutation of the old ones and then merging some."""
    old, new = [n for n in old if n > 1], [n for n in new if n > 1]
    return len(old) <= _MOST_DIMS and any(_is_merged(order, new) for order in permutations(old))


def _is_merged(order: Sequence[int], new: Sequence[int]) -> bool:
    start = 0
    for size in new:
        end = start + 1
        while prod(order[start:end]) < size and end < len(order):
            end += 1
        if prod(order[start:end]) != size:
            return False
        start = end
    return start == len(order)
