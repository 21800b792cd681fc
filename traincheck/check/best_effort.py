"""What is added to a finding: who accepted it, words, lines of code, calls beside it.

A violation is a fact. When something that is only added to it fails, the finding is reported
without it, with a note.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")
_LONGEST = 120  # characters of an error's text
_logger = logging.getLogger(__name__)


class Decorating:
    """Makes additions to findings.

    Attributes:
        notes: a sentence for each addition that failed, as keys, in order.
    """

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}

    def __call__(self, what: str, make: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        """What ``make`` returns, or ``otherwise`` where it fails.

        Args:
            what: the addition and what it is for, such as ``the comments for TC201``.
            make: makes the addition.
            otherwise: gives what stands in its place, and must not fail.
        """
        try:
            return make()
        except Exception as error:  # RecursionError and MemoryError, too
            _logger.debug("an addition to a finding failed", exc_info=error)
            reason = f"{type(error).__name__}: {str(error)[:_LONGEST]}"
            self.notes[f"{what} failed with {reason}; it is reported without"] = None
            return otherwise()
