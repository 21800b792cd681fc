"""A new model, as a loss with weights, gets gradients and is in no optimizer."""

from __future__ import annotations

from traincheck.rules.parameters.unoptimized_models import UnoptimizedModelRule
from traincheck.schema.findings import Symptom

_IN_A_ROW = 16


class ModelNotInOptimizer(UnoptimizedModelRule, code="TC117", aliases=("left-out-of-optimizers",)):
    """model-not-in-optimizer: a new model gets gradients, and no optimizer holds it.

    What it checks:
        All of a model in training mode whose weights were loaded from nowhere gets gradients in
        each step only if an optimizer holds some of it, or if somebody clears them.

    Why it matters:
        A loss with weights of its own (the classes of ArcFace, weights of several tasks, a
        likelihood), or a second critic, learns nothing when the optimizer was built from the
        parameters of another network alone. It keeps its random weights; the loss falls.

    Fires on:
        Sixteen steps in a row in which every parameter of an outermost module that was called got a
        gradient, none is held by any optimizer, and none was cleared, in a program that has loaded
        neither this model nor any file.

    Stays quiet on:
        Models in evaluation mode; frozen models; models whose gradients are cleared, as those of a
        GAN or of an attack; a part of a model, which is TC101's; loaded models, which are TC116's.

    Fix:
        Give its parameters to the optimizer, too; or call requires_grad_(False).

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
