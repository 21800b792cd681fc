"""All observations, in the order in which the documentation lists them."""

from __future__ import annotations

from traincheck.schema.marks import MARKS
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.data import DatasetReads, EpochOrder, MetricUse, WorkerRng
from traincheck.schema.observations.gradients import (
    ExternalWrites,
    Recomputation,
    ReplacedGradients,
    UnclearedGradients,
    WrittenGradients,
)
from traincheck.schema.observations.loads import (
    AverageDecay,
    EmbeddingRows,
    IneffectiveWrite,
    LoadedAverage,
    LoadedGenerators,
    LoadedHyperparameters,
    LoadFollowed,
    OptimizerValues,
    OverwrittenRates,
    PartNotLoaded,
)
from traincheck.schema.observations.losses import (
    AttentionSoftmax,
    LabelPositions,
    LossBroadcast,
    LossSums,
    LossTerms,
)
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
    EvalEffects,
    EvalWeights,
    EvalWrites,
    ModelInputs,
    ModelStructure,
)
from traincheck.schema.observations.operations import OperationUses
from traincheck.schema.observations.processes import (
    ParameterPlacement,
    ProcessFacts,
    ReplicaValues,
    Sources,
)

OBSERVATIONS: tuple[type[Observation], ...] = (
    ModelStructure,
    ModelInputs,
    LossBroadcast,
    AttentionSoftmax,
    UnclearedGradients,
    WrittenGradients,
    ReplacedGradients,
    ExternalWrites,
    EvalWeights,
    EvalWrites,
    EvalEffects,
    AuxiliaryTraining,
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    LoadedAverage,
    LoadedGenerators,
    WorkerRng,
    Recomputation,
    LossTerms,
    LossSums,
    LabelPositions,
    OperationUses,
    ProcessFacts,
    Sources,
    ParameterPlacement,
    ReplicaValues,
    LoadFollowed,
    EmbeddingRows,
    AverageDecay,
    OptimizerValues,
    PartNotLoaded,
    LoadedHyperparameters,
    IneffectiveWrite,
    OverwrittenRates,
    MetricUse,
    EpochOrder,
    DatasetReads,
)
# Texts of the marks that traincheck makes; a user's mark with one of them is told apart.
MARK_TEXTS = MARKS | {observation.text for observation in OBSERVATIONS}
