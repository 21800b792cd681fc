"""All experiments, in the order in which they are made."""

from __future__ import annotations

from traincheck.collect.probes.base import Experiment
from traincheck.collect.probes.experiments.gradient import Gradient
from traincheck.collect.probes.experiments.in_place import InPlace
from traincheck.collect.probes.experiments.later_tokens import LaterTokens
from traincheck.collect.probes.experiments.padding import Padding, PaddingRow
from traincheck.collect.probes.experiments.row_mixing import BatchPlace, RowMixing

EXPERIMENTS: tuple[Experiment, ...] = (
    RowMixing(),
    BatchPlace(),
    Padding(),
    Gradient(),
    InPlace(),
    PaddingRow(),
    LaterTokens(),
)
