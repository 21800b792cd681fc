"""Weights of attention that are normalized over another dim than is summed over."""

from __future__ import annotations

from collections import Counter, defaultdict

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.shared.causality import softmax_dim
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.attention_softmax import AttentionSoftmax, AttentionWeights
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import SOFTMAXES
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
    needs = needs_of(AttentionSoftmax) | Needs(calls=SOFTMAXES, kinds=frozenset({"step"}))

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
        elif (found := observed(event, AttentionSoftmax)) is not None:
            return self._judge(event, found)
        return []

    def _judge(self, mark: Event, attention: AttentionSoftmax) -> list[Violation]:
        self.triggered += 1
        told = []
        weights = filter(_is_wrong, attention.weights)
        wrong = {(len(w.shape), w.normalized, w.summed): w for w in weights}
        for key, found in wrong.items():
            if key not in self._first:
                self._first[key] = self._violation(mark, found)
            self._steps[key] += 1
            if self._steps[key] == _ENOUGH:
                told.append(self._first[key])
        return told

    def _violation(self, mark: Event, found: AttentionWeights) -> Violation:
        dims, text = len(found.shape), _text(found)
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
            message=text,
            expected="softmax over the dim that is summed over, the keys",
            observed=text,
            evidence=(mark,) if call is None else (call, mark),
        )


def _is_wrong(found: AttentionWeights) -> bool:
    queries, keys = found.shape[found.kept], found.shape[found.summed]
    return found.normalized != found.summed and queries == keys >= _POSITIONS


def _text(found: AttentionWeights) -> str:
    over = "that of the queries" if found.normalized == found.kept else "as of heads"
    return (
        f"softmax runs over dim {found.normalized} of {list(found.shape)}, {over}, and the product "
        f"with the values sums over dim {found.summed}"
    )
