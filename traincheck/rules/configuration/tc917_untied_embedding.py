"""An embedding and an output layer of the same shape that do not share a weight."""

from __future__ import annotations

from collections.abc import Iterable

from traincheck.rules.base.model_rule import EMBEDDING, LINEAR, Advice, Model, ModelRule


class UntiedEmbedding(ModelRule, code="TC917", severity="info"):
    """untied-embedding: an embedding and an output layer of the same shape do not share a weight.

    What it checks:
        A token embedding of over 1000 rows and a linear layer of the transposed shape share one
        matrix.

    Why it matters:
        Sharing saves the largest matrix of a small language model and often improves it.

    Fires on:
        - Embedding(50000, 512) beside Linear(512, 50000) with a separate weight.

    Stays quiet on:
        - Tied weights.
        - Small vocabularies.
        - Configurations that set tie_word_embeddings.

    Fix:
        Set head.weight = embedding.weight before the optimizer is built.

    Source:
        https://aclanthology.org/E17-2025/

    Options:
        rows: an embedding with at most this many rows is too small to matter.
    """

    title = "An embedding and an output layer of the same shape are not tied"
    likely_cause = "The weights were not tied."
    fix = (
        "Set head.weight = embedding.weight before the optimizer is built, unless they should "
        "differ."
    )

    def __init__(self, rows: int = 1000) -> None:
        super().__init__()
        self._rows = rows

    def judge(self, model: Model) -> Iterable[Advice]:
        if "tie_word_embeddings" in model.tokens:
            return  # the configuration decides
        heads = {
            (facts.get("out_features"), facts.get("in_features")): path
            for path, facts in model.of_family(LINEAR)
        }
        for path, facts in model.of_family(EMBEDDING):
            size = (facts.get("num_embeddings"), facts.get("embedding_dim"))
            if (size[0] or 0) <= self._rows or size not in heads:
                continue
            self.triggered += 1
            if facts.get("storage") != model.modules[heads[size]].get("storage"):
                yield Advice(
                    [path, heads[size]],
                    expected="one matrix for both",
                    observed="two matrices of the same shape",
                )
                return
