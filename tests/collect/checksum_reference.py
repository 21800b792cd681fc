"""The numbers of a tensor by their definitions, to compare records with."""

from __future__ import annotations

import math

import numpy as np
import torch


def reference(tensor: torch.Tensor) -> dict[str, float]:
    """The numbers by definition, in Python and NumPy."""
    x = np.array([float(v) for v in tensor.reshape(-1).tolist()])
    n, ordered = len(x), sorted(x, key=lambda v: (math.isnan(v), v))
    has_nan = bool(np.isnan(x).any())
    counts = {v: sum(1 for w in x if w == v) for v in ordered if not math.isnan(v)}
    most = max(counts.values(), default=0)
    with np.errstate(all="ignore"):
        mean = x.mean()
        sample = ((x - mean) ** 2).sum() / (n - 1) if n > 1 else math.nan
        std = math.sqrt(sample) if sample >= 0 else math.nan
        found = {
            "posinf": (x == math.inf).sum(),
            "neginf": (x == -math.inf).sum(),
            "nans": np.isnan(x).sum(),
            "zeros": (x == 0).sum(),
            "med": math.nan if has_nan else ordered[(n - 1) // 2],
            "mean": mean,
            "amean": np.abs(x).mean(),
            "std": std,
            "var": x.var(),
            "uvar": sample,
            "mode": min((v for v, c in counts.items() if c == most), default=math.nan),
            "min": math.nan if has_nan else ordered[0],
            "max": math.nan if has_nan else ordered[-1],
        }
        if std > 0:
            found["skew"] = ((x - mean) ** 3).mean() / std**3
            found["kurt"] = ((x - mean) ** 4).mean() / std**4
    return {key: float(value) for key, value in found.items()}
