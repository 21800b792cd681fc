"""Weight decay on embeddings."""

from __future__ import annotations

import re

from traincheck.rules.base.model_rule import EMBEDDING
from traincheck.rules.configuration.weight_decay import DECAY, DecayRule

# All rows get gradients in every step.
_OF_POSITIONS = re.compile(r"(^|[._])(wpe|pos(ition(s|al)?)?)([._]|$)")


class DecayOnEmbedding(DecayRule, code="TC908", severity="info"):
    """decay-on-embedding: weight decay is applied to embeddings.

    What it checks:
        Parameter groups with weight decay contain no embeddings.

    Why it matters:
        Rows of rare tokens get no gradient, so only the decay changes them.

    Fires on:
        - An optimizer with weight decay over a model with an embedding. There is one finding for
          each optimizer.

    Stays quiet on:
        - Groups without decay.
        - Models without embeddings.
        - Position embeddings.

    Fix:
        Use a separate parameter group with weight_decay=0.

    Source:
        https://arxiv.org/abs/2005.14165
    """

    title = "Weight decay is applied to embeddings"
    likely_cause = "Embeddings are in a group with weight decay."
    fix = "Put embeddings into a group with weight_decay=0."
    needs = DECAY

    def should_not_decay(self, name: str, family: str | None) -> bool:
        return family == EMBEDDING and _OF_POSITIONS.search(name) is None
