"""The content of padding is changed, or padding is cut off: the results for the rest must stay.

With a mask among the inputs, the content of masked positions becomes that of the first position.
Where the model makes a mask of the ids itself, a sample runs alone, with and without its padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn

from traincheck.collect.probes.base import (
    Call,
    Experiment,
    Laboratory,
    Result,
    result_of,
    unobservable,
)
from traincheck.collect.probes.batch import Batch, leaves, mapped
from traincheck.collect.probes.isolation import UnfitError
from traincheck.collect.probes.models import Bench, distance
from traincheck.collect.probes.operations import (
    TOLERANCE,
    change,
    first_moved,
    first_of,
    moves,
    taped,
)
from traincheck.collect.tensors.reading import (
    PLAIN_TYPES,
    is_a,
    modules_in,
    own,
    undispatched,
    unseen,
)
from traincheck.schema.probes.names import Experiments, Status

_SHORTEST = 4
_MOST_ROWS = 3
_MASKING = -50.0  # of a score: a softmax makes what is below it 0
# Layers that let neighbors of padding, or what comes behind it, take part by design.
_BY_DESIGN = (nn.modules.conv._ConvNd, nn.RNNBase, nn.EmbeddingBag)
_COMPARISONS = frozenset({"eq", "ne", "gt", "lt", "ge", "le"})


class Padding(Experiment):
    """Changes what must have no influence."""

    name: ClassVar[str] = Experiments.PADDING
    is_of_module: ClassVar[bool] = True

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        with unseen(), undispatched(), torch.no_grad():
            plain = [t for t in leaves((call.args, call.kwargs)) if type(t) in PLAIN_TYPES]
            # A mask, or ids that end with one that is repeated
            if all(_mask(t) is None and _lengths(t) is None for t in plain):
                return None
        outcome = laboratory.measure(lambda: _measured(call))
        return result_of(outcome, TOLERANCE, ("change", "padded"), ("operation", "how", "fill"))


def _measured(call: Call) -> Mapping[str, Any]:
    if any(isinstance(part, _BY_DESIGN) for part in modules_in(call.module)):
        raise UnfitError("convolutions and recurrent layers let padding take part")
    batch = Batch.of(call)
    found = _masked(batch)
    return _filled(call, batch, *found) if found is not None else _trimmed(call, batch)


# -- a mask among the inputs


def _mask(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor as true and false, if each row is one run of each; None for other tensors."""
    if tensor.dim() != 2 or tensor.shape[1] < _SHORTEST or tensor.layout is not torch.strided:
        return None
    if tensor.dtype is not torch.bool and not bool(((tensor == 0) | (tensor == 1)).all()):
        return None
    mask = tensor.detach().bool()
    changes = (mask[:, 1:] != mask[:, :-1]).sum(1)
    is_run = int(changes.max()) == 1 and bool((changes == 0).any() | (changes == 1).all())
    return mask if is_run else None


def _masked(batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]] | None:
    """The positions that a mask keeps, and the inputs with constant content at all others."""
    tensors = [t for t in leaves(batch.given) if t.dim() > 1 and t.shape[0] == batch.size]
    for tensor in tensors:
        mask = _mask(tensor)
        if mask is None:
            continue
        for kept in (mask, ~mask):
            contents = [
                other
                for other in tensors
                if other is not tensor
                and other.shape[:2] == kept.shape
                and _is_constant(other[~kept])
                and not _is_constant(other[kept])
            ]
            if contents:
                return kept, contents
    return None


def _is_constant(values: torch.Tensor) -> bool:
    return bool(values.numel()) and bool((values == values[:1]).all())


def _filled(
    call: Call, batch: Batch, kept: torch.Tensor, contents: list[torch.Tensor]
) -> dict[str, Any]:
    bench = Bench(call.module)
    first = kept.long().argmax(1)
    chosen = {id(content) for content in contents}

    def fill(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in chosen:
            return tensor
        changed = tensor.detach().clone()
        own = changed[torch.arange(batch.size, device=first.device), first]
        changed[~kept] = own.unsqueeze(1).expand(changed.shape)[~kept]
        return changed

    given = mapped(batch.given, fill)
    before = bench.forward(batch.given)
    moved = change(before, bench.forward(given), kept)
    if moved is None:
        raise UnfitError("no result has one row for each sample")
    if change(before, bench.forward(batch.given), kept):
        raise UnfitError("the model in eval mode gives two results for one batch")
    found = {"change": moved, "padded": float((~kept).double().mean()), "how": "filled"}
    if moved > TOLERANCE:
        found |= first_moved(call, bench, batch.given, given, kept)
        found |= _fill_of_scores(call, bench, batch)
    return found


def _fill_of_scores(call: Call, bench: Bench, batch: Batch) -> dict[str, str]:
    """The number of masked scores, where it is not so small that a softmax makes it 0."""
    fill: float | None = None
    for one in taped(bench, batch.given):
        fill = one.fill if one.fill is not None else fill
        if one.name.rpartition(".")[2] == "softmax" and fill is not None:
            return {"fill": f"{fill:g}"} if fill > _MASKING else {}
    return {}


# -- a mask that the model makes


def _lengths(tensor: torch.Tensor) -> torch.Tensor | None:
    """Lengths of rows of ids without the padding at their ends; None for other tensors."""
    is_ids = tensor.dim() == 2 and tensor.dtype in (torch.int64, torch.int32)
    if not is_ids or tensor.shape[1] < _SHORTEST or tensor.shape[0] < 2:
        return None
    last = tensor[:, -1]
    padding = last[last == last.mode().values][0]
    is_padding = tensor == padding
    run = is_padding.flip(1).long().cumprod(1).sum(1)
    inside = is_padding.sum(1) - run
    lengths = tensor.shape[1] - run
    is_padded = bool(inside.sum() == 0) and int(run.max()) > 1 and len(torch.unique(lengths)) > 1
    return lengths if is_padded and int(lengths.min()) > 0 else None


def _trimmed(call: Call, batch: Batch) -> dict[str, Any]:
    ids = next((t for t in leaves(batch.given) if _lengths(t) is not None), None)
    lengths = None if ids is None else _lengths(ids)
    if ids is None or lengths is None:
        raise UnfitError("it is not clear what of the inputs is padding")
    size, length = ids.shape
    bench = Bench(call.module)
    compares = any(  # its ids with a number
        one.name.rpartition(".")[2].strip("_") in _COMPARISONS
        and one.given[:1] == [((size, length), torch.int64)]
        and any(tuple(result.shape) == (size, length) for result in one.results)
        for one in taped(bench, batch.given)
    )
    if not compares:
        raise UnfitError("the model makes no mask of its inputs")
    rows = [i for i in range(size) if length - int(lengths[i]) > 1][:_MOST_ROWS]
    worst = 0.0
    for row in rows:
        end = int(lengths[row])
        alone = batch.mapped(partial(torch.narrow, dim=0, start=row, length=1))

        def cut_off(tensor: torch.Tensor, end: int = end) -> torch.Tensor:
            return tensor[:, :end] if _is_long(tensor, length) else tensor

        cut = mapped(alone, cut_off)
        whole, trimmed = bench.forward(alone), bench.forward(cut)
        if bench.draws:
            raise UnfitError("the model draws random numbers in eval mode")
        for a, b in zip(leaves(whole), leaves(trimmed)):
            if a.is_floating_point() and a.dim() > 1:
                a = a[:, :end] if _is_long(a, length) else a  # noqa: PLW2901
                worst = max(worst, distance(a, b)) if a.shape == b.shape else worst
    found: dict[str, Any] = {
        "change": worst,
        "padded": float((length - lengths).double().mean() / length),
    }
    kept = torch.arange(length, device=lengths.device) < lengths[:, None]
    if worst > TOLERANCE:
        found |= {"how": "trimmed", **_place_of(call, bench, batch, ids, kept)}
        found |= _fill_of_scores(call, bench, batch)
    return found


def _is_long(tensor: torch.Tensor, length: int) -> bool:
    return tensor.dim() > 1 and tensor.shape[1] == length


def _place_of(
    call: Call, bench: Bench, batch: Batch, ids: torch.Tensor, kept: torch.Tensor
) -> dict[str, str]:
    """Where padding enters: its embedding is changed, the mask is that of the padded ids."""
    embeddings = [part for part in modules_in(call.module) if isinstance(part, nn.Embedding)]
    changed: list[bool] = [False]

    def add(part: nn.Module, args: Any, result: torch.Tensor) -> torch.Tensor | None:
        if not changed[0] or not args or args[0].shape != ids.shape or result.dim() != 3:
            return None
        with torch._C.DisableTorchFunction():  # what we compute is no operation of the model
            return torch.where(kept.unsqueeze(-1), result, result + result[kept].std())

    hooks = [part.register_forward_hook(add) for part in embeddings]
    operations = taped(bench, batch.given)
    changed[0] = True
    others = taped(bench, batch.given)
    for hook in hooks:
        hook.remove()
    return first_of(call, operations, others, lambda one, two: moves(one, two, kept))


LOSS_TOLERANCE = 1e-5  # of the loss
_MOST = 4


class PaddingRow(Experiment):
    """Zeroes what an embedding gives for its padding index: the loss must stay what it is.

    This vector gets no gradient. If it is not zero and takes part, it adds a constant that nothing
    has learned.
    """

    name: ClassVar[str] = Experiments.PADDING_ROW

    def run(self, call: Call, laboratory: Laboratory) -> Result | None:
        parts: list[Any] = list(modules_in(call.module))
        found: list[Any] = []
        for part in parts:
            row = own(part).get("padding_idx") if is_a(part, nn.Embedding) else None
            with torch._C.DisableTorchFunction(), torch.no_grad():
                if row is not None and bool(part.weight[row].any()) and not _is_shared(part, parts):
                    found.append(part)
        del found[_MOST:]
        if not found:
            return None

        def zero(embedding: Any, args: Any, result: torch.Tensor) -> torch.Tensor:
            return result.masked_fill((args[0] == embedding.padding_idx).unsqueeze(-1), 0.0)

        def change() -> None:
            for part in found:
                part.register_forward_hook(zero)

        outcome = laboratory.replay(change)
        if outcome.reason:
            return unobservable(outcome.reason)
        loss = float(outcome.told["loss"])
        moved = abs(loss - laboratory.loss) / max(abs(laboratory.loss), 1e-6)
        numbers = {"loss": laboratory.loss, "without": loss, "change": moved}
        if moved <= LOSS_TOLERANCE:
            return Result(numbers=numbers)
        return Result(status=Status.MOVED, numbers=numbers, where=call.path(found[0]))


def _is_shared(part: Any, parts: list[nn.Module]) -> bool:
    """Whether another layer holds the vector too: an output layer, or what an adapter has copied.

    Then it is learned there, or was before the copy was made.
    """
    with torch._C.DisableTorchFunction(), torch.no_grad():
        weight, row = part.weight, part.padding_idx
        weights = [own(one).get("_parameters", {}).get("weight") for one in parts]
        alike = [
            torch.equal(other[row], weight[row])
            for other in weights
            if other is not None and other.shape == weight.shape and other.device == weight.device
        ]
        return sum(alike) > 1  # itself is one
