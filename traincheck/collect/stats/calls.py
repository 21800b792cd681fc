"""Statistics of the arguments and results of recorded calls, and their text in a record."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import orjson
import torch

from traincheck.collect.stats.argument_stats import (
    MODULES,
    SMALL,
    Activation,
    Taken,
    as_plain,
    is_plain,
    of_activation,
    of_argument,
    of_leaf,
    share_hidden,
    std,
)
from traincheck.collect.stats.next_token_labels import NextTokenMatcher
from traincheck.collect.templates import WITH_FINGERPRINT
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import (
    FLOATS,
    FUNC,
    HALF,
    PLAIN_TYPES,
    detached,
    is_countable,
    is_included,
    modes,
)
from traincheck.collect.tensors.summarize import encode
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.claims import MAX_MATCHED_ELEMENTS, MIN_MATCHED_ELEMENTS


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


_MAX_FIRST_LAYERS = 4  # in a step
# Layers that may be the first of a model, and what they may be given that was not scaled.
_FIRST_LAYERS = frozenset({torch.nn.Conv2d, torch.nn.Linear})
_BRIGHT, _BYTE = 50, 255
_ROWS = 2  # dims, and rows, of a batch


class ArgumentStats:
    """Takes the statistics of arguments of calls in one process.

    Attributes:
        follows_batches: whether the uses of a batch are recorded in this step: which of its tensors
            models and losses are given, and which labels hold the next tokens.
        compares_ranks: whether there are other ranks, which may be given the same tensors. Inputs
            that come from no loader are recorded then, too.
        is_sampled: whether this step is one of those in which all statistics are taken.
    """

    def __init__(self) -> None:
        self.compares_ranks = False
        self.follows_batches = False
        self.is_sampled = True  # before the first step
        self._takes_inputs = False
        self._has_batch = self._has_loader = False
        self._first = _MAX_FIRST_LAYERS
        self._next_tokens = NextTokenMatcher()

    def begin_step(self, *, is_sampled: bool, takes_batches: bool, takes_inputs: bool) -> None:
        """A step begins. The arguments tell what is taken in it."""
        self._next_tokens.clear()
        self._has_batch = False
        self.is_sampled = is_sampled
        self.follows_batches = takes_batches and is_sampled
        self._takes_inputs = takes_inputs
        self._first = _MAX_FIRST_LAYERS

    def note_batch(self, tensors: Iterable[torch.Tensor]) -> None:
        """A loader gives a batch of these tensors."""
        self._has_batch = self._has_loader = True
        self.scan_for_next_tokens(tensors)

    def scan_for_next_tokens(self, values: Iterable[Any]) -> None:
        """Remember which are labels that hold the next tokens of another, in this step."""
        if self.follows_batches and not modes() and not is_included(FUNC):
            self._next_tokens.scan(values)

    def is_next_tokens(self, value: Any) -> bool:
        """Whether ``value`` is one of these labels."""
        return self._next_tokens.is_next(value)

    def with_batch_fingerprint(self, text: bytes, value: Any) -> bytes:
        """The text of an argument with a fingerprint, where there is a batch that it may be of.

        Or where it may be a batch that another rank is given as well.
        """
        is_from_hand = self.compares_ranks and not self._has_loader
        if not (self.follows_batches and (self._has_batch or is_from_hand)):
            return text
        if type(value) is not torch.Tensor or not value.is_cpu:
            return text
        if not MIN_MATCHED_ELEMENTS <= value.numel() <= MAX_MATCHED_ELEMENTS:
            return text
        if not is_countable(value) or is_plain(value):
            return text
        return with_fingerprint(text, value)

    def for_argument(self, em: Emitter, value: Any) -> bytes:
        """`encode` with the numbers of an argument."""
        plain = encode(value)
        tensor = as_plain(value)
        if tensor is None or not is_countable(tensor):
            return plain
        if tensor.numel() > SMALL and not self.is_sampled:
            return plain
        taken = of_argument(tensor) | self._next_tokens.of_argument(tensor)
        text = with_stats(plain, stats_text(em, tensor, taken))
        return text if tensor.requires_grad else self.with_batch_fingerprint(text, value)

    def for_tokens(self, em: Emitter, value: Any) -> bytes:
        """`encode`; tokens that are embedded are remembered, to tell whether a loss gets them."""
        if self.follows_batches and not modes() and not is_included(FUNC):
            self._next_tokens.note_embedded(value)
        return encode(value)

    def for_mask(self, em: Emitter, value: Any, *, hides: bool = False) -> bytes:
        """`encode` with the share of a boolean mask that is False, and whether it hides all tokens.

        hides: whether what is True in it is left out.
        """
        plain = encode(value)
        if type(value) is not torch.Tensor:
            return plain
        is_counted = value.dtype is torch.bool and not hides
        if not (is_counted or self.is_sampled) or value.is_nested:
            return plain  # as queries, keys and values are in nearly all steps
        if not (value.is_cpu and value.layout is torch.strided and 0 < value.numel() <= SMALL):
            return plain
        if modes() or is_included(FUNC):
            return plain
        taken: Taken = {}
        if is_counted:
            taken["zeros"] = 1 - value.to(torch.float32).mean()
        hidden = None
        if self.is_sampled:
            hidden = self._next_tokens.mask_hides_all_tokens(value, hides=hides)
        if hidden is not None:
            taken["inverted"] = torch.tensor(int(hidden), device=value.device)
        return with_stats(plain, stats_text(em, value, taken)) if taken else plain

    def for_input(self, em: Emitter, module: torch.nn.Module, args: tuple[Any, ...]) -> bytes:
        """`encode` with the extremes of data that a layer is given, if they may be those of bytes.

        b"" of anything else: of results of other layers, and of data that was scaled.
        """
        if (
            not (self._takes_inputs and self._first)
            or type(module) not in _FIRST_LAYERS
            or len(args) != 1
        ):
            return b""
        value = args[0]
        if type(value) is not torch.Tensor or value.requires_grad or not torch.is_grad_enabled():
            return b""
        if value.dtype not in FLOATS or not is_countable(value):
            return b""
        self._first -= 1
        low, high = torch.aminmax(value)
        if value.is_cpu and not (low.item() >= 0 and _BRIGHT < high.item() <= _BYTE):
            return b""
        return with_stats(encode(value), stats_text(em, value, {"min": low, "max": high}))

    def for_model_input(self, em: Emitter, value: torch.Tensor) -> bytes:
        """`encode` with the numbers of an input of several rows in floating point; else b""."""
        if value.dtype not in FLOATS or value.dim() < _ROWS or len(value) < _ROWS:
            return b""
        if not is_countable(value):
            return b""
        return with_stats(encode(value), stats_text(em, value, of_leaf(value, full=True)))


_ROOT = 1 << 20  # elements of a root module's result that are searched in every step
_SQUARES = 3  # dims of weights of attention at least
_POSITIONS = 4  # from which a square of weights may be those of attention
_MAX_ACTIVATIONS = 256  # in one step: a step that never ends must not be slow for ever


class ResultStats:
    """Takes the statistics of results of calls in one process.

    Attributes:
        is_due: whether activations are taken now.
        is_sampled: whether this step is one of those in which all statistics are taken.
        spans: of modules inside which a functional activation was taken in this step, so that their
            records, which name the module, are needed.
    """

    def __init__(self) -> None:
        self.is_due = False
        self.is_sampled = True  # before the first step
        self.spans: set[int] = set()
        self._left = _MAX_ACTIVATIONS
        self._last: tuple[weakref.ref[torch.Tensor] | None, bytes] = (None, b"")

    def begin_step(self, *, is_sampled: bool, takes_activations: bool) -> None:
        """A step begins. The arguments tell what is taken in it."""
        self.spans.clear()
        self.is_sampled = is_sampled
        self.is_due = is_sampled and takes_activations
        self._left = _MAX_ACTIVATIONS

    def for_softmax(self, em: Emitter, result: Any) -> bytes:
        """`encode` with the share of weights of later positions that is close to zero.

        It is taken from the first head of the first sample, if the weights are those of attention.
        """
        plain = encode(result)
        if not self.is_sampled or type(result) is not torch.Tensor or not result.requires_grad:
            return plain
        shape = result.shape
        if len(shape) < _SQUARES or shape[-1] != shape[-2] or shape[-1] < _POSITIONS:
            return plain
        if not is_countable(result):
            return plain
        hidden = share_hidden(detached(result)[(0,) * (len(shape) - 2)])
        return with_stats(plain, stats_text(em, result, {"hidden": hidden}))

    def for_activation(self, em: Emitter, result: Any, activation: Activation) -> bytes:
        """`encode` with the numbers of an activation's result."""
        plain = encode(result)
        if type(result) not in PLAIN_TYPES or not self._is_now():
            return plain
        ref, text = self._last
        if ref is None or ref() is not result:  # else just taken: of the function in the module
            if not (is_countable(result) and result.dtype in FLOATS):
                return plain
            self._left -= 1
            self.is_due = self._left > 0
            text = stats_text(em, result, of_activation(result, activation))
            self._last = (weakref.ref(result), text)
        return with_stats(plain, text)

    def for_function(self, em: Emitter, result: Any, activation: Activation) -> bytes:
        """`for_activation` of a function, whose module is wanted for its name."""
        text = self.for_activation(em, result, activation)
        if em.top is not None and self._is_now():
            self.spans.add(em.top)
        return text

    def for_result(
        self, em: Emitter, module: torch.nn.Module, result: Any, *, is_root: bool
    ) -> bytes:
        """`encode` with the numbers of a result: all of an activation, else only broken ones."""
        activation = MODULES.get(type(module))
        if activation is not None:
            return self.for_activation(em, result, activation.of(module))
        plain = encode(result)
        if type(result) not in PLAIN_TYPES or not (is_root or self._is_now()):
            return plain
        if not (is_countable(result) and result.dtype in FLOATS and torch.is_grad_enabled()):
            return plain
        if not self.is_sampled and result.numel() > _ROOT:
            return plain
        total = detached(result).sum(dtype=torch.float32 if result.dtype in HALF else None)
        if not result.is_cpu:
            return with_stats(
                plain, em.defer(partial(finish, ("sum",)), total.to(torch.float32).reshape(1))
            )
        return (
            plain if math.isfinite(total.item()) else with_stats(plain, orjson.dumps(exact(result)))
        )

    def is_interesting(self, module: torch.nn.Module, span: int, told: bytes) -> bool:
        """Whether a module that no check asks for is recorded for its numbers.

        Those of an activation, of what an activation function is called in, or broken ones.
        """
        if span in self.spans or (type(module) in MODULES and self._is_now()):
            return True
        return b'"nonfinite":' in told and b'"nonfinite":0' not in told

    def _is_now(self) -> bool:
        return self.is_due and torch.is_grad_enabled()
