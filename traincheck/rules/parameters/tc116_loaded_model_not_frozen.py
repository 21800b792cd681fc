"""A whole model gets gradients that no optimizer uses and nobody clears."""

from __future__ import annotations

from traincheck.rules.parameters.unoptimized_models import UnoptimizedModelRule
from traincheck.schema.findings import Symptom

_IN_A_ROW = 8


class LoadedModelNotFrozen(
    UnoptimizedModelRule, code="TC116", severity="info", aliases=("model-in-no-optimizer",)
):
    """loaded-model-not-frozen: a model beside the trained one gets gradients for nothing.

    What it checks:
        All of a model in training mode gets gradients in each step only if an optimizer holds some
        of it, or if somebody clears them.

    Why it matters:
        Of a model that is not to be trained, as one that only tells what an image looks like,
        gradients cost time and memory. One that is to be trained further learns nothing.

    Fires on:
        Eight steps in a row in which every parameter of an outermost module that was called got a
        gradient, none is held by any optimizer, and none was cleared; in a program that loads the
        weights of this model, or any file.

    Stays quiet on:
        Models in evaluation mode; frozen models; models whose gradients are cleared, as those of a
        GAN or of an attack; a part of a model, which is TC101's; models that begin anew, which are
        TC117's.

    Fix:
        Give its parameters to the optimizer, too; or call requires_grad_(False).

    Source:
        https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
    """

    title = "Loaded model {subject} gets gradients, and no optimizer holds any of it"
    likely_cause = "{subject} was loaded and not frozen: {observed}."
    fix = (
        "Call {subject}.requires_grad_(False) if it is not to be trained; else give its "
        "parameters to the optimizer."
    )
    symptom = Symptom.ADVICE
    is_loaded = True
    steps = _IN_A_ROW
