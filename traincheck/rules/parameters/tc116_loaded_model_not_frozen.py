"""A whole loaded model gets gradients that no optimizer uses and no code clears."""

from __future__ import annotations

from traincheck.rules.parameters.unoptimized_models import UnoptimizedModelRule
from traincheck.schema.findings import Symptom

_IN_A_ROW = 8


class LoadedModelNotFrozen(
    UnoptimizedModelRule, code="TC116", severity="info", aliases=("model-in-no-optimizer",)
):
    """loaded-model-not-frozen: a model beside the trained one gets unused gradients.

    What it checks:
        A model in training mode gets gradients for all its parameters in each step only if an
        optimizer holds some of them, or if the program clears them.

    Why it matters:
        For a model that is not to be trained, e.g. a feature extractor, gradients waste time and
        memory. A model that is to be fine-tuned learns nothing.

    Fires on:
        - Eight steps in a row in which every parameter of a called outermost module got a gradient,
          no optimizer holds any of them, and none was cleared. The program loads the weights of
          this model, or any file.

    Stays quiet on:
        - Models in evaluation mode.
        - Frozen models.
        - Models whose gradients are cleared, e.g. in a GAN or an attack.
        - A part of a model (TC101).
        - Newly initialized models (TC117).

    Fix:
        Give its parameters to the optimizer, too. Or call requires_grad_(False).

    Source:
        https://kevinmusgrave.github.io/pytorch-metric-learning/losses/#arcfaceloss
    """

    title = "Loaded model {subject} gets gradients, and no optimizer holds any of it"
    likely_cause = "{subject} was loaded and not frozen: {observed}."
    fix = (
        "Call {subject}.requires_grad_(False) if it is not to be trained. Otherwise give its "
        "parameters to the optimizer."
    )
    symptom = Symptom.ADVICE
    is_loaded = True
    steps = _IN_A_ROW
