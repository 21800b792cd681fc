"""The sinks by name: those of traincheck, and those that other packages offer."""

from __future__ import annotations

from importlib.metadata import EntryPoint

from traincheck.errors import UsageError, suggested
from traincheck.packages import Registry
from traincheck.sinks.base import Sink

COMMAND = "command"  # the sink of --on-finding; no configuration may name it

SINKS = Registry(
    "traincheck.sinks",
    "sink",
    {
        name: f"traincheck.sinks.{name}_sink:{found}"
        for name, found in (
            ("wandb", "WandB"),
            ("mlflow", "MLflow"),
            ("tensorboard", "TensorBoard"),
            ("webhook", "Webhook"),
            ("prometheus", "Prometheus"),
            ("logging", "Log"),
            (COMMAND, "Command"),
        )
    },
)


def find_sink(name: str) -> EntryPoint:
    """The sink of a name, which is not loaded yet.

    Raises:
        UsageError: there is no such sink.
    """
    sinks = SINKS.entries()
    if name not in sinks:
        known = [known for known in sinks if known != COMMAND]
        raise UsageError(
            f"there is no sink {name!r}",
            fix=f"{suggested(name, known)}There are {', '.join(known)}",
        )
    return sinks[name]


def load_sink(entry: EntryPoint) -> type[Sink]:
    """The class of a sink.

    Raises:
        TypeError: the entry point is not a subclass of `Sink`.
        Exception: those of the module that is imported.
    """
    found = entry.load()
    if not (isinstance(found, type) and issubclass(found, Sink)):
        raise TypeError(f"{entry.value} is not a subclass of traincheck.sinks.base.Sink")
    return found
