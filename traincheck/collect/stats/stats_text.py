"""Numbers of a tensor as JSON text of a record."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import orjson
import torch

from traincheck.collect.stats.argument_stats import Taken, std
from traincheck.collect.templates import WITH_FINGERPRINT
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.trace_writer.emitter import Emitter


def finish(names: Sequence[str], numbers: Sequence[float]) -> bytes:
    """Numbers that were read later, serialized. Non-finite elements count as at least one."""
    if tuple(names) == ("sum",):
        return b'{"nonfinite":%d}' % (not math.isfinite(numbers[0]))
    found = finished(tuple(names), numbers)
    return orjson.dumps({"nonfinite": 1} if found.get("nonfinite") else found)


def finished(names: tuple[str, ...], numbers: Sequence[float]) -> dict[str, float]:
    """Numbers by name; non-finite elements count as one."""
    found = dict(zip(names, numbers))
    if "nonfinite" in found:
        found["nonfinite"] = 0 if all(map(math.isfinite, numbers)) else 1
    return found


def with_fingerprint(text: bytes, tensor: torch.Tensor) -> bytes:
    """The text of a tensor with the fingerprint of its content."""
    found = fingerprint(tensor)
    if found is None or not text.endswith(b"}"):
        return text
    return WITH_FINGERPRINT % (text[:-1], found.encode())


def with_stats(plain: bytes, text: bytes) -> bytes:
    """The text of a value with its numbers."""
    return plain if not text else plain[:-1] + b',"stats":' + text + b"}"


def exact(tensor: torch.Tensor) -> dict[str, float]:
    """Numbers of a tensor that contains NaN or infinity."""
    tensor = tensor.detach()
    finite = tensor[torch.isfinite(tensor)].double()
    found: dict[str, float] = {"nonfinite": tensor.numel() - finite.numel()}
    if finite.numel():
        mean = finite.mean()
        found |= {
            "min": float(finite.min()),
            "max": float(finite.max()),
            "mean": float(mean),
            "std": float(std(finite, mean)),
        }
    return found


def stats_text(em: Emitter, tensor: torch.Tensor, taken: Taken) -> bytes:
    """Statistics of a tensor, serialized. Those on a device are read at the end of the step."""
    names, values = tuple(taken), list(taken.values())
    if not tensor.is_cpu:
        device = torch.stack([v.detach().to(torch.float32) for v in values])
        return em.defer(partial(finish, names), device)
    found = finished(names, [value.item() for value in values])
    if found.get("nonfinite"):
        found = exact(tensor)
    return orjson.dumps(found)
