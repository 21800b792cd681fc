"""The numbers of findings for the logger of a framework, when they change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from traincheck.handlers import give_back
from traincheck.integrations.watching import Watch

_logger = logging.getLogger("traincheck")


class LoggedCounts:
    """Logs the numbers of findings of a watch. A failure is reported once."""

    def __init__(self) -> None:
        self._logged: Mapping[str, int] = {}
        self._is_failed = False

    def log(
        self, run: Watch, write: Callable[[dict[str, float]], object], *, always: bool = False
    ) -> None:
        """Hand the numbers to ``write``, which belongs to the framework, if there is a finding.

        always: also where they are those of the last call.
        """
        if self._is_failed:
            return
        try:
            counts = dict(run.counts)
            if not any(counts.values()) or (counts == self._logged and not always):
                return
            self._logged = counts
            write({f"traincheck/{name}": float(number) for name, number in counts.items()})
        except Exception as error:  # training goes on without these numbers
            give_back(error)
            self._is_failed = True
            _logger.warning("traincheck: findings could not be logged: %s", error, exc_info=error)
