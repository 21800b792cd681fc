"""Weight decay on biases and norms."""

from __future__ import annotations

from traincheck.rules.base.model_rule import NORMS
from traincheck.rules.configuration.weight_decay import DECAY, DecayRule


class DecayOnBiasOrNorm(DecayRule, code="TC907", severity="info"):
    """decay-on-bias-or-norm: weight decay is applied to biases or norms.

    What it checks:
        Parameter groups with weight decay contain no biases and no parameters of norms.

    Why it matters:
        Decay pulls scales and offsets to zero. This does not regularize and only costs accuracy.

    Fires on:
        - AdamW(model.parameters()) with its default weight_decay over a model with biases or norms.
          There is one finding for each optimizer.

    Stays quiet on:
        - Groups without decay.
        - Optimizers over weights alone.

    Fix:
        Use two parameter groups: decay for weights, weight_decay=0 for biases and norms.

    Source:
        https://arxiv.org/abs/1812.01187
    """

    title = "Weight decay is applied to biases or norms"
    likely_cause = "Biases and norms are in a parameter group with the weight decay of weights."
    fix = "Put biases and the parameters of norms into a group with weight_decay=0."
    needs = DECAY

    def should_not_decay(self, name: str, family: str | None) -> bool:
        return name.endswith(".bias") or family in NORMS
