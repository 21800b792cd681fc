"""Settings of layers, as the description of a model tells them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from traincheck.rules.base.model_rule import (
    CONVOLUTION,
    EMBEDDING,
    LINEAR,
    Advice,
    Model,
    ModelRule,
)

_BIASED = frozenset({LINEAR, CONVOLUTION, "transposed convolution"})
_CENTRED = frozenset({"batch norm", "instance norm"})


class BiasBeforeNorm(ModelRule, code="TC905", severity="info"):
    """bias-before-norm: the norm after a layer cancels its bias.

    What it checks:
        A linear or convolution layer directly before a batch or instance norm of its size has no
        bias.

    Why it matters:
        The norm subtracts the mean and with it the bias. The bias wastes memory and time, and
        weight decay acts on noise.

    Fires on:
        - Conv2d(bias=True) registered right before a BatchNorm2d with the same number of channels,
          in a Sequential or a class.

    Stays quiet on:
        - Layers without bias.
        - Other layers in between.
        - Layer norms and group norms.
        - Norms of another size.

    Fix:
        Set bias=False in the layer before the norm.

    Source:
        https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html
    """

    title = "Biases have no effect before a norm"
    likely_cause = "Layers before a norm were built with the default bias=True."
    fix = "Build these layers with bias=False."

    def judge(self, model: Model) -> Iterable[Advice]:
        idle = []
        layers = list(model.modules.items())
        for (path, facts), (after, norm) in pairwise(layers):
            if path.rpartition(".")[0] != after.rpartition(".")[0]:
                continue
            size = facts.get("out_features", facts.get("out_channels"))
            if facts.get("family") in _BIASED and norm.get("family") in _CENTRED:
                self.triggered += 1
                if facts.get("bias") and size == norm.get("num_features"):
                    idle.append(path)
        yield Advice(
            idle,
            expected="no bias before a norm that subtracts the mean",
            observed="the bias has no effect",
        )


class EvenKernel(ModelRule, code="TC909", severity="info"):
    """even-kernel: convolution kernels have no center.

    What it checks:
        Kernels of convolutions have odd sizes, unless they cut patches.

    Why it matters:
        An even kernel cannot be padded equally on both sides. Features shift by half a pixel from
        layer to layer.

    Fires on:
        - Conv2d(kernel_size=4, stride=1).

    Stays quiet on:
        - Odd kernels.
        - Even kernels with a stride above one, as in patch embeddings and the discriminator of a
          DCGAN.
        - Transposed convolutions.
        - Convolutions with groups, such as the causal ones of Mamba.

    Fix:
        Use a size of 3, 5 or 7, or pad one side on purpose.

    Source:
        https://papers.nips.cc/paper/2019/hash/2afe4567e1bf64d32a5527244d104cea-Abstract.html
    """

    title = "Convolutions have kernels of even size"
    likely_cause = "The kernel size is even."
    fix = "Use an odd kernel size with padding = size // 2."

    def judge(self, model: Model) -> Iterable[Advice]:
        odd_one_out = []
        for path, facts in model.of_family(CONVOLUTION):
            self.triggered += 1
            kernel, stride = facts.get("kernel_size", ()), facts.get("stride", ())
            # With a stride above one there is no center to preserve. A depthwise convolution
            # mixes positions in time and crops one side of them.
            is_by_channel = facts.get("groups", 1) > 1
            shifts = any(size % 2 == 0 and by == 1 for size, by in zip(kernel, stride))
            if shifts and not is_by_channel:
                odd_one_out.append(path)
        yield Advice(
            odd_one_out,
            expected="kernels have odd sizes",
            observed="an even kernel has no center",
        )


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
    rows: int = 100

    def judge(self, model: Model) -> Iterable[Advice]:
        padding = model.tokens.get("pad_token_id")
        if padding is None:
            return
        without = []
        for path, facts in model.of_family(EMBEDDING):
            rows = facts.get("num_embeddings", 0)
            if rows < self.rows or rows != model.tokens.get("vocab_size"):
                continue
            self.triggered += 1
            if "padding_idx" not in facts:
                without.append(path)
        yield Advice(
            without,
            expected=f"padding_idx={padding}, the padding id of the model's configuration",
            observed="padding_idx is None",
        )


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
    rows: int = 1000

    def judge(self, model: Model) -> Iterable[Advice]:
        if "tie_word_embeddings" in model.tokens:
            return  # the configuration decides
        heads = {
            (facts.get("out_features"), facts.get("in_features")): path
            for path, facts in model.of_family(LINEAR)
        }
        for path, facts in model.of_family(EMBEDDING):
            size = (facts.get("num_embeddings"), facts.get("embedding_dim"))
            if (size[0] or 0) <= self.rows or size not in heads:
                continue
            self.triggered += 1
            if facts.get("storage") != model.modules[heads[size]].get("storage"):
                yield Advice(
                    [path, heads[size]],
                    expected="one matrix for both",
                    observed="two matrices of the same shape",
                )
                return
