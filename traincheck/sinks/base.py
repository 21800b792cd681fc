"""The base of a sink. Importing a sink is cheap: its library is loaded when the sink is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

Message = Mapping[str, Any]


class Sink:
    """A receiver of messages about one run. It is made in a process that serves only this sink.

    The arguments of the constructor are the settings of the sink: keys of its table in the
    configuration. A method that raises is reported to the user once, and the sink gets the next
    message. Messages are JSON documents, see docs/sinks.md.

    Attributes:
        target: the setting that ``--to NAME=TARGET`` sets; empty if there is none.
        patience_s: seconds that a command waits for the sink at its end.
        takes_progress: whether the sink needs `progress`.
    """

    target: ClassVar[str] = ""
    patience_s: ClassVar[float] = 10.0
    takes_progress: ClassVar[bool] = False

    def finding(self, message: Message) -> None:
        """A finding: as soon as it is known in a live run, else before the report."""

    def withdrawn(self, message: Message) -> None:
        """A finding that was sent no longer counts."""

    def progress(self, message: Message) -> None:
        """The present numbers of a live run, at intervals."""

    def report(self, message: Message) -> None:
        """The report of the whole run, once."""

    def close(self) -> str:
        """No further message follows. Returns where the results can be seen; empty if nowhere."""
        return ""


def keyed(numbers: Mapping[str, float]) -> dict[str, float]:
    """Numbers by the names that trackers show: `errors` is ``traincheck/errors``."""
    return {f"traincheck/{name}": float(number) for name, number in numbers.items()}
