"""One batch norm that is used at several places of a model."""

from __future__ import annotations

from traincheck.rules.base.model_rule import MODELS
from traincheck.rules.configuration.layer_reuse import ReusedModuleRule
from traincheck.rules.shared.gradient_reach import LEAVES
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families

_API = "torch.nn.functional.batch_norm"
_IN_A_ROW = 2


class BatchNormReused(ReusedModuleRule, code="TC915", severity="info"):
    """batch-norm-reused: one batch norm is used at several places of a model.

    What it checks:
        A batch norm in training mode is called once in a forward of the model.

    Why it matters:
        Its running statistics mix two distributions and match neither in evaluation.

    Fires on:
        - A block with a batch norm that is applied twice in one forward, in two consecutive
          training steps.

    Stays quiet on:
        - Several forwards in a step (accumulation, GAN).
        - A network that is called as a whole on several inputs (siamese branches).
        - Layers in a loop over time.
        - Evaluation mode.
        - Recomputation in gradient checkpointing.

    Fix:
        Build one batch norm for each place.

    Source:
        https://github.com/pytorch/pytorch/issues/7289
    """

    title = "A batch norm is used at several places of one forward"
    likely_cause = "The same layer object is called more than once."
    fix = "Build one batch norm for each place, or use a norm without running statistics."
    needs = LEAVES | MODELS | Needs(calls=frozenset({_API, Families.BACKWARD}))
    in_a_row = _IN_A_ROW
    has_others = True

    def counts(self, event: CallEvent) -> bool:
        return event.api == _API and event.args.get("training") is True
