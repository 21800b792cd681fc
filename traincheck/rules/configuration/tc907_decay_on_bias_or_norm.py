"""Weight decay of biases and norms."""

from __future__ import annotations

from traincheck.rules.base.model_rule import NORMS
from traincheck.rules.configuration.weight_decay import DECAY, DecayRule


class DecayOnBiasOrNorm(DecayRule, code="TC907", severity="info"):
    """decay-on-bias-or-norm: weight decay of biases and norms.

    What it checks:
        Parameter groups with weight decay hold no biases and no parameters of norms.

    Why it matters:
        Decay pulls scales and offsets to zero, where they do not regularize: it only costs
        accuracy.

    Fires on:
        AdamW(model.parameters()) with its default weight_decay over a model with biases or
        norms; one finding for each optimizer.

    Stays quiet on:
        Groups without decay; optimizers over weights alone.

    Fix:
        Two parameter groups: decay for weights, weight_decay=0 for biases and norms.

    Source:
        https://arxiv.org/abs/1812.01187
    """

    title = "Biases or norms decay"
    likely_cause = "Biases and norms are given the weight decay that weights are given."
    fix = "Put biases and the parameters of norms into a group with weight_decay=0."
    needs = DECAY

    def should_not_decay(self, name: str, family: str | None) -> bool:
        return name.endswith(".bias") or family in NORMS
