"""Numbers of rows that functions and models get: which are picked, written, paired and repeated.

Some of them compare calls with each other: two losses of a step, two lines that call a model,
training and evaluation. What is compared stays on the device: ids as flags in a table of fixed
size, pairs as sums. Rows are forgotten when the step ends, and sets of ids when recording ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch

from traincheck.collect.tensors.operation_looks import Numbers, few, is_readable
from traincheck.collect.tensors.reading import FLOATS, PLAIN_TYPES, detached

Key: TypeAlias = tuple[str, str, str, str]  # look, function, line, and name of the argument
Add: TypeAlias = Callable[[Key, Callable[[], "Numbers | None"]], None]

_WRITING = frozenset({
    "index_add", "index_add_", "index_copy", "index_copy_", "scatter", "scatter_", "scatter_add",
    "scatter_add_",
})  # fmt: skip
_DIVIDING = frozenset({"div", "true_divide", "divide", "__truediv__"})
_OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})
_OF_SHARES = frozenset({"kl_div", "cross_entropy"})
NAMES = frozenset({*_WRITING, *_DIVIDING, *_OF_CLASSES, *_OF_SHARES, "__getitem__"})

_ROWS, _ELEMENTS = 64, 64  # of a batch that are compared with each other
_LEAST = 8  # rows: fewer are sorted, or repeat, by chance
_TABLE = 1 << 16  # flags of ids; larger ids share them
_TABLES = 8  # lines that call one model with ids
_PAIRS, _MODELS = 1 << 14, 4  # rows of training that are remembered of a model, and models
_SECOND = 2_654_435_761  # makes one number of two ids
_IDS = frozenset({torch.int64, torch.int32, torch.int16})


@dataclass(slots=True)
class _Lookup:
    """The ids that a line hands to a model, as flags, and how many were read."""

    flags: torch.Tensor
    drawn: int = 0


@dataclass(slots=True)
class RowLooks:
    """Reads the rows that calls get, and hands their numbers to ``add``.

    Attributes:
        add: is given the key of a line, and a function that reads one call of it.
    """

    add: Add
    _targets: dict[int, torch.Tensor] = field(default_factory=dict)
    _shares: dict[int, torch.Tensor] = field(default_factory=dict)
    _lookups: dict[tuple[str, str], dict[str, _Lookup]] = field(default_factory=dict)
    _pairs: dict[str, list[torch.Tensor]] = field(default_factory=dict)

    def end_step(self) -> None:
        """Forget the rows of the step."""
        self._targets.clear()
        self._shares.clear()

    def called(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        line: str,
        operand: Callable[[], str],
        *,
        evaluates: bool,
    ) -> None:
        """The program has called one of the functions in `NAMES`.

        Args:
            name: of the function.
            args: that it got.
            kwargs: that it got.
            line: that called it.
            operand: gives the name of the second operand, as the program has it.
            evaluates: whether the call is part of an evaluation.
        """
        if name in _WRITING:
            self.add(("written rows", name, line, ""), lambda: _written(args, kwargs))
        elif name in _DIVIDING and len(args) > 1 and _is_number_of_rows(*args[:2]):
            key = ("number of rows", name, line, operand())
            self.add(key, lambda: _order_of(args[1]))
        elif name == "__getitem__" and evaluates and len(args) > 1:
            self.add(("picked rows", name, line, ""), lambda: _picked(*args[:2]))
        if name in _OF_CLASSES or name in _OF_SHARES:
            target = next(iter(args[1:]), kwargs.get("target"))
            self.add(("two targets", name, line, ""), lambda: self._two_targets(target))

    def given(
        self, function: str, line: str, inputs: Mapping[str, Any], *, evaluates: bool
    ) -> None:
        """An outermost module is called with these tensors, by the names of its arguments."""
        for name, tensor in inputs.items():
            if is_readable(tensor) and tensor.dim() > 1:
                self.add(("equal rows", function, line, name), partial(_equal_rows, tensor))
            if is_readable(tensor) and tensor.dtype in _IDS and tensor.numel() >= _LEAST:
                key = ("ids of a line", function, line, name)
                self.add(key, partial(self._ids, key, tensor))
        both = [
            (name, one)
            for name, one in inputs.items()
            if is_readable(one) and one.dtype in _IDS and one.dim() == 1 and len(one) >= _LEAST
        ]
        if len(both) == 2 and len(both[0][1]) == len(both[1][1]):  # noqa: PLR2004
            (first, one), (second, other) = both
            key = ("pairs of ids", function, line, f"{first}` and `{second}")
            self.add(key, lambda: self._both(function, one, other, evaluates=evaluates))

    def _two_targets(self, target: Any) -> Numbers | None:
        """Whether the classes of one loss are the likely ones of another loss of the step."""
        if not is_readable(target) or target.dim() not in (1, 2) or len(target) < _LEAST:
            return None
        own = detached(target)[:_ROWS]
        rows = len(target)
        if own.dim() == 1 and own.dtype not in FLOATS:
            self._targets[rows] = own.clone()
        elif own.dim() == 2 and own.dtype in FLOATS and own.shape[1] > 1:  # noqa: PLR2004
            self._shares[rows] = own.argmax(1)
        else:
            return None
        classes, likely = self._targets.get(rows), self._shares.get(rows)
        if classes is None or likely is None or classes.device != likely.device:
            return {"alone": 1.0}
        equal = likely[:, None] == classes[None]
        return {
            "alone": 0.0,
            "rows": float(len(classes)),
            "agree": equal.diagonal().float().mean(),
            "chance": equal.float().mean(),
        }

    def _ids(self, key: Key, tensor: torch.Tensor) -> Numbers | None:
        """How many ids the line has handed over, and which share of these another line has not."""
        _, function, line, name = key
        lookups = self._lookups.setdefault((function, name), {})
        places = few(tensor).reshape(-1).long() % _TABLE
        own = lookups.get(line)
        if own is None:
            if len(lookups) >= _TABLES:
                return None
            flags = torch.zeros(_TABLE, dtype=torch.bool, device=places.device)
            own = lookups[line] = _Lookup(flags)
        others = [one for at, one in lookups.items() if at != line]
        others = [one for one in others if one.flags.device == places.device]
        own.flags = own.flags.index_fill(0, places, True)  # it may be made in inference mode
        own.drawn += len(places)
        found: Numbers = {"drawn": float(own.drawn), "distinct": own.flags.sum().float()}
        if others:
            known = torch.stack([one.flags for one in others]).any(0)
            found["other_drawn"] = float(sum(one.drawn for one in others))
            found["other_distinct"] = known.sum().float()
            found["only_here"] = 1 - known[places].float().mean()
        return found

    def _both(
        self, function: str, one: torch.Tensor, other: torch.Tensor, *, evaluates: bool
    ) -> Numbers | None:
        """Which share of evaluated rows are rows of training, with both inputs exchanged."""
        first, second = detached(one).long(), detached(other).long()
        if not evaluates:
            known = self._pairs.get(function)
            if known is None:
                if len(self._pairs) >= _MODELS:
                    return None
                known = self._pairs[function] = []
            if sum(map(len, known)) + len(first) <= _PAIRS:
                known.append(first * _SECOND + second)
            return None
        known = [each for each in self._pairs.get(function, []) if each.device == first.device]
        if not known:
            return None
        trained, apart = torch.cat(known), first != second
        exchanged = torch.isin(second * _SECOND + first, trained) & apart
        return {
            "exchanged": exchanged.float().mean(),
            "equal": torch.isin(first * _SECOND + second, trained).float().mean(),
            "rows": float(len(first)),
        }


def _written(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Numbers | None:
    """The highest row that is written, and how many there are."""
    into: Any = args[0] if args else None
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    index = args[2] if len(args) > 2 else kwargs.get("index")  # noqa: PLR2004
    if type(into) not in PLAIN_TYPES or type(dim) is not int or not into.dim():
        return None
    if not is_readable(index) or index.dtype not in _IDS or not index.numel():
        return None
    return {"rows": float(into.shape[dim]), "highest": few(index).max().float()}


def _is_number_of_rows(given: Any, other: Any) -> bool:
    """Whether each row of a trained tensor is divided by one number, which is not trained."""
    return (
        is_readable(given)
        and is_readable(other)
        and given.requires_grad
        and not other.requires_grad
        and given.dim() > 1
        and _LEAST <= len(given) == other.numel()
        and (other.dim() == 1 or len(other) == len(given))
    )


def _order_of(tensor: torch.Tensor) -> Numbers:
    """Whether numbers are sorted, and how often one differs from the one before."""
    seen = detached(tensor).reshape(-1).float()
    steps = seen[1:] - seen[:-1]
    return {
        "sorted": ((steps >= 0).all() | (steps <= 0).all()).float(),
        "changes": (steps != 0).sum().float(),
    }


def _picked(given: Any, mask: Any) -> Numbers | None:
    """The rows of which a mask picks some."""
    if not is_readable(mask) or mask.dtype is not torch.bool or mask.dim() != 1:
        return None
    if type(given) not in PLAIN_TYPES or not given.dim() or len(given) != len(mask):
        return None
    return {"rows": float(len(mask)), "share": few(mask).float().mean()}


def _equal_rows(tensor: torch.Tensor) -> Numbers | None:
    """Whether the rows of a batch are groups of equal ones, and whether these are neighbours."""
    if not _LEAST <= len(tensor) <= _ROWS:
        return None
    rows = detached(tensor).flatten(1)
    rows = rows[:, :: max(rows.shape[1] // _ELEMENTS, 1) | 1]
    equal = (rows[:, None] == rows[None]).all(-1)
    sizes = equal.sum(1)
    is_grouped = (sizes == sizes[0]).all() & (sizes[0] > 1) & (sizes[0] < len(rows))
    return {
        "groups": is_grouped.float(),
        "neighbours": (is_grouped & equal.diagonal(1).any()).float(),
    }
