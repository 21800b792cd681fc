"""Rows of embeddings that are looked up in training: new ones behind a copy, and that of padding.

A few steps are observed. In others a lookup costs one test.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch

from traincheck.collect.moments.moment import Args, Around, Named
from traincheck.collect.observers.base import Hook, Observer, Patcher
from traincheck.collect.steps.sampling import UseSchedule
from traincheck.collect.tensors.devices import host
from traincheck.collect.tensors.loss_graph import before_node
from traincheck.collect.tensors.reading import (
    FLOATS,
    as_plain,
    is_a,
    is_countable,
    is_lazy,
    modules_in,
    named_modules,
    table_of,
)
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.trace_writer.emitter import Emitter, hidden
from traincheck.collect.trace_writer.guard import attempt, observe
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.trace_writer.recording_state import is_traced
from traincheck.collect.tracking.naming import ByObject
from traincheck.schema.claims import Schedule
from traincheck.schema.observations.loads import EmbeddingRows

if TYPE_CHECKING:
    from traincheck.collect.context import Recorder

_LOOKUPS = 8  # of a step
_SCHEDULE = Schedule(first=3, every=50)
_MOST_IDS = 1 << 16
_SAMPLED_ROWS, _COLUMNS = 64, 32
_MOST_EARLIER = 32  # samples of earlier embeddings
_USUAL = 256  # rows for the usual norm
_MOST_COMPARED, _MOST_ROWS = 64, 16  # new rows that are compared, and named
_TABLE = 2  # dims of a weight

_Function = Callable[..., Any]


class _Earlier(NamedTuple):
    """Some rows of an embedding before another one was made, or after a load."""

    rows: int
    columns: int
    places: torch.Tensor
    values: torch.Tensor


@dataclass(slots=True)
class _Lookup:
    """One call. gradient: squared norms of the gradient of the results: of padding, and of all."""

    weight: weakref.ref[torch.Tensor]
    ids: torch.Tensor
    padding: int | None
    gradient: torch.Tensor | None = None


class EmbeddingRowObserver(Observer):
    """Wraps `torch.nn.functional.embedding`, loads, and the creation of embeddings."""

    produces: ClassVar = (EmbeddingRows,)
    hook: ClassVar = Hook.ON_INSTALL

    def __init__(self, session: Recorder) -> None:
        super().__init__(session)
        self._use = UseSchedule(_LOOKUPS, _SCHEDULE)
        self._step: int | None = None  # the last one that is not observed
        self._lookups: list[_Lookup] = []
        self._earlier: list[_Earlier] = []
        self._loaded = ByObject[tuple[weakref.ref[torch.Tensor]]]()

    def install(self, patcher: Patcher) -> None:
        """Wrap the functions, and write at the ends of steps."""
        self._session.hooks.around["torch.nn.functional.embedding"] = self._wrap
        moments = self._session.moments
        self.listen(moments.at(torch.nn.Embedding, "__init__"), Around(after=self._created))
        load = moments.at(torch.nn.Module, "load_state_dict")
        self.listen(load, Around(after=self._load))
        self.listen(self._session.hooks.at_step_end, self._tell)

    # -- earlier rows

    def _created(self, _: None, args: Args, kwargs: Named, result: None) -> None:
        """Rows may be copied into a new embedding: remember those of smaller ones."""
        made: torch.nn.Embedding = args[0]
        for other in self._session.tracker.modules.created:
            if (
                isinstance(other, torch.nn.Embedding)
                and other is not made
                and "weight" in table_of(other, "_parameters")
            ):
                weight = other.weight
                if not is_lazy(weight) and weight.dim() == _TABLE:
                    rows, columns = weight.shape
                    if rows < made.num_embeddings and columns == made.embedding_dim:
                        self._remember(weight)

    def _load(self, _: None, args: Args, kwargs: Named, result: Any) -> None:
        module = args[0] if args else None
        state: Any = args[1] if len(args) > 1 else kwargs.get("state_dict")
        if not isinstance(module, torch.nn.Module):
            return
        for path, part in named_modules(module):
            if not is_a(part, torch.nn.Embedding) or "weight" not in table_of(part, "_parameters"):
                continue
            name = f"{path}.weight" if path else "weight"
            if not hasattr(state, "keys") or name in state:
                self._loaded.keep(part.weight, (weakref.ref(part.weight),))
                self._remember(part.weight)

    def _remember(self, weight: torch.Tensor) -> None:
        if not _is_table(weight):
            return
        rows, columns = weight.shape
        places = torch.arange(0, rows, max(1, rows // _SAMPLED_ROWS), device="cpu")[:_SAMPLED_ROWS]
        values = weight.detach()[:, :_COLUMNS][places.to(weight.device)].clone()
        self._earlier = [
            *self._earlier[-(_MOST_EARLIER - 1) :],
            _Earlier(rows, columns, places, values),
        ]

    # -- lookups

    def _wrap(self, original: _Function) -> _Function:
        session = self._session

        def embedding(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if (
                not is_traced()
                and session.recording.on
                and session.clock.step != self._step
                and torch.is_grad_enabled()
                and len(args) > 1
            ):
                padding = args[2] if len(args) > 2 else kwargs.get("padding_idx")  # noqa: PLR2004
                observe(session, self._look, args[0], args[1], padding, result)
            return result

        return hidden(embedding)

    def _look(self, ids: torch.Tensor, weight: torch.Tensor, padding: Any, result: Any) -> None:
        step = self._session.clock.step
        if not self._use.is_due(step):
            self._step = step  # none of the lookups that follow in this step is observed
            return
        if not _is_table(weight) or not is_countable(ids) or type(result) is not torch.Tensor:
            return
        index = padding if isinstance(padding, int) else None
        if index is not None and index < 0:
            index += weight.shape[0]
        some = ids.detach().reshape(-1)[:_MOST_IDS].clone()
        lookup = _Lookup(weakref.ref(weight), some, index)
        self._lookups.append(lookup)
        if index is not None and result.requires_grad and ids.numel() <= _MOST_IDS:
            take = _gradient_taker(self._session, lookup)
            before_node(result.grad_fn, take, result.output_nr)

    def _tell(self, em: Emitter) -> None:
        """A step ends: devices have computed its gradients."""
        lookups, self._lookups = self._lookups, []
        if not lookups or not self._session.steps.counters["optimizer_step"]:
            return
        held = self._session.live.optimized_ids()
        trained = {
            weight.shape[0]
            for lookup in lookups
            if (weight := lookup.weight()) is not None and weight.requires_grad
        }
        done: set[int] = set()
        for lookup in lookups:
            weight = lookup.weight()
            if weight is None or id(weight) in done:
                continue
            done.add(id(weight))
            found = self._rows(lookup, weight, held, trained)
            if found is not None:
                write(em, found)

    def _rows(
        self, lookup: _Lookup, weight: torch.Tensor, held: set[int], trained: set[int]
    ) -> EmbeddingRows | None:
        """The record of an embedding. trained: rows of weights that require grad, as of LoRA."""
        name = self._session.tracker.name_of(weight)
        if name is None or not _is_table(weight):
            return None
        rows, data = weight.shape[0], weight.detach()
        is_frozen = not weight.requires_grad or id(weight) not in held
        ids = host(lookup.ids)
        earlier = self._source(data) if is_frozen and rows not in trained else None
        new = ids[ids >= earlier] if earlier is not None else ids[:0]
        distinct = sorted(set(new.tolist()))[:_MOST_COMPARED]
        names = [row for row in distinct if not _is_copy(data, row, earlier or 0)]
        padding = lookup.padding
        padded = 0 if padding is None else int((ids == padding).sum())
        if not names and not padded:
            return None
        own, usual = (0.0, 0.0) if padding is None else _norms(data, padding)
        return EmbeddingRows(
            name=name,
            rows=rows,
            frozen=is_frozen,
            earlier=earlier,
            new_ids=int(torch.isin(new, torch.tensor(names, dtype=new.dtype, device="cpu")).sum()),
            new_rows=tuple(names[:_MOST_ROWS]),
            ids=ids.numel(),
            padding=padding,
            padding_ids=padded,
            padding_norm=own,
            usual_norm=usual,
            padding_gradient=_share(lookup.gradient),
            is_loaded=self._is_loaded(weight, name),
        )

    def _is_loaded(self, weight: torch.Tensor, name: str) -> bool:
        """Whether a load has set it, also that of a library, which leaves its name."""
        known = self._loaded.get(id(weight))
        if known is not None and known[0]() is weight:
            return True
        root = self._session.tracker.roots.get(name.partition(".")[0])
        top = None if root is None else root.ref()
        parts = modules_in(top) if is_a(top, torch.nn.Module) else ()
        configs = (part.__dict__.get("config") for part in parts)
        return any(getattr(config, "_name_or_path", "") for config in configs)

    def _source(self, weight: torch.Tensor) -> int | None:
        """The number of rows of the largest earlier embedding that this one begins with."""
        rows, columns = weight.shape
        best: int | None = None
        for earlier in self._earlier:
            if earlier.columns != columns or not (best or 0) < earlier.rows < rows:
                continue
            mine = host(weight[:, :_COLUMNS][earlier.places.to(weight.device)]).float()
            if torch.allclose(mine, host(earlier.values).float(), rtol=1e-2, atol=1e-6):
                best = earlier.rows
        return best


def _gradient_taker(session: Recorder, lookup: _Lookup) -> Callable[[Any], None]:
    """A hook that takes norms of the gradient of the results, and leaves it as it is."""

    def take(gradient: Any) -> None:
        if gradient is None or lookup.gradient is not None or not is_countable(gradient):
            return
        rows = gradient.detach().reshape(lookup.ids.numel(), -1)
        sizes = rows.float().square().sum(1)
        padded = sizes[lookup.ids.to(rows.device) == lookup.padding].sum()
        lookup.gradient = torch.stack([padded, sizes.sum()])

    return partial(attempt, session.fault, take)


def _share(squares: torch.Tensor | None) -> float | None:
    if squares is None:
        return None
    padded, whole = host(squares).tolist()
    return float((padded / whole) ** 0.5) if 0 < whole < float("inf") else None


def _norms(weight: torch.Tensor, padding: int) -> tuple[float, float]:
    """The norm of the padding row, and the median of those of some others."""
    others = [row for row in range(0, weight.shape[0], max(1, weight.shape[0] // _USUAL))]
    others = [row for row in others if row != padding] or [padding]
    places = torch.tensor([padding, *others], device=weight.device)
    own, *rest = host(weight[places].float().square().sum(1).sqrt()).tolist()
    return own, sorted(rest)[len(rest) // 2]


def _is_copy(weight: torch.Tensor, row: int, earlier: int) -> bool:
    """Whether a row has the values of an earlier one, or only zeros."""
    mine = weight[row, :_COLUMNS]
    if not bool(weight[row].count_nonzero()):
        return True
    return bool((weight[:earlier, :_COLUMNS] == mine).all(1).any())


def _is_table(weight: Any) -> bool:
    return (
        isinstance(weight, torch.Tensor)
        and weight.dim() == _TABLE
        and weight.dtype in FLOATS
        and is_countable(weight)
    )


ELEMENTS = 4096  # of a sample, at most
FOLDED = 8  # numbers of a short sketch
_SKETCHED = 512  # elements of a sample that is only to be recognized
_LARGEST_COPY = 1 << 20  # elements of a tensor that is not contiguous, which is copied as a whole


# A sample is a copy, so the tensor is not kept alive. Taking one waits for no device. The same
# elements are sampled in each process, because the stride follows from the number of elements.
def sample(tensor: torch.Tensor, most: int = ELEMENTS) -> torch.Tensor | None:
    """A copy of some elements of a floating-point tensor, in one dim.

    Returns:
        At most ``most`` numbers of the dtype and on the device of the tensor; None if it cannot
        be read.
    """
    tensor = as_plain(tensor)
    if tensor.dtype not in FLOATS or not is_countable(tensor):
        return None
    tensor = tensor.detach()
    if not tensor.is_contiguous():
        if tensor.numel() > _LARGEST_COPY:
            return None
        tensor = tensor.contiguous()
    stride = max(1, tensor.numel() // most) | 1  # odd, so as not to follow a column
    return tensor.view(-1)[::stride][:most].clone()


def distances(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[float]:
    """The L2 norms of the differences of samples of equal length. Waits for their devices once."""
    if not pairs:
        return []
    squares = [
        (one.double() - other.to(one.device).double()).square().sum() for one, other in pairs
    ]
    home = squares[0].device
    return host(torch.stack([found.to(home) for found in squares]).sqrt()).tolist()


def sketch(sketcher: Sketcher, tensor: torch.Tensor) -> torch.Tensor | None:
    """The sketch of a sample of a tensor: 64 signed sums, and the sum of squares.

    Waits for no device. It recognizes a tensor among others of its shape.
    """
    part = sample(tensor, _SKETCHED)
    return None if part is None else sketcher.numbers(part)


def read_short(found: Sequence[torch.Tensor]) -> list[tuple[float, ...]]:
    """`sketch` of several tensors, folded into `FOLDED` sums and the L2 norm: linear still.

    Waits for their devices once.
    """
    if not found:
        return []
    home = found[0].device
    rows = host(torch.stack([each.to(home) for each in found]))
    sums = rows[:, :-1].reshape(len(found), -1, FOLDED).sum(1)
    both = torch.cat([sums, rows[:, -1:].sqrt()], 1).tolist()
    return [tuple(float(f"{number:.7g}") for number in row) for row in both]
