"""A bias that the following norm cancels."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from traincheck.rules.base.model_rule import CONVOLUTION, LINEAR, Advice, Model, ModelRule

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
