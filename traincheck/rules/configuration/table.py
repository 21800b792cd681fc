"""Rules about how models and optimizers are configured, by code."""

from __future__ import annotations

from traincheck.rules.configuration.tc905_bias_before_norm import BiasBeforeNorm
from traincheck.rules.configuration.tc906_adam_with_decay import AdamWithDecay
from traincheck.rules.configuration.tc907_decay_on_bias_or_norm import DecayOnBiasOrNorm
from traincheck.rules.configuration.tc908_decay_on_embedding import DecayOnEmbedding
from traincheck.rules.configuration.tc909_even_kernel import EvenKernel
from traincheck.rules.configuration.tc910_padding_index_missing import PaddingIndexMissing
from traincheck.rules.configuration.tc911_padding_index_differs import PaddingIndexDiffers
from traincheck.rules.configuration.tc914_tiny_batch_norm import TinyBatchNorm
from traincheck.rules.configuration.tc915_batch_norm_reused import BatchNormReused
from traincheck.rules.configuration.tc917_untied_embedding import UntiedEmbedding
from traincheck.rules.configuration.tc922_layer_reused import LayerReused
from traincheck.rules.configuration.tc923_norm_momentum_reversed import NormMomentumReversed
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    BiasBeforeNorm(),
    AdamWithDecay(),
    DecayOnBiasOrNorm(),
    DecayOnEmbedding(),
    EvenKernel(),
    PaddingIndexMissing(),
    PaddingIndexDiffers(),
    TinyBatchNorm(),
    BatchNormReused(),
    UntiedEmbedding(),
    LayerReused(),
    NormMomentumReversed(),
)
