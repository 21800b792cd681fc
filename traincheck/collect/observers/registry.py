"""All observers, in the order of their calls."""

from __future__ import annotations

from traincheck.collect.observers.attention_softmax import AttentionSoftmaxObserver
from traincheck.collect.observers.averages import AverageDecayObserver, LoadedAverageObserver
from traincheck.collect.observers.base import Observer
from traincheck.collect.observers.datasets import DatasetReadObserver, EpochOrderObserver
from traincheck.collect.observers.eval_weights import EvalWeightObserver
from traincheck.collect.observers.forwards import AuxiliaryModelObserver, ModelInputObserver
from traincheck.collect.observers.hyperparameters import (
    HyperparameterObserver,
    OverwrittenRateObserver,
)
from traincheck.collect.observers.loss_broadcast import LossBroadcastObserver
from traincheck.collect.observers.loss_terms import LossTermObserver
from traincheck.collect.observers.metric_uses import MetricObserver
from traincheck.collect.observers.operations import OperationObserver
from traincheck.collect.observers.origins.embedding_rows import EmbeddingRowObserver
from traincheck.collect.observers.origins.loaded_generators import LoadedGeneratorObserver
from traincheck.collect.observers.origins.loads import (
    FollowedLoadObserver,
    LoadedParameterObserver,
    OptimizerValueObserver,
)
from traincheck.collect.observers.outside_updates import (
    ExternalWriteObserver,
    StaleGradientObserver,
)
from traincheck.collect.observers.process_facts import ProcessFactsObserver, ProgramSourceObserver
from traincheck.collect.observers.recomputation import RecomputationObserver
from traincheck.collect.observers.replicas import ReplicaObserver
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
    OperationObserver,
)
