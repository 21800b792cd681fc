"""A profile as a tree of plain objects, for JSON: the 19 fields of torch_inspector and more."""

from __future__ import annotations

from typing import Any

from traincheck.profile.layers import Layer, Origin, Parameter, StepRecord
from traincheck.profile.numbers import Profile

VERSION = 1
_MB = 1_000_000
_NS_PER_MS = 1_000_000


def tree_of(profile: Profile) -> dict[str, Any]:
    """``{name: {"info": {...}, "children": {...}}}``, the outermost modules first."""
    return {layer.name: _node(layer) for layer in profile.typical.roots}


def document(profile: Profile) -> dict[str, Any]:
    """The whole profile: how it was measured, the step, the memory, and the tree."""
    step, origin = profile.typical, profile.origin
    return {
        "schema_version": VERSION,
        "rank": profile.rank,
        "steps": [one.number for one in profile.steps],
        "step": step.number,
        "complete": step.complete,
        "step_ms": _ms(step.duration_ns),
        "phases_ms": {phase: _ms(spent) for phase, spent in step.phases.items()},
        "clock": step.clock,
        "overhead": round(profile.overhead, 4),
        "facts": dict(step.facts),
        "memory": _memory(profile),
        "first_nonfinite": None if origin is None else origin_of(origin),
        "outside_modules": _own(step.outside),
        "uncounted": dict(step.uncounted),
        "unseen": dict(step.unseen),
        "tree": tree_of(profile),
    }


def origin_of(origin: Origin) -> dict[str, Any]:
    """An origin as plain objects."""
    return {
        "step": origin.step,
        "phase": origin.phase,
        "module": origin.module or None,
        "operation": origin.operation,
        "value": origin.value,
        "where": origin.where,
        "skipped_by_scaler": origin.is_skipped,
    }


def _node(layer: Layer) -> dict[str, Any]:
    return {
        "info": info_of(layer),
        "children": {child.name: _node(child) for child in layer.children},
    }


def info_of(layer: Layer) -> dict[str, Any]:
    """The fields of one layer: those of torch_inspector first. Memory in MB of 10^6 bytes."""
    tensors = layer.tensors()
    trained = [one for one in tensors if one.is_trained]
    gradient_bytes = sum(one.gradient_bytes for one in tensors)
    return {
        "type": layer.kind,
        "num_parameters": sum(one.elements for one in tensors),
        "num_learnable_parameters": sum(one.elements for one in trained),
        "param_memory_usage": _mb(_bytes(tensors)),
        "gradient_memory_usage": _mb(gradient_bytes),
        "input_shapes": [list(one.shape) for one in layer.inputs],
        "output_shapes": [list(one.shape) for one in layer.outputs],
        "input_memory_usage": _mb(layer.input_bytes),
        "output_memory_usage": _mb(layer.output_bytes),
        "grad_in_shape": [list(shape) for shape in layer.gradient_in],
        "grad_out_shape": [list(shape) for shape in layer.gradient_out],
        "effective_additional_memory_fwd": _mb(layer.grown[0] or layer.sum("retained")),
        "effective_additional_memory_bwd": _mb(layer.grown[1] or gradient_bytes),
        "forward_nan": layer.output_bad,
        "grad_in_nan": layer.gradient_in_bad,
        "grad_out_nan": layer.gradient_out_bad,
        "total_memory": _mb(_bytes(tensors) + gradient_bytes + layer.input_bytes),
        "forward_latency": _ms(layer.forward.total),
        "backward_latency": _ms(layer.backward_total),
        **_own(layer),
        "flops": layer.flops,
        "forward_flops": layer.sum("forward_flops"),
        "backward_flops": layer.sum("backward_flops"),
        "retained": layer.sum("retained"),
        "state_memory_usage": _mb(sum(one.state_bytes for one in tensors)),
        "input_dtypes": [one.dtype for one in layer.inputs],
        "output_dtypes": [one.dtype for one in layer.outputs],
        "path": layer.path,
        "calls": layer.calls,
        "recomputed_calls": layer.recomputed,
        "shapes_vary": layer.varies,
    }


def _own(layer: Layer) -> dict[str, Any]:
    """The numbers without those of the layers in it."""
    return {
        "self_forward_ms": _ms(layer.forward.own),
        "total_forward_ms": _ms(layer.forward.total),
        "self_backward_ms": _ms(layer.backward_own),
        "total_backward_ms": _ms(layer.backward_total),
        "recompute_ms": _ms(layer.again.total),
        "self_flops": layer.forward_flops + layer.backward_flops,
        "self_retained": layer.retained,
    }


def _memory(profile: Profile) -> dict[str, Any]:
    peak = profile.peak
    return {
        "peak": peak.bytes,
        "is_measured": peak.is_measured,
        "at": peak.at,
        "held_by": dict(peak.held_by),
        "layers": [{"path": path, "retained": held} for path, held in peak.layers],
    }


def rows_of(step: StepRecord) -> list[dict[str, Any]]:
    """One flat object a layer, for CSV: lists become text such as ``4x128;4x1``."""
    return [
        {name: _flat(value) for name, value in {"path": layer.path, **info_of(layer)}.items()}
        for layer in step.layers()
    ]


def _flat(value: Any) -> Any:
    if isinstance(value, list):
        return ";".join("x".join(map(str, one)) if isinstance(one, list) else one for one in value)
    return value


def _bytes(tensors: list[Parameter]) -> int:
    return sum(one.bytes for one in tensors)


def _mb(count: int) -> float:
    return count / _MB


def _ms(nanoseconds: int) -> float:
    return nanoseconds / _NS_PER_MS
