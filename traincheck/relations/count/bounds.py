"""The common bounds of the counts of one key."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from traincheck.relations.count.keys import BACKWARD, COLLECTIVE, LANDMARKS, Key
from traincheck.relations.count.windows import CallWindow
from traincheck.relations.phrasing import STEP
from traincheck.schema.torch_api import Families

_MIN_MEAN = 12.0  # of calls that come at random, one step in 160 000 has none
_METHOD, _MOST_CALLS = "torch.Tensor.", 8
_MIN_DISTINCT = 3  # counts, before what divides them all means anything


@dataclass(slots=True)
class CallCounts:
    """Counts of one key.

    Attributes:
        first: the count of the first window.
        later: count -> number of later windows.
        ratios: calls for each backward, if that is a whole number, else 0.
    """

    first: int = 0
    later: Counter[int] = field(default_factory=Counter)
    ratios: Counter[int] = field(default_factory=Counter)

    def enter(self, count: int, window: CallWindow) -> None:
        """Enter one window."""
        ratio, rest = divmod(count, window.backwards) if window.backwards else (0, 1)
        self.ratios[0 if rest else ratio] += 1
        if window.first:
            self.first = count
        else:
            self.later[count] += 1


def bound(
    key: Key, seen: CallCounts, backwards: int, *, is_echo: bool = False
) -> dict[str, Any] | None:
    """The common bounds of the counts of one key, as parameters of a claim; None if nothing.

    Args:
        key: what is counted.
        seen: its counts.
        backwards: how many backwards one optimizer applies at most; 0 with several optimizers.
        is_echo: be as exact as the counts, however few they are.
    """
    later = seen.later
    windows = sum(later.values())
    if not windows:
        return None
    mode, often = later.most_common(1)[0]
    if key[0].startswith(COLLECTIVE):  # more of them where ranks evaluate together
        low = min(later)
        is_usual = 2 * later[low] >= windows
        return _claim("least", low, STEP, skips_first=seen.first < low) if is_usual else None
    is_even = len(seen.ratios) == 1 and min(seen.ratios) > 0
    # The number of accumulated batches is a setting: each has a backward and its scaling.
    if is_even and (key[0] == Families.SCALE or (key[0] not in LANDMARKS and backwards > 1)):
        return _claim("exactly", min(seen.ratios), Families.BACKWARD, skips_first=False)
    # The last windows of epochs may be short.
    is_mostly = key == BACKWARD and mode == max(later) and 2 * often > windows
    if len(later) == 1 or is_mostly:
        if key == BACKWARD and backwards == 1 and not is_echo:  # another run may accumulate
            return _claim("least", 1, STEP, skips_first=False)
        if key[0].startswith(_METHOD) and mode > _MOST_CALLS:  # such as one for each sample
            return _claim("least", 1, STEP, skips_first=not seen.first)
        # The first window has nothing to clear yet: a missing zero_grad does no harm.
        is_less = seen.first < mode and key[0] == Families.ZERO_GRAD
        claim = _claim("exactly", mode, STEP, skips_first=seen.first != mode and not is_less)
        # A schedule continues after an update: it cannot before the first.
        is_late = key[0] == Families.SCHEDULER_STEP and not seen.first
        return {**claim, "late": True} if is_late else claim
    divisor = math.gcd(*later)
    if divisor > 1 and (is_echo or len(later) >= _MIN_DISTINCT):
        return _claim("multiple", divisor, STEP, skips_first=bool(seen.first % divisor))
    mean = sum(count * often for count, often in later.items()) / windows
    return _claim("least", 1, STEP, skips_first=not seen.first) if mean >= _MIN_MEAN else None


def _claim(form: str, times: int, per: str, *, skips_first: bool) -> dict[str, Any]:
    return {"form": form, "times": times, "per": per, "skips_first": skips_first}
