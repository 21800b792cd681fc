"""What a model is made of, told once when it is found: classes, sizes, settings. Never weights."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from traincheck.collect.countable import is_countable
from traincheck.collect.naming import class_of, table, walk
from traincheck.collect.summarize import dotted

# Plain attributes of modules that say how they work.
_SETTINGS = (
    "in_features", "out_features", "in_channels", "out_channels", "kernel_size", "stride", "eps",
    "num_embeddings", "embedding_dim", "padding_idx", "track_running_stats", "num_features",
    "groups", "momentum",
)  # fmt: skip
# How much is left out at random; torchvision and timm name it so.
_SHARES = ("p", "drop_prob")
# What a model of tokens says about them in its ``config``.
_TOKENS = ("pad_token_id", "eos_token_id", "unk_token_id", "vocab_size", "tie_word_embeddings")
_FAMILIES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("transposed convolution", (nn.modules.conv._ConvTransposeNd,)),
    ("convolution", (nn.modules.conv._ConvNd,)),
    ("linear", (nn.Linear,)),
    ("batch norm", (nn.modules.batchnorm._BatchNorm,)),
    ("instance norm", (nn.modules.instancenorm._InstanceNorm,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, *([nn.RMSNorm] if hasattr(nn, "RMSNorm") else []))),
    ("embedding", (nn.Embedding, nn.EmbeddingBag)),
)
_MOST_STRIDED = 1000
_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def structure(top: nn.Module, name: str) -> dict[str, Any]:
    """The facts about a model, as JSON values.

    dtypes, devices: elements by dtype of parameters, by device of all tensors. modules: path ->
    facts, in the order in which they were registered. strided: names of parameters whose elements
    do not follow each other in memory.
    """
    strided: list[str] = []
    by_dtype: Counter[str] = Counter()
    by_device: Counter[str] = Counter()
    modules: dict[str, dict[str, Any]] = {}
    for path, module in walk(top):
        own = [t for t in table(module._parameters).values() if t is not None]
        held = [*own, *(t for t in table(module._buffers).values() if t is not None)]
        if not any(map(is_lazy, held)):
            for tensor in own:
                by_dtype[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
            for tensor in held:
                by_device[str(tensor.device)] += tensor.numel()
        inner = f"{name}.{path}" if path else name
        strided += [
            f"{inner}.{key}" for key, t in table(module._parameters).items() if _is_strided(t)
        ]
        modules[inner] = _facts(module)
    return {
        "name": name,
        "class": dotted(class_of(top)),
        "dtypes": dict(by_dtype),
        "devices": dict(by_device),
        "cuda": _has_cuda(),
        "tokens": _tokens(top),
        **({"strided": strided[:_MOST_STRIDED]} if strided else {}),
        "modules": modules,
    }


def _is_strided(tensor: torch.Tensor | None) -> bool:
    """Whether a parameter is not contiguous; not by its memory format, which kernels know."""
    if tensor is None or is_lazy(tensor) or tensor.layout is not torch.strided:
        return False
    form = _FORMATS.get(tensor.dim())
    is_formatted = form is not None and tensor.is_contiguous(memory_format=form)
    return not (is_formatted or tensor.is_contiguous())


def _has_cuda() -> bool:
    """Whether a GPU is there that this torch could use. Asking CUDA itself would initialize it."""
    return torch.version.cuda is not None and os.path.exists("/dev/nvidia0")


def family_of(module: nn.Module) -> str | None:
    """Which kind of layer it is; None for all others."""
    for family, classes in _FAMILIES:
        if isinstance(module, classes):
            return family
    return None


def has_initial_statistics(norm: nn.modules.batchnorm._BatchNorm) -> bool:
    """Whether a batch norm has seen no batch and was given no statistics, as far as can be told."""
    counted, mean, var = norm.num_batches_tracked, norm.running_mean, norm.running_var
    if counted is None or mean is None or var is None or is_lazy(mean):
        return False
    if not (is_countable(counted) and is_countable(mean) and is_countable(var)):
        return False
    return not counted.item() and not mean.any().item() and bool((var == 1).all().item())


def _facts(module: nn.Module) -> dict[str, Any]:
    facts: dict[str, Any] = {"class": dotted(class_of(module))}
    flag = module.__dict__.get("requires_grad")
    if isinstance(flag, bool):  # on a module it is an attribute like any other
        facts["requires_grad"] = flag
    settings = module.__dict__  # not by getattr: a class may compute them
    facts |= {key: settings[key] for key in _SHARES if isinstance(settings.get(key), float)}
    if isinstance(settings.get("batch_first"), bool):
        facts["batch_first"] = settings["batch_first"]
    children = [id(child) for child in table(module._modules).values() if child is not None]
    if len(set(children)) < len(children):
        facts["repeats"] = True  # one child under several names, as in ``[block] * 6``
    family = family_of(module)
    if family is None:
        return facts
    facts["family"] = family
    for key in _SETTINGS:
        value = settings.get(key)
        if isinstance(value, (bool, int, float)):
            facts[key] = value
        elif isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            facts[key] = list(value)
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and has_initial_statistics(module):
        facts["initial"] = True
    parameters = table(module._parameters)
    facts["bias"] = parameters.get("bias") is not None
    weight = parameters.get("weight")
    if weight is not None and not is_lazy(weight):
        facts["dtype"] = str(weight.dtype).removeprefix("torch.")
        facts["storage"] = id(weight)  # equal for weights that are tied
        form = _FORMATS.get(weight.dim())
        if form is not None:
            facts["channels_last"] = weight.is_contiguous(memory_format=form)
    return facts


def _tokens(top: nn.Module) -> dict[str, Any]:
    config = top.__dict__.get("config")
    found: dict[str, Any] = {}
    for key in _TOKENS if config is not None else ():
        with contextlib.suppress(Exception):  # anything may be called config
            found[key] = getattr(config, key, None)
    return {key: value for key, value in found.items() if isinstance(value, (bool, int))}
