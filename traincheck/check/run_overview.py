"""The composition of a run, counted from its events, and the checkpoints that it wrote."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from pathlib import PurePath

from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Report, Save
from traincheck.schema.marks import Marks
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.words import joined

_MOST_PROBES = 1000


@dataclass(slots=True)
class RunOverview:
    """The models, optimizers and processes of a run, those of all ranks together.

    Attributes:
        parameters: root of a model -> number of elements of each parameter, by name. Parameters
            that an optimizer holds and no module owns are listed under their optimizer.
        optimizers: id -> class.
        processes: rank and pid.
        workers: those of the processes that load data for another.
        probes: results of experiments, the first ones.
    """

    parameters: dict[str, dict[str, int]] = field(default_factory=dict)
    optimizers: dict[str, str] = field(default_factory=dict)
    processes: set[tuple[int, str]] = field(default_factory=set)
    workers: set[tuple[int, str]] = field(default_factory=set)
    probes: list[ProbeEvent] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take in any event of the run. Frequent kinds are tested first."""
        if event.kind == "state":
            if event.role == "parameter" and event.change in ("new", "replaced", "gone"):
                root, bracket, _ = event.name.partition(".")[0].partition("[")
                root = f"tensors of {root}" if bracket else root
                members = self.parameters.setdefault(root, {})
                if event.change == "gone":
                    members.pop(event.name, None)
                else:
                    shape = event.summary.shape if event.summary is not None else ()
                    members[event.name] = prod(shape or ())
        elif event.kind == "optimizer":
            self.optimizers[event.id] = event.cls
        elif event.kind == "mark":
            if event.text == Marks.PROCESS:
                process = (event.rank, event.stream.partition("-")[0])
                self.processes.add(process)
                if event.data.get("worker"):
                    self.workers.add(process)
        elif event.kind == "probe" and len(self.probes) < _MOST_PROBES:
            self.probes.append(event)


_MAX_SAVES = 4096  # the latest
_MAX_NAMES = 4  # in a sentence


class SavedCheckpoints:
    """The saves of a run. A save to the same path replaces the earlier one."""

    def __init__(self) -> None:
        self._found: dict[str, Save] = {}

    def add(self, event: CheckpointEvent) -> None:
        """Add a save of a training process, if it was made after training began."""
        if event.op != "save" or event.step is None or event.stage == "init":
            return
        key = event.path or f"{event.where}:{event.step}"
        self._found.pop(key, None)
        self._found[key] = Save(
            path=event.path, step=event.step, rank=event.rank, where=event.where
        )
        if len(self._found) > _MAX_SAVES:
            del self._found[next(iter(self._found))]

    def all(self) -> tuple[Save, ...]:
        """All saves, in the order in which they were made."""
        return tuple(self._found.values())


def suspects(report: Report) -> list[Save]:
    """The saves made in or after the first step of the first finding of severity error."""
    firsts = [finding.first_step or 0 for finding in report.findings if finding.severity == "error"]
    return [save for save in report.saves if firsts and save.step >= min(firsts)]


def suspect_note(report: Report) -> str:
    """A sentence that names the suspect checkpoints; empty if there are none."""
    steps: dict[str, int] = {}
    found = suspects(report)
    folders = []
    for save in found:
        folder = str(PurePath(save.path).parent) if save.path else "."
        folders.append(("" if folder == "." else f"{folder}/", save.step))
    for save, at in zip(found, folders):
        is_of_several = at[0] and folders.count(at) > 1  # files of one checkpoint
        steps[at[0] if is_of_several else save.path or f"a file written by {save.where}"] = (
            save.step
        )
    if not steps:
        return ""
    named = joined([f"{name} (step {step})" for name, step in steps.items()], _MAX_NAMES)
    return f"checkpoints written since the first error, not to be resumed from: {named}"
