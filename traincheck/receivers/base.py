"""The base of receivers of findings, and the receivers by name.

Importing a receiver is cheap: its library is loaded when the receiver is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, ClassVar

from traincheck.packages import Registry

Message = Mapping[str, Any]


class Receiver:
    """A receiver of messages about one run. It is made in a process that serves only this receiver.

    The arguments of the constructor are the settings of the receiver: keys of its table in the
    configuration. A method that raises is reported to the user once, and the receiver gets the next
    message. Messages are JSON documents, see docs/receivers.md.

    Attributes:
        target: the setting that ``--to NAME=TARGET`` sets; empty if there is none.
        patience_s: seconds that a command waits for the receiver at its end.
        takes_progress: whether the receiver needs `progress`.
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


COMMAND = "command"  # the receiver of --on-finding; no configuration may name it
# Packages offer receivers, and users configure them, by the older word: sinks.
RECEIVERS = Registry(
    "traincheck.sinks",
    "receiver",
    {
        name: f"traincheck.receivers.{at}"
        for name, at in (
            ("wandb", "trackers:WandB"),
            ("mlflow", "trackers:MLflow"),
            ("tensorboard", "trackers:TensorBoard"),
            ("webhook", "webhook:Webhook"),
            ("prometheus", "files:Prometheus"),
            ("logging", "files:Log"),
            (COMMAND, "command:Command"),
        )
    },
)


def load_receiver(entry: EntryPoint) -> type[Receiver]:
    """The class of a receiver.

    Raises:
        TypeError: the entry point is not a subclass of `Receiver`.
        Exception: those of the module that is imported.
    """
    found = entry.load()
    if not (isinstance(found, type) and issubclass(found, Receiver)):
        raise TypeError(f"{entry.value} is not a subclass of traincheck.receivers.base.Receiver")
    return found
