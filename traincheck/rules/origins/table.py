"""Rules about the origins of values, by code."""

from __future__ import annotations

from traincheck.rules.origins.tc050_load_undone_by_update import LoadUndoneByUpdate
from traincheck.rules.origins.tc051_stale_gradients_applied import StaleGradientsApplied
from traincheck.rules.origins.tc052_optimizer_state_misplaced import OptimizerStateMisplaced
from traincheck.rules.origins.tc053_worst_state_kept import WorstStateKept
from traincheck.rules.origins.tc054_tied_copies_drift import TiedCopiesDrift
from traincheck.rules.origins.tc055_average_forgets import AverageForgets
from traincheck.rules.origins.tc056_new_rows_frozen import NewRowsFrozen
from traincheck.rules.origins.tc057_padding_row_not_zero import PaddingRowNotZero
from traincheck.rules.origins.tc059_missing_part_frozen import MissingPartFrozen
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    LoadUndoneByUpdate(),
    StaleGradientsApplied(),
    OptimizerStateMisplaced(),
    WorstStateKept(),
    TiedCopiesDrift(),
    AverageForgets(),
    NewRowsFrozen(),
    PaddingRowNotZero(),
    MissingPartFrozen(),
)
