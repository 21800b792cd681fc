"""The record of a closed step: the fields of a `ProfileEvent`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from os import getpid
from typing import Any

import torch

from traincheck.collect.profile.clock import BACKWARD, FORWARD, PHASES, RECOMPUTE, Times
from traincheck.collect.profile.finite import GIVEN, GRADIENT, OPTIMIZER, Entry, text_of
from traincheck.collect.profile.layers import Form, LayerStep, Row
from traincheck.collect.profile.step import StepProfile
from traincheck.collect.tensors.reading import as_plain, requires_grad

_MOST_UNCOUNTED = 32


def record_of(step: StepProfile, *, skipped_update: bool, complete: bool) -> dict[str, Any]:
    """The fields of the event of a step that is closed.

    skipped_update: a gradient scaler has found infinities, and left the parameters as they were.
    """
    called = {row for row, layer in step.steps.items() if layer.calls or layer.recomputed}
    times = step.timeline.times(_rows_of(step, called))
    entry = step.finite.origin()
    origin = None if entry is None else _origin(step, entry, skipped_update=skipped_update)
    return {
        "layers": list(_layers(step, times)),
        "phases": {PHASES[phase]: spent for phase, spent in sorted(times.phases.items())},
        "clock": step.clock.name,
        "memory": _memory(step),
        "origin": origin,
        "facts": _facts(step),
        "uncounted": dict(step.uncounted.most_common(_MOST_UNCOUNTED)),
        "unseen": dict(step.unseen),
        "complete": complete,
    }


def _path_of(step: StepProfile, call: int) -> str:
    """Path of the module of a call; empty outside of modules."""
    return step.layers.rows[step.timeline.calls[call][0]].path


def _rows_of(step: StepProfile, called: set[int]) -> Callable[[int], tuple[int, ...]]:
    """The rows that the time of a call is part of: those of its callers, each once.

    A container that is never called, such as a list of modules, gets the time of the modules in it.
    """
    known: dict[int, tuple[int, ...]] = {0: ()}

    def rows_of(call: int) -> tuple[int, ...]:
        found = known.get(call)
        if found is None:
            row, parent = step.timeline.calls[call]
            around = (one for one in step.layers.ancestors(row) if one not in called)
            found = known[call] = tuple(dict.fromkeys((*rows_of(parent), row, *around)))
        return found

    return rows_of


def _layers(step: StepProfile, times: Times) -> Iterator[dict[str, Any]]:
    for number, row in enumerate(step.layers.rows):
        layer = step.steps.get(number) or LayerStep()
        record: dict[str, Any] = {
            "path": row.path,
            "class": row.cls,
            "parent": row.parent,
            "calls": layer.calls,
            "recomputed": layer.recomputed,
            # with ``use_reentrant``, the nodes are made when the segment is computed again
            "flops": [layer.forward + (not layer.recomputed) * layer.untaped, layer.backward],
            "retained": layer.retained,
        }
        for name, phase in (("forward", FORWARD), ("backward", BACKWARD), ("again", RECOMPUTE)):
            spent = [times.own[number, phase], times.total[number, phase]]
            if any(spent):
                record[name] = spent
        record.update(_shapes(step, layer))
        record.update(_own_tensors(step, row))
        yield record


def _shapes(step: StepProfile, layer: LayerStep) -> dict[str, Any]:
    bad = step.finite.bad
    found: dict[str, Any] = {}
    if layer.inputs is not None:
        found["inputs"], found["input_bytes"] = _json(layer.inputs), layer.input_bytes
    if layer.outputs is not None:
        found["outputs"], found["output_bytes"] = _json(layer.outputs), layer.output_bytes
    if layer.flow_in:
        found["gradient_in"] = layer.flow_in
    if layer.flow_out:
        found["gradient_out"] = layer.flow_out
    flags = {
        "varies": layer.varies,
        "output_bad": layer.found,
        "gradient_in_bad": not bad.isdisjoint(layer.arrivals),
        "gradient_out_bad": not bad.isdisjoint(layer.departures),
    }
    found.update({name: True for name, flag in flags.items() if flag})
    if layer.grown_forward:
        found["grown"] = [layer.grown_forward, layer.grown_backward]
    return found


def _json(forms: list[Form]) -> list[list[Any]]:
    return [[sizes, dtype] for sizes, dtype in forms]


def _own_tensors(step: StepProfile, row: Row) -> dict[str, Any]:
    """Its parameters: identity, elements, bytes, whether trained, bytes of gradient and states."""
    found: dict[str, Any] = {}
    parameters = [
        [
            name.rpartition(".")[2],
            id(tensor),
            (plain := as_plain(tensor)).numel(),
            plain.nbytes,
            requires_grad(tensor),
            step.gradients.get(id(tensor), 0),
            step.states.get(id(tensor), 0),
        ]
        for name, tensor in row.own("_parameters")
    ]
    if parameters:
        found["parameters"] = parameters
    buffers = sum(as_plain(t).nbytes for _, t in row.own("_buffers"))
    if buffers:
        found["buffers"] = buffers
    return found


def _memory(step: StepProfile) -> dict[str, Any]:
    memory = step.memory
    call = memory.peak_call
    found: dict[str, Any] = {
        "activations": memory.peak,
        "at": None if call is None else _path_of(step, call),
        "in_backward": call is not None,
    }
    if memory.allocated_peak:
        found["allocated"] = memory.allocated_peak
        found["allocated_at"] = _path_of(step, memory.allocated_call)
    return found


def _facts(step: StepProfile) -> dict[str, Any]:
    devices: dict[str, int] = {}
    dtypes: dict[str, int] = {}
    for row in step.layers.rows:
        for _, own in row.own("_parameters"):
            tensor = as_plain(own)
            device, dtype = str(tensor.device), str(tensor.dtype).removeprefix("torch.")
            devices[device] = devices.get(device, 0) + tensor.numel()
            dtypes[dtype] = dtypes.get(dtype, 0) + tensor.numel()
    return {
        "devices": devices,
        "dtypes": dtypes,
        "threads": torch.get_num_threads(),
        "inputs": step.inputs,
        "updates": step.updates,
        "operations": step.sees_operations,
        "pid": getpid(),
    }


def _origin(step: StepProfile, entry: Entry, *, skipped_update: bool) -> dict[str, Any]:
    path = _path_of(step, entry.call) if entry.call else ""
    if entry.kind in (GIVEN, GRADIENT, OPTIMIZER):
        path = entry.name.rpartition(".")[0]
    # The operation that was given this tensor first.
    entries = step.finite.entries
    number = next(n for n, other in enumerate(entries) if other is entry)
    user = next((other for other in entries if number in other.sources), None)
    return {
        "phase": entry.kind,
        "module": path,
        "operation": entry.name,
        "value": text_of(entry.value),
        "where": entry.where or (user.where if user is not None else None),
        "skipped": skipped_update,
    }
