"""A token embedding without the padding id of the configuration."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import EMBEDDING, Advice, Facts, Model, ModelRule


class PaddingIndexMissing(ModelRule, code="TC910", severity="info"):
    """padding-index-missing: a token embedding has no padding_idx.

    What it checks:
        An embedding of the whole vocabulary has a padding_idx if the configuration has a padding
        id.

    Why it matters:
        Gradients of padding are computed and applied. This is slow, and the padding vector drifts.

    Fires on:
        - Embedding(vocab_size, dim) in a model whose config.pad_token_id is set.

    Stays quiet on:
        - Embeddings with a padding_idx.
        - Small embeddings (under 100 rows).
        - Position embeddings.
        - Models whose configuration has no padding id.

    Fix:
        Use nn.Embedding(..., padding_idx=config.pad_token_id).

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html

    Options:
        rows: an embedding with fewer rows is not a vocabulary.
    """

    title = "A token embedding has no padding index"
    likely_cause = "padding_idx was not set."
    fix = "Build the embedding with padding_idx=pad_token_id."

    def __init__(self, rows: int = 100) -> None:
        super().__init__()
        self._rows = rows

    def judge(self, model: Model) -> Iterable[Advice]:
        padding = model.tokens.get("pad_token_id")
        if padding is None:
            return
        without = []
        for path, facts in model.of_family(EMBEDDING):
            if facts.get("num_embeddings", 0) < self._rows or not _is_vocabulary(facts, model):
                continue
            self.triggered += 1
            if "padding_idx" not in facts:
                without.append(path)
        yield Advice(
            without,
            expected=f"padding_idx={padding}, the padding id of the model's configuration",
            observed="padding_idx is None",
        )


def _is_vocabulary(facts: Facts, model: Model) -> bool:
    return facts.get("num_embeddings") == model.tokens.get("vocab_size")
