"""Models told by hand, for the rules about what they are made of."""

from __future__ import annotations

from typing import Any

from tests.builders import TraceBuilder
from tests.checking import net
from traincheck.schema.events import Event


def model(
    modules: dict[str, dict[str, Any]],
    *,
    dtype: str = "float32",
    devices: dict[str, int] | None = None,
    cuda: bool = False,
    tokens: dict[str, int] | None = None,
    trace: TraceBuilder | None = None,
) -> TraceBuilder:
    """A trace that tells of one model, ``Net``. modules: path below it -> facts."""
    return (trace or net()).mark(
        "model",
        name="Net",
        dtypes={dtype: 1000},
        devices=devices or {"cpu": 1000},
        cuda=cuda,
        tokens=tokens or {},
        modules={f"Net.{path}": facts for path, facts in modules.items()},
    )


def told(modules: dict[str, dict[str, Any]], **more: Any) -> list[Event]:
    """The events of `model`, and a few steps."""
    return model(modules, **more).steps(2).build()


def linear(inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    """Facts about a linear layer."""
    return {"family": "linear", "in_features": inputs, "out_features": outputs, **more}


def conv(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, **more: Any
) -> dict[str, Any]:
    """Facts about a convolution."""
    return {
        "family": "convolution",
        "in_channels": inputs,
        "out_channels": outputs,
        "kernel_size": [kernel, kernel],
        "stride": [stride, stride],
        **more,
    }


def embedding(rows: int, size: int, **more: Any) -> dict[str, Any]:
    """Facts about an embedding."""
    return {"family": "embedding", "num_embeddings": rows, "embedding_dim": size, **more}
