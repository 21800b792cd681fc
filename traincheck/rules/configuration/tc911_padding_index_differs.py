"""Embedding and configuration disagree about the padding id."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import EMBEDDING, Advice, Model, ModelRule


class PaddingIndexDiffers(ModelRule, code="TC911"):
    """padding-index-differs: embedding and configuration disagree about the padding id.

    What it checks:
        The padding_idx of a token embedding equals the pad_token_id of the model's configuration.

    Why it matters:
        The row of a real token gets no gradient and keeps its initial value, while padding is
        learned.

    Fires on:
        - Embedding(vocab_size, dim, padding_idx=0) in a model whose config.pad_token_id is 1.

    Stays quiet on:
        - Equal ids.
        - Embeddings without padding_idx.
        - Embeddings whose size is not that of the vocabulary, such as positions.

    Fix:
        Use one id: padding_idx=config.pad_token_id.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.Embedding.html
    """

    title = "Embedding and configuration have different padding ids"
    likely_cause = (
        "The tokenizer or the configuration may have changed after the embedding was written."
    )
    fix = (
        "Build the embedding with padding_idx=config.pad_token_id, and retrain the row that got "
        "no gradient."
    )

    def judge(self, model: Model) -> Iterable[Advice]:
        padding = model.tokens.get("pad_token_id")
        if padding is None:
            return
        for path, facts in model.of_family(EMBEDDING):
            index = facts.get("padding_idx")
            if index is None or facts.get("num_embeddings") != model.tokens.get("vocab_size"):
                continue
            self.triggered += 1
            if index != padding:
                yield Advice(
                    [path],
                    expected=f"padding_idx={padding}, as in the model's configuration",
                    observed=f"padding_idx is {index}",
                )
