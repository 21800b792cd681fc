"""Additions to a finding: suppressions, texts, source lines, comparisons.

A violation is reported in any case. When an addition fails, the finding is reported without it, and
a note says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_LONGEST = 120  # characters of an error's text
_logger = logging.getLogger(__name__)


class BestEffort:
    """Makes additions to findings, which may fail.

    Attributes:
        notes: a sentence for each addition that failed, as keys, in order.
    """

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}

    def __call__(self, what: str, make: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        """Return what ``make`` returns, or what ``otherwise`` returns when ``make`` fails.

        Args:
            what: names the addition in a note, such as ``the comments for TC201``.
            make: makes the addition.
            otherwise: returns a replacement, and must not fail.
        """
        try:
            return make()
        except Exception as error:  # RecursionError and MemoryError, too
            _logger.debug("an addition to a finding failed", exc_info=error)
            reason = f"{type(error).__name__}: {str(error)[:_LONGEST]}"
            self.notes[f"{what} failed with {reason}; it is reported without"] = None
            return otherwise()
