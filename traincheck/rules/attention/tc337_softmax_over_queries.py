"""Attention weights normalized over another dim than the product with the values sums over."""

from __future__ import annotations

from collections import Counter, defaultdict

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.causality import softmax_dim
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.losses import AttentionSoftmax, AttentionWeights
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import SOFTMAXES
from traincheck.schema.values import tensor_summary

_ENOUGH = 2  # steps
_POSITIONS = 4  # fewer may equal the number of heads
_MOST_CALLS = 64  # of softmax, in one step


class SoftmaxOverQueries(EventRule, code="TC337", severity="error"):
    """softmax-over-queries: attention weights do not sum to 1 over the keys.

    What it checks:
        In attention written by hand, softmax runs over the dim that the product with the values
        then sums over.

    Why it matters:
        On a 4-d tensor, dim=1 normalizes over the heads and dim=-2 over the queries. A position
        then takes an arbitrary multiple of the values instead of their mean. With a causal mask it
        also depends on later positions, and over the heads the weights become NaN. The model
        trains, but worse than it could.

    Fires on:
        - Two steps in which attention weights are summed over another dim than their softmax. The
          weights are the softmax of a product of queries and keys, and there are as many queries as
          keys.

    Stays quiet on:
        - Attention to more or fewer keys than queries, because these may be clusters.
        - Weights that are divided by their sum again, or multiplied by other weights.
        - Scores that are parameters, e.g. of a Markov chain.
        - scaled_dot_product_attention and nn.MultiheadAttention, which choose the dim correctly.
        - Compiled or checkpointed models and torch 2.4, whose autograd graphs lack the information.
        - Steps that are not scanned.

    Fix:
        Use scores.softmax(dim=-1), where scores are query @ key.transpose(-2, -1).

    Source:
        https://github.com/FudanNLP/fastNLP/issues/254, https://github.com/labmlai/annotated_deep_learning_paper_implementations/issues/146
    """

    title = "Attention weights are normalized over the wrong dim"
    likely_cause = "softmax uses the wrong dim: the weights of a position do not sum to 1."
    fix = "Take softmax over the dim of the keys: for query @ key.transpose(-2, -1), use dim=-1."
    needs = needs_of(AttentionSoftmax) | Needs(calls=SOFTMAXES, kinds=frozenset({"step"}))
    # Of a step, by stream
    _calls: defaultdict[str, list[CallEvent]] = fresh(lambda: defaultdict(list))
    _first: dict[tuple[int, int, int], Violation] = fresh(dict)
    _steps: Counter[tuple[int, int, int]] = fresh(Counter)

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
        violations = []
        weights = filter(_is_wrong, attention.weights)
        wrong = {(len(w.shape), w.normalized, w.summed): w for w in weights}
        for key, found in wrong.items():
            if key not in self._first:
                over = "the queries" if found.normalized == found.kept else "e.g. the heads"
                dims, text = (
                    len(found.shape),
                    (
                        f"softmax runs over dim {found.normalized} of {list(found.shape)} "
                        f"({over}), but the "
                        f"product with the values sums over dim {found.summed}"
                    ),
                )
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
                self._first[key] = self.violation(
                    mark,
                    subject=Subject(
                        api=call.api if call else "torch.nn.functional.softmax",
                        module=call.module if call else None,
                    ),
                    symptom=Symptom.UNMASKED,
                    message=text,
                    expected="softmax over the dim that is summed over (the keys)",
                    observed=text,
                    evidence=(mark,) if call is None else (call, mark),
                )
            self._steps[key] += 1
            if self._steps[key] == _ENOUGH:
                violations.append(self._first[key])
        return violations


def _is_wrong(found: AttentionWeights) -> bool:
    queries, keys = found.shape[found.kept], found.shape[found.summed]
    return found.normalized != found.summed and queries == keys >= _POSITIONS
