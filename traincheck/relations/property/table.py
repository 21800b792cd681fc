"""All properties, one row each."""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.relations.property.base import Property
from traincheck.relations.property.data import DATASET_READS, METRIC_PHASES
from traincheck.relations.property.experiments import EXPERIMENTS
from traincheck.relations.property.gradients import (
    HANDED_OVER,
    RECOMPUTED,
    RESCALED_SUMS,
    TRAINED_SUMS,
)
from traincheck.relations.property.settings import LOADED_SETTING, WRITTEN_SETTING
from traincheck.relations.property.states import (
    KEPT_STATE,
    LOADED_WEIGHTS,
    PADDING_VECTOR,
    RESTORED_GENERATOR,
)

_ALL = (
    *EXPERIMENTS,
    TRAINED_SUMS,
    RESCALED_SUMS,
    HANDED_OVER,
    RECOMPUTED,
    LOADED_WEIGHTS,
    KEPT_STATE,
    RESTORED_GENERATOR,
    PADDING_VECTOR,
    LOADED_SETTING,
    WRITTEN_SETTING,
    METRIC_PHASES,
    DATASET_READS,
)
PROPERTIES: Mapping[str, Property] = {each.name: each for each in _ALL}
