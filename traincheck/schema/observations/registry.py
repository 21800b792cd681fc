"""All observations, in the order in which the documentation lists them."""

from __future__ import annotations

from traincheck.schema.marks import MARKS
from traincheck.schema.observations.attention_softmax import AttentionSoftmax
from traincheck.schema.observations.auxiliary_models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
)
from traincheck.schema.observations.base import Observation
from traincheck.schema.observations.data_reads import DatasetReads, EpochOrder
from traincheck.schema.observations.eval_weights import EvalWeights, EvalWrites
from traincheck.schema.observations.external_writes import ExternalWrites
from traincheck.schema.observations.gradients import (
    ReplacedGradients,
    UnclearedGradients,
    WrittenGradients,
)
from traincheck.schema.observations.hyperparameters import (
    IneffectiveWrite,
    LoadedHyperparameters,
    OverwrittenRates,
)
from traincheck.schema.observations.label_positions import LabelPositions
from traincheck.schema.observations.loaded_averages import LoadedAverage
from traincheck.schema.observations.loaded_generators import LoadedGenerators
from traincheck.schema.observations.loss_broadcast import LossBroadcast
from traincheck.schema.observations.loss_terms import LossSums, LossTerms
from traincheck.schema.observations.metric_uses import MetricUse
from traincheck.schema.observations.model_inputs import ModelInputs
from traincheck.schema.observations.model_structure import ModelStructure
from traincheck.schema.observations.origins import (
    AverageDecay,
    EmbeddingRows,
    LoadFollowed,
    OptimizerValues,
    PartNotLoaded,
)
from traincheck.schema.observations.process_facts import ProcessFacts
from traincheck.schema.observations.recomputation import Recomputation
from traincheck.schema.observations.replicas import ParameterPlacement, ReplicaValues
from traincheck.schema.observations.sources import Sources
from traincheck.schema.observations.worker_rng import WorkerRng

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
