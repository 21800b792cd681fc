"""TensorBoard: numbers of findings as scalars, findings and the report as texts."""

from __future__ import annotations

from typing import ClassVar

from traincheck.metrics import trackers
from traincheck.sinks.base import Message, Sink, keyed


class TensorBoard(Sink):
    """Event files.

    Args:
        directory: where to write them.

    Raises:
        MissingDependencyError: tensorboard is not installed.
    """

    target: ClassVar[str] = "directory"

    def __init__(self, directory: str = "runs/traincheck") -> None:
        self._directory = directory
        self._files = trackers.TensorBoard(directory)

    def finding(self, message: Message) -> None:
        """Write the finding as text, and the number of findings so far."""
        found = message["finding"]
        step = found["first_step"] or 0
        self._files.log(keyed(message["counts"]), step)
        text = message["text"].replace("\n", "\n\n")
        self._files.text(f"traincheck/{found['code']}", text, step)

    def report(self, message: Message) -> None:
        """Write the numbers of the report, and all of it as text."""
        step = message["summary"]["steps"]
        self._files.log(keyed({**message["counts"], **message["summary"]}), step)
        self._files.log(keyed({"exit_status": message["exit_status"]}), step)
        self._files.text("traincheck/report", message["markdown"], step)

    def close(self) -> str:
        """Write what is left."""
        self._files.close()
        return f"tensorboard --logdir {self._directory}"
