"""The sinks by name: those of traincheck, and those that other packages offer."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from traincheck.errors import UsageError, suggested
from traincheck.sinks.base import Sink

ENTRY_POINTS = "traincheck.sinks"
COMMAND = "command"  # the sink of --on-finding; no configuration may name it

_CLASSES = {
    "wandb": "WandB",
    "mlflow": "MLflow",
    "tensorboard": "TensorBoard",
    "webhook": "Webhook",
    "prometheus": "Prometheus",
    "logging": "Log",
    COMMAND: "Command",
}
SINKS = {
    name: EntryPoint(name, f"traincheck.sinks.{name}_sink:{found}", ENTRY_POINTS)
    for name, found in _CLASSES.items()
}
NAMES = tuple(name for name in SINKS if name != COMMAND)


def all_sinks() -> dict[str, EntryPoint]:
    """The sinks of traincheck, then those of other packages.

    Raises:
        UsageError: a package offers a sink whose name is taken.
    """
    sinks = dict(SINKS)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda e: (e.name, e.value)):
        if entry.name in sinks:
            raise UsageError(
                f"{entry.value} offers sink {entry.name!r}, which exists already",
                fix="uninstall the package or rename its sink",
            )
        sinks[entry.name] = entry
    return sinks


def find_sink(name: str) -> EntryPoint:
    """The sink of a name, which is not loaded yet.

    Raises:
        UsageError: there is no such sink.
    """
    sinks = all_sinks()
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
