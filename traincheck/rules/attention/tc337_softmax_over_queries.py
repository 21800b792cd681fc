"""Weights of attention that are normalized over another dim than is summed over."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.causality import softmax_dim
from traincheck.schema.apis import SOFTMAXES, Marks
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, MarkEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.values import tensor_summary

_ENOUGH = 2  # steps
_POSITIONS = 4  # of fewer there may be as many heads
_MOST_CALLS = 64  # of softmax, of one step


class SoftmaxOverQueries(EventRule, code="TC337", severity="error"):
    """softmax-over-queries: weights of attention do not add up to 1 over the keys.

    What it checks:
        In attention written by hand, softmax runs over the dim that the product with the values
        then sums over.

    Why it matters:
        Over dim=1 of four dims it runs over the heads, over dim=-2 over the queries. Then a
        position does not take a mean of what it sees but any multiple of it. With a causal mask it
        also depends on the positions behind it, and over the heads they become NaN. The model
        trains, worse than it could.

    Fires on:
        Two steps in which weights, softmax of scores that are a product as of queries and keys, are
        summed over another dim in the next product, of as many queries as keys.

    Stays quiet on:
        Attention to more or fewer keys than queries, for these may be clusters; weights that are
        divided by their sum again, or multiplied by other weights; scores that are parameters, as
        of a Markov chain; scaled_dot_product_attention and nn.MultiheadAttention, which know their
        dims; compiled or checkpointed models, and torch 2.4, whose graphs do not tell; steps
        between those that are looked at.

    Fix:
        scores.softmax(dim=-1), where scores are query @ key.transpose(-2, -1).

    Source:
        https://github.com/FudanNLP/fastNLP/issues/254, https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146
    """

    title = "Weights of attention are normalized over the wrong dim"
    likely_cause = "The dim of softmax is wrong: the weights of a position do not add up to 1."
    fix = "Take softmax over the dim of the keys: of query @ key.transpose(-2, -1), dim=-1."
    needs = Needs(
        states=frozenset({"loss@attention"}), calls=SOFTMAXES, kinds=frozenset({"mark", "step"})
    )

    def __init__(self) -> None:
        super().__init__()
        self._calls: defaultdict[str, list[CallEvent]] = defaultdict(list)  # by stream, in a step
        self._first: dict[tuple[int, int, int], Violation] = {}
        self._steps: Counter[tuple[int, int, int]] = Counter()

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            self._calls.clear()
        elif isinstance(event, CallEvent):
            calls = self._calls[event.stream]
            if event.api in SOFTMAXES and event.grad_enabled and len(calls) < _MOST_CALLS:
                calls.append(event)
        elif isinstance(event, MarkEvent) and event.text == Marks.ATTENTION:
            return self._judge(event)
        return []

    def _judge(self, mark: MarkEvent) -> list[Violation]:
        self.triggered += 1
        told = []
        weights = [found for each in mark.data.get("weights", ()) if (found := _weights(each))]
        wrong = {(len(w.shape), w.normalized, w.summed): w for w in weights if w.is_wrong}
        for key, found in wrong.items():
            if key not in self._first:
                self._first[key] = self._violation(mark, found)
            self._steps[key] += 1
            if self._steps[key] == _ENOUGH:
                told.append(self._first[key])
        return told

    def _violation(self, mark: MarkEvent, found: _Weights) -> Violation:
        dims = len(found.shape)
        call = next(
            (
                call
                for call in self._calls[mark.stream]
                if softmax_dim(call) == found.normalized - dims
                and (result := tensor_summary(call.result)) is not None
                and result.shape == found.shape
            ),
            None,
        )
        return self.violation(
            mark,
            subject=Subject(
                api=call.api if call else "torch.nn.functional.softmax",
                module=call.module if call else None,
            ),
            symptom=Symptom.UNMASKED,
            message=found.text,
            expected="softmax over the dim that is summed over, the keys",
            observed=found.text,
            evidence=(mark,) if call is None else (call, mark),
        )


class _Weights(NamedTuple):
    """shape: of what softmax gave. normalized: the dim it ran over.

    kept, summed: dims of the matrix in the product, of queries and keys.
    """

    shape: tuple[int, ...]
    normalized: int
    kept: int
    summed: int

    @property
    def is_wrong(self) -> bool:
        queries, keys = self.shape[self.kept], self.shape[self.summed]
        return self.normalized != self.summed and queries == keys >= _POSITIONS

    @property
    def text(self) -> str:
        over = "that of the queries" if self.normalized == self.kept else "as of heads"
        return (
            f"softmax runs over dim {self.normalized} of {list(self.shape)}, {over}, and the "
            f"product with the values sums over dim {self.summed}"
        )


def _weights(told: Any) -> _Weights | None:
    """What a mark tells, if it is well-formed."""
    if not isinstance(told, Mapping):
        return None
    shape = told.get("shape")
    dims: list[Any] = [told.get(name) for name in ("normalized", "kept", "summed")]
    if not isinstance(shape, list) or not all(isinstance(size, int) for size in shape):
        return None
    if not all(isinstance(dim, int) and 0 <= dim < len(shape) for dim in dims):
        return None
    return _Weights(tuple(shape), *dims)
