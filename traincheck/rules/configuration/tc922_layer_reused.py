"""One layer that is used at several places of a model. Counts calls, like TC915."""

from __future__ import annotations

from traincheck.rules.base.model_rule import MODELS
from traincheck.rules.configuration.layer_reuse import ReusedModuleRule
from traincheck.rules.shared.gradient_reach import LEAVES
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

_IN_A_ROW = 3
_WITH_WEIGHTS = tuple(
    f"torch.nn.modules.{name}" for name in ("linear.", "conv.", "activation.MultiheadAttention")
)


class LayerReused(ReusedModuleRule, code="TC922", severity="info"):
    """layer-reused: one layer with weights is used at several places of a model.

    What it checks:
        A linear, convolutional or attention layer is called once in a forward of the model.

    Why it matters:
        Shared weights may be intended. If a list of layers was built by [layer] * n, or one name
        was written twice, the model is smaller than it looks.

    Fires on:
        - A layer, or an element of a list of modules, that is applied twice within each forward, in
          three consecutive training steps.

    Stays quiet on:
        - Several forwards of the model in a step (accumulation, GAN).
        - A network that is called as a whole on several inputs (losses over pairs).
        - Layers in a loop over time.
        - Embeddings, recurrent layers and norms (TC915 checks batch norms).
        - Recomputation in gradient checkpointing.
        - Evaluation.

    Fix:
        Build one layer for each place. Ignore this if sharing is intended.

    Source:
        https://github.com/pytorch/pytorch/issues/7289
    """

    title = "A layer is used at several places of one forward"
    likely_cause = "The same layer object is called more than once."
    fix = "Build one layer for each place, unless the weights should be shared."
    needs = LEAVES | MODELS | Needs(calls=frozenset({Families.BACKWARD}))
    in_a_row = _IN_A_ROW

    def counts(self, event: CallEvent) -> bool:
        is_trained = bool(event.grad_enabled and event.training)
        return is_trained and event.api.startswith(_WITH_WEIGHTS)
