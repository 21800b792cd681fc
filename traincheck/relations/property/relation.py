"""The relation *property*: what experiments and observations show stays as in reference runs."""

from __future__ import annotations

from collections.abc import Mapping

from traincheck.relations.learned import Learned
from traincheck.relations.property.base import Property
from traincheck.relations.property.experiments import SHOWN_BY_PROBES
from traincheck.relations.property.gradients import (
    HANDED_OVER,
    RECOMPUTED,
    RESCALED_SUMS,
    TRAINED_SUMS,
)
from traincheck.relations.property.states import (
    DATASET_READS,
    KEPT_STATE,
    LOADED_SETTING,
    LOADED_WEIGHTS,
    METRIC_PHASES,
    PADDING_VECTOR,
    RESTORED_GENERATOR,
    WRITTEN_SETTING,
)

_ALL = (
    *SHOWN_BY_PROBES, TRAINED_SUMS, RESCALED_SUMS, HANDED_OVER, RECOMPUTED, LOADED_WEIGHTS,
    KEPT_STATE, RESTORED_GENERATOR, PADDING_VECTOR, LOADED_SETTING, WRITTEN_SETTING, METRIC_PHASES,
    DATASET_READS,
)  # fmt: skip
PROPERTIES: Mapping[str, Property] = {each.name: each for each in _ALL}


class PropertyHolds(Learned):
    """A property that was read in all reference runs is the same.

    Claims:
        For one program and one subject, such as a model, an optimizer or a dataset:
        - An experiment of `traincheck probe` holds: a sample does not depend on the others of its
          batch or on its place, padding and later tokens take no part, no activation overwrites
          its input, statistics do not learn in evaluation, the gradient is that of the loss.
        - Each term of a sum of losses is behind the root of backward().
        - Gradients that accumulate are not scaled in between.
        - Gradients that the program writes itself are written before each update.
        - Checkpointed segments have the same values when they are recomputed.
        - The padding vector of an embedding is zero.
        - The first update after a load starts from the loaded weights.
        - The state that is kept as the best one has the lowest evaluation loss.
        - After a load, a hyper-parameter is the loaded one, or the one that was set before.
        - Hyper-parameters are set where the optimizer reads them.
        - A metric is computed over samples of one phase.
        - A sample of a dataset has the same values in each epoch.

    Example:
        ``In train.py, padding takes no part in the results of Encoder.`` It breaks when the mask
        of padding gets another shape.

    Evidence:
        - An experiment, a load, a metric and a comparison of a dataset are ten examples each: they
          compare many numbers. A step is one example.
        - What varies within a run proves nothing, and is not claimed.

    Chance:
        A coin for each example.

    Not claimed:
        - What could not be observed. Experiments need runs that were recorded with `--probe`.
        - Properties that do not hold in the reference run.
    """

    name = term = "property"
    rows = PROPERTIES
    named = ("what", "of")
