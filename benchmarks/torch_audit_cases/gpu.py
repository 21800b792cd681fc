"""Programs that are about a GPU. Where there is none, they are listed and not run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.torch_audit_cases.case import (
    CLASSES,
    FEATURES,
    STOPS,
    Hands,
    case,
    classify,
    convnet,
    fit,
    images,
    mlp,
    rows,
)

DEVICE = "cuda"
on_a_gpu = partial(case, needs_gpu=True)


def _moved(batches: DataLoader[Any], dtype: torch.dtype = torch.float32) -> Iterator[Any]:
    """Batches of inputs in this dtype and labels, on the device."""
    for x, y in batches:
        yield x.to(DEVICE, dtype), y.to(DEVICE)


def _in_float(out: torch.Tensor, batch: Any) -> torch.Tensor:
    return classify(out.float(), batch)


@on_a_gpu("odd-sizes", "inner layers of 100 units in bfloat16", checks="TA200 1 2", codes="TC901")
def odd_sizes(hands: Hands) -> None:
    layers = [nn.Linear(FEATURES, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(100, CLASSES)).to(DEVICE, torch.bfloat16)
    fit(hands, model, _moved(rows(), torch.bfloat16), loss=_in_float)


@on_a_gpu("channels-first", "convolutions stored channels-first", checks="TA201 3", codes="TC902")
def channels_first(hands: Hands) -> None:
    model = convnet().to(DEVICE, torch.bfloat16)
    fit(hands, model, _moved(images(), torch.bfloat16), loss=_in_float)


class Split(nn.Module):
    """A layer on the CPU and one on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Linear(FEATURES, 64)
        self.far = nn.Linear(64, CLASSES).to(DEVICE)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.far(self.near(x).relu().to(DEVICE)).cpu()


@on_a_gpu("split-model", "parameters on the CPU and on the GPU", checks="TA202 5", codes="TC904")
def split_model(hands: Hands) -> None:
    fit(hands, Split(), rows())


@on_a_gpu("forgotten-cuda", "all on the CPU beside a GPU", checks="TA202 6", codes="TC904")
def forgotten_cuda(hands: Hands) -> None:
    fit(hands, mlp(), rows())


@on_a_gpu("full-precision", "float32 throughout", checks="TA203 4", codes="TC903")
def full_precision(hands: Hands) -> None:
    fit(hands, mlp().to(DEVICE), _moved(rows()))


@on_a_gpu("inputs-left-on-the-cpu", "float inputs on another device", checks="TA300", kind=STOPS)
def inputs_left_behind(hands: Hands) -> None:
    fit(hands, mlp().to(DEVICE), rows())
