"""The row of padding is not zero, takes part in the loss, and gets no gradient."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import EmbeddingRows
from traincheck.schema.observations.reading import observed

_LEAST = 0.02  # of the usual norm of a row
_TAKES_PART = 1e-3  # of the gradient of all results
_SAME = 0.05  # relative change of the norm between two observed steps: weight decay


class PaddingRowNotZero(EventRule, code="TC057"):
    """padding-row-not-zero: padding adds a random vector to the result that is never trained.

    What it checks:
        The row of padding_idx is zero if the results of padding take part in the loss.

    Why it matters:
        nn.Embedding(padding_idx=...) sets the row to zero when it is created, and gives it no
        gradient. An initialization of the whole weight fills it with random numbers, which stay for
        ever. Each padded position adds them to the sum, the mean or the state.

    Fires on:
        - Two observed steps in which ids of padding are looked up, a gradient reaches their
          results, and the row has the same norm, at least 2 % of that of other rows.

    Stays quiet on:
        - A row of zeros.
        - Padding that is masked, so that no gradient reaches it.
        - Weights that were loaded, or that are frozen.
        - Embeddings without padding_idx.

    Fix:
        Set the row to zero after the initialization, under torch.no_grad():
        embedding.weight[embedding.padding_idx].zero_().

    Source:
        https://github.com/pytorch/pytorch/issues/6411
    """

    title = "The padding row of {subject} is not zero, is never trained, and reaches the loss"
    likely_cause = (
        "The whole weight may have been initialized after nn.Embedding(padding_idx=...) had "
        "set the row to zero, e.g. by nn.init.normal_(weight): {observed}."
    )
    fix = (
        "After the initialization, under torch.no_grad(): "
        "embedding.weight[embedding.padding_idx].zero_(). Or mask the padding."
    )
    needs = needs_of(EmbeddingRows)

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, tuple[Event, EmbeddingRows]] = {}
        self._reported: set[str] = set()

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, EmbeddingRows)
        if found is None or not found.padding_ids:
            return []
        self.triggered += 1
        if not _is_random(found):
            self._found.pop(found.name, None)
            return []
        first = self._found.setdefault(found.name, (event, found))
        before = first[1].padding_norm
        if first[0] is event or found.name in self._reported:
            return []
        if abs(found.padding_norm - before) > _SAME * before:  # something trains it
            self._found[found.name] = (event, found)
            return []
        self._reported.add(found.name)
        return [self._violation(*first)]

    def _violation(self, event: Event, found: EmbeddingRows) -> Violation:
        share = found.padding_gradient or 0.0
        return self.violation(
            event,
            subject=Subject(variable=found.name),
            symptom=Symptom.INITIALIZATION,
            message=(
                f"row {found.padding} of {found.name} is that of padding (padding_idx), which gets "
                "no gradient, and it is not zero"
            ),
            expected="a padding row of zeros, or padding that is masked",
            observed=(
                f"the row has norm {found.padding_norm:.3g} (other rows: {found.usual_norm:.3g}), "
                f"{found.padding_ids} of {found.ids} ids of a batch are padding, and "
                f"{share:.0%} of the norm of the gradient reaches their results"
            ),
        )


def _is_random(found: EmbeddingRows) -> bool:
    """Whether the row was filled, and matters."""
    return (
        not (found.is_loaded or found.frozen)
        and found.usual_norm > 0
        and found.padding_norm >= _LEAST * found.usual_norm
        and (found.padding_gradient or 0.0) > _TAKES_PART
    )
