"""The structure of a model, recorded once when it is found: classes, sizes, settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from os import F_OK, access
from typing import Any

import torch
from torch import nn

from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.reading import as_plain, is_a, is_countable, is_lazy, own
from traincheck.collect.tensors.summarize import dotted
from traincheck.collect.tracking.naming import class_of, is_readable, table, walk
from traincheck.schema.observations.models import ModelStructure

# Plain attributes of modules that are settings.
_SETTINGS = (
    "in_features", "out_features", "in_channels", "out_channels", "kernel_size", "stride", "eps",
    "num_embeddings", "embedding_dim", "padding_idx", "track_running_stats", "num_features",
    "groups", "momentum",
)  # fmt: skip
# The share that is dropped at random, as torchvision and timm name it.
_SHARES = ("p", "drop_prob")
# Settings of a language model about tokens, in its ``config``.
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


def structure(
    top: nn.Module, name: str, parts: Iterable[tuple[str, nn.Module]] | None = None
) -> ModelStructure:
    """The structure of a model.

    Args:
        top: the model.
        name: its name.
        parts: the result of `walk`, if known.
    """
    strided: list[str] = []
    by_dtype: Counter[torch.dtype] = Counter()
    by_device: Counter[torch.device] = Counter()
    modules: dict[str, dict[str, Any]] = {}
    classes: dict[type, dict[str, Any]] = {}
    for path, module in walk(top, name) if parts is None else parts:
        plain = classes.get(type(module))
        if plain is None:
            plain = classes[type(module)] = {"class": dotted(class_of(module))}
            if (family := family_of(module)) is not None:
                plain["family"] = family
        modules[path] = _facts(module, plain)
        parameters, buffers = table(module, "_parameters"), table(module, "_buffers")
        if not (parameters or buffers):
            continue
        trained = list(filter(is_readable, parameters.values()))
        held = [*trained, *filter(is_readable, buffers.values())]
        if not any(map(is_lazy, held)):
            for tensor in map(as_plain, trained):
                by_dtype[tensor.dtype] += tensor.numel()
            for tensor in map(as_plain, held):
                by_device[tensor.device] += tensor.numel()
        strided += [f"{path}.{key}" for key, t in parameters.items() if _is_strided(t)]
    config = own(top).get("config")
    values = [own(config), *(vars(cls) for cls in type(config).__mro__)]
    tokens = {key: next((one[key] for one in values if key in one), None) for key in _TOKENS}
    return ModelStructure(
        name=name,
        model_class=dotted(class_of(top)),
        dtypes={str(k).removeprefix("torch."): n for k, n in by_dtype.items()},
        devices={str(k): n for k, n in by_device.items()},
        # A GPU that this torch could use. A call of CUDA would initialize it
        cuda=torch.version.cuda is not None and access("/dev/nvidia0", F_OK),
        tokens={key: value for key, value in tokens.items() if isinstance(value, (bool, int))},
        strided=tuple(strided[:_MOST_STRIDED]),
        modules=modules,
    )


def _is_strided(tensor: torch.Tensor | None) -> bool:
    """Whether a parameter is not contiguous in any memory format that kernels support."""
    if not is_readable(tensor):
        return False
    tensor = as_plain(tensor)
    if is_lazy(tensor) or tensor.layout is not torch.strided:
        return False
    form = _FORMATS.get(tensor.dim())
    is_formatted = form is not None and tensor.is_contiguous(memory_format=form)
    return not (is_formatted or tensor.is_contiguous())


def family_of(module: nn.Module) -> str | None:
    """The kind of a layer; None for others."""
    for family, classes in _FAMILIES:
        if is_a(module, classes):
            return family
    return None


def has_initial_statistics(norm: nn.modules.batchnorm._BatchNorm) -> bool:
    """Whether a batch norm probably has its initial statistics: no batch, none loaded."""
    held = table(norm, "_buffers")
    counted, mean, var = map(held.get, ("num_batches_tracked", "running_mean", "running_var"))
    if counted is None or mean is None or var is None or is_lazy(mean):
        return False
    if not (is_countable(counted) and is_countable(mean) and is_countable(var)):
        return False
    if counted.is_cpu and counted.item():
        return False
    is_initial = (counted == 0).to(mean.device, non_blocking=True) & ~mean.any() & (var == 1).all()
    return bool(host(is_initial).item())


def _facts(module: nn.Module, plain: dict[str, Any]) -> dict[str, Any]:
    """The facts about a module. plain: those of its class, returned if there are no more.

    Thousands of modules without settings then share one dict, which saves garbage collection.
    """
    settings = own(module)  # not by getattr: a class may compute it
    facts: dict[str, Any] = {}
    if isinstance(flag := settings.get("requires_grad"), bool):  # an ordinary attribute on a module
        facts["requires_grad"] = flag
    for key in _SHARES:
        if isinstance(settings.get(key), float):
            facts[key] = settings[key]
    if isinstance(settings.get("batch_first"), bool):
        facts["batch_first"] = settings["batch_first"]
    children = [id(part) for part in table(module, "_modules").values() if part is not None]
    if len(set(children)) < len(children):  # one child has several names, as in ``[block] * 6``
        facts["repeats"] = True
    if "family" in plain:
        facts |= _of_layer(module, settings)
    return {**plain, **facts} if facts else plain


def _of_layer(module: nn.Module, settings: dict[str, Any]) -> dict[str, Any]:
    """The facts about a layer of a known family."""
    facts: dict[str, Any] = {}
    for key in _SETTINGS:
        value = settings.get(key)
        if isinstance(value, (bool, int, float)):
            facts[key] = value
        elif isinstance(value, tuple) and all(isinstance(item, int) for item in value):
            facts[key] = list(value)
    if is_a(module, nn.modules.batchnorm._BatchNorm) and has_initial_statistics(module):
        facts["initial"] = True
    parameters = table(module, "_parameters")
    facts["bias"] = parameters.get("bias") is not None
    weight = parameters.get("weight")
    if is_readable(weight) and not is_lazy(weight):
        facts["storage"] = id(weight)  # equal for weights that are tied
        weight = as_plain(weight)
        facts["dtype"] = str(weight.dtype).removeprefix("torch.")
        form = _FORMATS.get(weight.dim())
        if form is not None:
            facts["channels_last"] = weight.is_contiguous(memory_format=form)
    return facts
