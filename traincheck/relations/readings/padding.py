"""Readings of padding, masks and end tokens in batches of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traincheck.relations.readings.reading import (
    END_TOKEN,
    MASK,
    PADDING,
    ReadingKey,
    ScalarReading,
)
from traincheck.schema.events import BatchEvent, CallEvent

_SAME = 1e-3
_CLEAR = 0.02  # distance from none and from a half, where both polarities look alike


@dataclass(slots=True)
class Padding:
    """Compares the boolean masks of attention with the padding of the batch before them."""

    _padding: float | None = None
    _shape: Sequence[int] = ()

    def batch(self, event: BatchEvent) -> Sequence[ScalarReading]:
        """A batch came: whether labels lack the end token and whether padding is attended to."""
        padding = event.tokens.get("padding")
        self._padding = float(padding) if isinstance(padding, (int, float)) else None
        shapes = [leaf["shape"] for leaf in event.leaves.values() if isinstance(leaf, dict)]
        self._shape = shapes[0] if shapes else ()
        if self._padding is None:
            return ()
        found = []
        lost = "lost_end" in event.tokens
        if lost or event.tokens.get("token_labels"):  # classes and tags hold no end
            found.append(ScalarReading(ReadingKey(END_TOKEN, event.loader), float(lost), event))
        attended = event.tokens.get("attended_padding")
        if attended or (attended == 0 and self._padding):
            found.append(
                ScalarReading(ReadingKey(PADDING, event.loader), float(attended > 0), event)
            )
        return found

    def call(self, event: CallEvent) -> Sequence[ScalarReading]:
        """Whether attention leaves out the padding (1) or all but the padding (0)."""
        mask = event.args.get("attn_mask")
        if not isinstance(mask, dict) or mask.get("dtype") != "bool" or self._padding is None:
            return ()
        shape, zeros = mask["shape"], (mask.get("stats") or {}).get("zeros")
        if zeros is None or [shape[0], shape[-1]] != [*self._shape[:1], *self._shape[1:2]]:
            return ()
        padding = self._padding
        if min(padding, 1 - padding, abs(padding - 0.5)) < _CLEAR:
            return ()
        for value, share in ((1.0, padding), (0.0, 1 - padding)):
            if abs(zeros - share) <= _SAME:
                return (ScalarReading(ReadingKey(MASK, event.api), value, event),)
        return ()
