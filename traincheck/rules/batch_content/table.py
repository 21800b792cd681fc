"""Rules about the content of batches, by code."""

from __future__ import annotations

from traincheck.rules.batch_content.tc912_mask_attends_to_padding import MaskAttendsToPadding
from traincheck.rules.batch_content.tc913_mostly_padding import MostlyPadding
from traincheck.rules.batch_content.tc916_unknown_tokens import UnknownTokens
from traincheck.rules.batch_content.tc918_unscaled_image import UnscaledImage
from traincheck.rules.batch_content.tc919_flat_batch import FlatBatch
from traincheck.rules.batch_content.tc920_channels_last_batch import ChannelsLastBatch
from traincheck.rules.batch_content.tc921_negative_index import NegativeIndex
from traincheck.schema.protocols import Rule

RULES: tuple[Rule, ...] = (
    MaskAttendsToPadding(),
    MostlyPadding(),
    UnknownTokens(),
    UnscaledImage(),
    FlatBatch(),
    ChannelsLastBatch(),
    NegativeIndex(),
)
