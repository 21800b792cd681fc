"""Tokens at later positions are changed: results that are to predict them must stay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from traincheck.collect.probes.base import (
    Call,
    Experiment,
    Laboratory,
    Result,
    Root,
    result_of,
    unobservable,
)
from traincheck.collect.probes.batch import leaves, mapped
from traincheck.collect.probes.models import Bench
from traincheck.collect.probes.operations import TOLERANCE, change, first_moved
from traincheck.collect.tensors.reading import as_plain, modules_in, unseen
from traincheck.collect.trace_writer.emitter import hidden
from traincheck.schema.probes.names import Experiments

_SHORTEST = 4
_OTHERS = ("label", "mask", "position", "segment", "target", "type")  # in names of arguments
_LOSSES = frozenset({"cross_entropy", "cross_entropy_loss", "nll_loss", "nll_loss_nd"})
_SHARE = 0.95  # of targets that are the next token


class LaterTokens(Experiment):
    """Exchanges the second half of each text for that of another."""

    name: ClassVar[str] = Experiments.LATER_TOKENS

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        # The ids of tokens, of several texts: the last such input, as decoders have it.
        ids = None
        for name, value in [*enumerate(call.args), *call.kwargs.items()]:
            for tensor in leaves(value):
                with unseen():
                    plain = as_plain(tensor)
                    is_ids = plain.dtype in (torch.int64, torch.int32) and plain.dim() == 2
                    is_text = is_ids and plain.shape[1] >= _SHORTEST and plain.shape[0] > 1
                if is_text and not any(word in str(name) for word in _OTHERS):
                    ids = tensor
        if ids is None or not any(isinstance(p, nn.Embedding) for p in modules_in(call.module)):
            return None
        targets = _Targets()

        def read(root: Root) -> Mapping[str, Any]:
            targets.is_on = False
            with torch._C._EnableTorchFunction():
                return _compared(call, ids, targets.found)

        outcome = laboratory.replay(targets.__enter__, read)
        told = outcome.told
        if outcome.reason or "unfit" in told:
            return unobservable(outcome.reason or told["unfit"])
        if "change" not in told:
            return None
        return result_of(outcome, TOLERANCE, ("change", "positions"), ("operation",))


class _Targets(TorchFunctionMode):
    """Keeps the targets of losses. A mode, since a program may have looked up the loss already."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []
        self.is_on = True

    @hidden
    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_on and getattr(func, "__name__", "") in _LOSSES:
            target = args[1] if len(args) > 1 else kwargs.get("target")
            if isinstance(target, torch.Tensor):
                self.found.append(target.detach())
        return func(*args, **kwargs)


def _compared(call: Call, ids: torch.Tensor, targets: list[torch.Tensor]) -> dict[str, Any]:
    if not any(_is_next(ids, target) for target in targets):
        return {}
    size, length = ids.shape
    half = length // 2
    other = ids.detach().clone()
    other[:, half:] = ids[:, half:].roll(1, 0)
    if bool(torch.equal(other, ids)):
        return {"unfit": "all texts are equal"}
    bench = Bench(call.module)
    before: Any = (call.args, call.kwargs)
    after = mapped(before, lambda tensor: other if tensor is ids else tensor)
    if size == length:  # one text less: the size tells the dimensions apart

        def fewer(tensor: torch.Tensor) -> torch.Tensor:
            return tensor[:-1] if tensor.dim() and tensor.shape[0] == length else tensor

        before, after = mapped(before, fewer), mapped(after, fewer)
        size -= 1
    kept = (torch.arange(length, device=ids.device) < half).expand(size, length)
    first = bench.forward(before)
    if change(first, bench.forward(before), kept, by_position=True):
        return {"unfit": "the model in eval mode gives two results for one batch"}
    moved = change(first, bench.forward(after), kept, by_position=True)
    if moved is None:
        return {"unfit": "no result has one row for each token"}
    found: dict[str, Any] = {"change": moved, "positions": float(half)}
    if moved > TOLERANCE:
        found |= first_moved(call, bench, before, after, kept)
    return found


def _is_next(ids: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether targets are the tokens one place further."""
    size, length = ids.shape
    if target.is_floating_point():
        return False
    if target.numel() == size * (length - 1):
        given = target.reshape(size, length - 1)
    elif target.numel() == size * length:
        given = target.reshape(size, length)[:, :-1]
    else:
        return False
    counts = given >= 0
    later, same = ids[:, 1:][counts], ids[:, :-1][counts]
    chosen = given[counts]
    if chosen.numel() < _SHORTEST:
        return False
    follows = float((later == chosen).double().mean())
    return follows >= _SHARE and follows > float((same == chosen).double().mean())
