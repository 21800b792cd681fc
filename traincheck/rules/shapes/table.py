"""Rules about the order of dimensions, by code."""

from __future__ import annotations

from traincheck.rules.shapes.tc323_batch_first_mismatch import BatchFirstMismatch
from traincheck.rules.shapes.tc326_batch_dims_mixed import BatchDimsMixed
from traincheck.rules.shapes.tc328_view_for_transpose import ViewForTranspose
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    BatchFirstMismatch(),
    BatchDimsMixed(),
    ViewForTranspose(),
)
