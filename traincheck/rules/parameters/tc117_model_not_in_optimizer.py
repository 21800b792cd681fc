"""A new model, e.g. a loss with weights, gets gradients and is in no optimizer."""

from __future__ import annotations

from traincheck.rules.parameters.unoptimized_models import UnoptimizedModelRule
from traincheck.schema.findings import Symptom

_IN_A_ROW = 16


class ModelNotInOptimizer(UnoptimizedModelRule, code="TC117", aliases=("left-out-of-optimizers",)):
    """model-not-in-optimizer: a new model gets gradients, and no optimizer holds it.

    What it checks:
        A model in training mode whose weights were not loaded gets gradients for all its parameters
        in each step only if an optimizer holds some of them, or if the program clears them.

    Why it matters:
        A loss with weights (the classes of ArcFace, weights of several tasks, a likelihood) or a
        second critic learns nothing if the optimizer was built only from the parameters of another
        network. It keeps its random weights, and the loss falls.

    Fires on:
        - Sixteen steps in a row in which every parameter of a called outermost module got a
          gradient, no optimizer holds any of them, and none was cleared. The program has loaded
          neither this model nor any file.

    Stays quiet on:
        - Models in evaluation mode.
        - Frozen models.
        - Models whose gradients are cleared, e.g. in a GAN or an attack.
        - A part of a model (TC101).
        - Loaded models (TC116).

    Fix:
        Give its parameters to the optimizer, too. Or call requires_grad_(False).

    Source:
        https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
    """

    title = "No optimizer holds any of {subject}, which gets gradients in each step"
    likely_cause = "The optimizer was built without the parameters of {subject}: {observed}."
    fix = (
        "Give the parameters of {subject} to the optimizer as well, or call "
        "{subject}.requires_grad_(False)."
    )
    symptom = Symptom.NOT_IN_OPTIMIZER
    is_loaded = False
    steps = _IN_A_ROW
