"""How a distributed tensor is placed on ranks. Nothing is communicated."""

from __future__ import annotations

from typing import Any

import torch

from traincheck.schema.observations.processes import Layout


def local_of(tensor: Any) -> torch.Tensor | None:
    """This rank's part of a distributed tensor; None for any other."""
    local = getattr(tensor, "_local_tensor", None)
    return local if isinstance(local, torch.Tensor) and hasattr(tensor, "_spec") else None


def layout_of(tensor: Any) -> Layout | None:
    """The layout of a distributed tensor; None if this rank is not part of its mesh."""
    spec = tensor._spec
    mesh, place = spec.mesh, spec.mesh.get_coordinate()
    if place is None:
        return None
    names = [_placement(placement) for placement in spec.placements]
    index = tuple(
        slice(None) if name == REPLICATE else at for name, at in zip(names, place, strict=True)
    )
    same = mesh.mesh[index].reshape(-1).tolist()
    dims = mesh.mesh_dim_names or ("",) * len(names)
    return Layout(tuple(dims), tuple(mesh.mesh.shape), tuple(names), tuple(sorted(same)))


REPLICATE = "replicate"


def _placement(placement: Any) -> str:
    if placement.is_replicate():
        return REPLICATE
    if placement.is_partial():
        return "partial"
    return f"shard {placement.dim}" if hasattr(placement, "dim") else type(placement).__name__
