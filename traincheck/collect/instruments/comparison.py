"""Records for the comparison of runs, beside calls and variables. In the view "diff" only."""

from __future__ import annotations

from traincheck.collect.instruments.base import Instrument


class Comparison(Instrument):
    """Facts of the process, by its observer."""

    name = "comparison"

    def is_wanted(self) -> bool:
        """In the view "diff", also when everything is recorded."""
        return self.session.settings.view == "diff"

    def install(self) -> None:
        """Nothing is replaced: observers use hooks of the session."""
