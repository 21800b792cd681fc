"""All observers, in the order of their calls."""

from __future__ import annotations

from traincheck.collect.observers.attention_softmax import AttentionSoftmaxObserver
from traincheck.collect.observers.auxiliary_models import AuxiliaryModelObserver
from traincheck.collect.observers.base import Observer
from traincheck.collect.observers.dataset_reads import DatasetReadObserver
from traincheck.collect.observers.epoch_orders import EpochOrderObserver
from traincheck.collect.observers.eval_weights import EvalWeightObserver
from traincheck.collect.observers.external_writes import ExternalWriteObserver
from traincheck.collect.observers.hyperparameters import HyperparameterObserver
from traincheck.collect.observers.loaded_averages import LoadedAverageObserver
from traincheck.collect.observers.loss_broadcast import LossBroadcastObserver
from traincheck.collect.observers.loss_terms import LossTermObserver
from traincheck.collect.observers.metric_uses import MetricObserver
from traincheck.collect.observers.model_inputs import ModelInputObserver
from traincheck.collect.observers.origins.average_decay import AverageDecayObserver
from traincheck.collect.observers.origins.embedding_rows import EmbeddingRowObserver
from traincheck.collect.observers.origins.followed_loads import FollowedLoadObserver
from traincheck.collect.observers.origins.loaded_generators import LoadedGeneratorObserver
from traincheck.collect.observers.origins.loaded_parameters import LoadedParameterObserver
from traincheck.collect.observers.origins.optimizer_values import OptimizerValueObserver
from traincheck.collect.observers.overwritten_rates import OverwrittenRateObserver
from traincheck.collect.observers.process_facts import ProcessFactsObserver
from traincheck.collect.observers.program_sources import ProgramSourceObserver
from traincheck.collect.observers.recomputation import RecomputationObserver
from traincheck.collect.observers.replicas import ReplicaObserver
from traincheck.collect.observers.stale_gradients import StaleGradientObserver
from traincheck.collect.observers.worker_rng import WorkerRngObserver

OBSERVERS: tuple[type[Observer], ...] = (
    LossBroadcastObserver,
    AttentionSoftmaxObserver,
    StaleGradientObserver,
    ModelInputObserver,
    EvalWeightObserver,
    AuxiliaryModelObserver,
    ExternalWriteObserver,
    LoadedAverageObserver,
    WorkerRngObserver,
    RecomputationObserver,
    LossTermObserver,
    ProcessFactsObserver,
    ProgramSourceObserver,
    ReplicaObserver,
    FollowedLoadObserver,
    EmbeddingRowObserver,
    AverageDecayObserver,
    OptimizerValueObserver,
    LoadedParameterObserver,
    LoadedGeneratorObserver,
    HyperparameterObserver,
    OverwrittenRateObserver,
    MetricObserver,
    EpochOrderObserver,
    DatasetReadObserver,
)
