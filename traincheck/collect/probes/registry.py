"""All experiments, in the order in which they are made."""

from __future__ import annotations

from traincheck.collect.probes.base import Experiment
from traincheck.collect.probes.experiments.gradient import Gradient
from traincheck.collect.probes.experiments.row_mixing import RowMixing

EXPERIMENTS: tuple[Experiment, ...] = (
    RowMixing(),
    Gradient(),
)
