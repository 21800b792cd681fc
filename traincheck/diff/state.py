"""The values of the variables of one run, followed over its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from traincheck.diff.items import Phase
from traincheck.diff.steps import StateRecord, StepView
from traincheck.diff.values import NULL
from traincheck.schema.events import CheckpointEvent

Variable = tuple[str, str]  # role, name
# Settings that choose how an update is computed, not which.
_IMPLEMENTATION = frozenset(
    {"foreach", "fused", "capturable", "differentiable", "initial_lr", "lr"}
)
_GONE = ("cleared", "gone")
PHASE_OF = {
    "parameter": Phase.PARAMETER,
    "buffer": Phase.BUFFER,
    "optimizer_state": Phase.OPTIMIZER_STATE,
    "gradient": Phase.GRADIENT,
}


class SideState:
    """The variables and settings of one run after the records that it was given.

    values: of each variable, the JSON of its summary; None where the trace cannot show it.

    Args:
        named: the name by which a variable is known in the comparison; None for none.
    """

    def __init__(self, named: Callable[[str], str | None] = lambda name: name) -> None:
        self._named = named
        self.values: dict[Variable, bytes | None] = {}
        # By optimizer, then by group (" group 1", "" if there is one) and name.
        self.settings: dict[str, dict[tuple[str, str], Any]] = {}

    def begin_step(self, view: StepView) -> list[Variable]:
        """Take in what changed before the first batch of a step; the variables in order."""
        touched: dict[Variable, None] = {}
        records: list[StateRecord | CheckpointEvent] = [*view.opening]
        if view.checkpoints:
            records = sorted([*records, *view.checkpoints], key=lambda record: record.time_ns)
        for record in records:
            if isinstance(record, StateRecord):
                variable = self.put(record)
                if variable is not None:
                    touched[variable] = None
            elif record.op == "load_state_dict" and record.changed != 0:
                touched.update(dict.fromkeys(self._load(record)))
        for event in view.optimizers:
            found: dict[tuple[str, str], Any] = {("", "class"): event.cls.rpartition(".")[2]}
            for number, group in enumerate(event.groups):
                prefix = f" group {number}" if len(event.groups) > 1 else ""
                for name, value in group.hyper.items():
                    if name not in _IMPLEMENTATION:
                        found[prefix, name] = value
            self.settings[event.id] = found
        return list(touched)

    def put(self, record: StateRecord) -> Variable | None:
        """Take in one change; None if the variable is not compared."""
        name = self._named(record.name)
        if name is None:
            return None
        variable = (record.role, name)
        if record.change == "unknown":
            self.values[variable] = None
        elif record.change in _GONE:
            self.values[variable] = NULL
        else:
            self.values[variable] = bytes(record.summary)
        return variable

    def _load(self, load: CheckpointEvent) -> Iterator[Variable]:
        """A load: parameters are told, what else it wrote is not known until it changes."""
        for given, fingerprint in load.values.items():
            name = self._named(given) or ""
            old = self.values.get(("parameter", name))
            if isinstance(fingerprint, str) and old is not None and old != NULL:
                summary = msgspec.json.decode(old)
                kept = {key: summary[key] for key in ("dtype", "shape", "device") if key in summary}
                told = msgspec.json.encode({**kept, "fingerprint": fingerprint})
                self.values["parameter", name] = told
                yield ("parameter", name)
        for variable in self.values:
            role, name = variable
            is_buffer = role == "buffer" and load.target and name.startswith(f"{load.target}.")
            if is_buffer or (role == "optimizer_state" and load.owner):
                self.values[variable] = None
