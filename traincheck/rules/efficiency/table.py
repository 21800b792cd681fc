"""Rules about wasted hardware, by code."""

from __future__ import annotations

from traincheck.rules.efficiency.tc901_unaligned_size import UnalignedSize
from traincheck.rules.efficiency.tc902_channels_first_on_gpu import ChannelsFirstOnGpu
from traincheck.rules.efficiency.tc903_full_precision_on_gpu import FullPrecisionOnGpu
from traincheck.rules.efficiency.tc904_model_off_the_gpu import ModelOffTheGpu
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    UnalignedSize(),
    ChannelsFirstOnGpu(),
    FullPrecisionOnGpu(),
    ModelOffTheGpu(),
)
