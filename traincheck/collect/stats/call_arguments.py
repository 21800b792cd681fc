"""Statistics of the arguments of recorded calls: of models, layers, losses and attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from traincheck.collect.stats.activations import SMALL
from traincheck.collect.stats.argument_stats import Taken, as_plain, is_plain, of_argument, of_leaf
from traincheck.collect.stats.next_token_labels import NextTokenMatcher
from traincheck.collect.stats.stats_text import stats_text, with_fingerprint, with_stats
from traincheck.collect.tensors.readable import FLOATS, FUNC, is_countable, is_included
from traincheck.collect.tensors.reading import modes
from traincheck.collect.tensors.summarize import encode
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.claims import MAX_MATCHED_ELEMENTS, MIN_MATCHED_ELEMENTS

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
