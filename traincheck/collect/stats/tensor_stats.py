"""Numbers of tensors for the checks that ask for them: extremes, norms, shares. Never their data.

This module decides which numbers are taken and when; instruments decide where. On a device, numbers
are computed on the device and read together with the records of the step.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import orjson
import torch

from traincheck.collect.stats.activations import (
    FUNCTIONS,
    MODULES,
    SMALL,
    Activation,
    of_activation,
)
from traincheck.collect.stats.argument_stats import (
    Taken,
    as_plain,
    has_rows,
    is_plain,
    is_short_row,
    of_argument,
    of_leaf,
    of_row,
    of_weights,
    share_alike,
    share_hidden,
)
from traincheck.collect.stats.next_token_labels import ONCE, NextTokenMatcher
from traincheck.collect.stats.stats_text import (
    exact,
    finish,
    finished,
    with_fingerprint,
    with_stats,
)
from traincheck.collect.stats.update_size import UpdateSize
from traincheck.collect.tensors.fingerprint import PLAIN_TYPES
from traincheck.collect.tensors.norms import has_norm
from traincheck.collect.tensors.readable import (
    FLOATS,
    FUNC,
    HALF,
    is_countable,
    is_included,
)
from traincheck.collect.tensors.reading import detached, modes
from traincheck.collect.tensors.summarize import encode
from traincheck.collect.trace_writer.emitter import Clock, Emitter
from traincheck.schema.claims import (
    MAX_MATCHED_ELEMENTS,
    MIN_MATCHED_ELEMENTS,
    Needs,
    without_sampling,
)
from traincheck.schema.torch_api import ATTENTION, EMBEDDING, MULTI_HEAD, SOFTMAXES, losses

_ROOT = 1 << 20  # elements of a root module's result that are checked in every step
_SQUARES = 3  # dims of weights of attention at least
_POSITIONS = 4  # smallest square of weights that may be those of attention
_MOST_FIRST = 4  # layers in a step that may be the first of a model
_MOST_LOOKS = 256  # activations in one step: an endless step must not stay slow
_LARGEST = 1 << 24  # elements of a parameter whose numbers are taken when it is found

# The losses whose arguments are read when everything is recorded.
LOSSES = losses()
# Of these, only masks: how much they exclude.
MASKED = frozenset({ATTENTION, MULTI_HEAD})
# Of these, only results: whether attention weights exclude later positions.
SCORED = SOFTMAXES
# Of these, only the arguments: they may be the target of a loss.
FED = frozenset({EMBEDDING})
EVERYTHING = (
    frozenset({"activation", "batch", "gradient", "input", "parameter", "update"})
    | LOSSES
    | MASKED
    | SCORED
    | FED
)
# Layers that may be the first of a model, and inputs that may not have been scaled.
_FIRST_LAYERS = frozenset({torch.nn.Conv2d, torch.nn.Linear})
_BRIGHT, _BYTE = 50, 255
_ROWS = 2  # dims, and rows, of a batch


class TensorStats:
    """Decides which numbers a session takes, and takes them.

    Attributes:
        asked: the names in `Needs.stats`, without their frequency; the full set if all is recorded.
        batch, gradient, input, activation: whether these numbers are taken in this step.
        spans: modules in which a functional activation was measured in this step. Their records are
            needed, because they name the module.
        is_sampled: whether all numbers are taken in this step.
        is_due: whether those of activations are taken now.
        follows_batches: whether arguments of models and losses are matched with the batch, and
            labels with the next tokens.
        compares_ranks: whether other ranks may get the same inputs. Inputs that come from no loader
            are then identified too.
    """

    def __init__(self, needs: Needs | None, clock: Clock, *, every: int = 1) -> None:
        words = EVERYTHING if needs is None else needs.stats
        self.asked = without_sampling(words)
        self._always_asked = self.asked & words
        self._is_always_due = bool(self._always_asked - {"update"})  # decided by `moves`
        self.parameter = "parameter" in self.asked
        self.spans: set[int] = set()
        self._clock = clock
        self._always = every > 1  # few steps are recorded at all
        self._last: tuple[weakref.ref[torch.Tensor] | None, bytes] = (None, b"")
        self.compares_ranks = False
        self._has_loader = False
        self._shifts = NextTokenMatcher()
        self.moves = UpdateSize(is_asked="update" in self.asked)
        self.is_sampled = True  # before the first step
        self.turn(is_taken=True)

    def turn(self, *, is_taken: bool) -> None:
        """A step begins. is_taken: whether sampled numbers are taken in it."""
        step, was_sampled = self._clock.step, self.is_sampled
        if self.moves.is_asked:
            self.moves.turn(step)
        self.is_sampled = step is not None and (self._always or is_taken)
        if not (was_sampled or self.is_sampled or self._is_always_due):
            return  # no number was taken, and none will be
        self.spans.clear()
        self._shifts.clear()
        self._has_batch = False
        due = self.asked if self.is_sampled else self._always_asked
        self.batch = "batch" in due
        self.follows_batches = self.batch and self.is_sampled
        self.gradient = "gradient" in due
        self.activation = "activation" in due
        self.input = "input" in due
        self.is_due = self.is_sampled and self.activation
        self._left = _MOST_LOOKS
        self._first = _MOST_FIRST

    def wants_api(self, api: str) -> bool:
        """Whether calls of ``api`` are recorded for their numbers."""
        return api in self.asked or (self.activation and api in FUNCTIONS)

    # -- values of records, serialized

    def of_leaves(self, em: Emitter, tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
        """The numbers of the tensors in a batch, by path. Called only while ``batch`` is due."""
        self._has_batch = self._has_loader = True
        self.look_for_shifts(tensors.values())
        texts = {}
        for path, tensor in tensors.items():
            if not is_countable(tensor):
                continue
            if is_short_row(tensor):
                few = of_row(tensor)
                if self.is_shifted(tensor):
                    few["shifted"] = ONCE
                texts[path] = orjson.dumps(few)
            else:
                taken = of_leaf(tensor, full=self.is_sampled)
                if self.is_sampled and has_rows(tensor):
                    taken["alike"] = share_alike(tensor)
                if self.is_shifted(tensor):
                    taken["shifted"] = torch.tensor(ONCE, device=tensor.device)
                texts[path] = self._text(em, tensor, taken)
        return texts

    def look_for_shifts(self, values: Iterable[Any]) -> None:
        """Remember, for this step, the labels that are the next tokens of another tensor."""
        if self.follows_batches and not modes() and not is_included(FUNC):
            self._shifts.look(values)

    def is_shifted(self, value: Any) -> bool:
        """Whether ``value`` is one of these labels."""
        return self._shifts.is_next(value)

    def identified(self, text: bytes, value: Any) -> bytes:
        """The text of an argument, with a fingerprint if it may come from a batch.

        Or if another rank may get the same batch.
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

    def is_always_asked(self, api: str) -> bool:
        """Whether numbers of the arguments of ``api`` are taken in every step."""
        return api in self._always_asked

    def of_argument(self, em: Emitter, value: Any) -> bytes:
        """`encode` with the numbers of an argument."""
        plain = encode(value)
        tensor = as_plain(value)
        if tensor is None or not is_countable(tensor):
            return plain
        if tensor.numel() > SMALL and not self.is_sampled:
            return plain
        taken = of_argument(tensor) | self._shifts.of_argument(tensor)
        text = with_stats(plain, self._text(em, tensor, taken))
        return text if tensor.requires_grad else self.identified(text, value)

    def of_tokens(self, em: Emitter, value: Any) -> bytes:
        """`encode`; embedded tokens are remembered, to recognize them as the target of a loss."""
        if self.follows_batches and not modes() and not is_included(FUNC):
            self._shifts.feed(value)
        return encode(value)

    def of_mask(self, em: Emitter, value: Any, *, hides: bool = False) -> bytes:
        """`encode` with the share of a boolean mask that is False, and whether it hides all tokens.

        hides: whether True in it excludes a position.
        """
        plain = encode(value)
        if type(value) is not torch.Tensor:
            return plain
        is_counted = value.dtype is torch.bool and not hides
        if not (is_counted or self.is_sampled) or value.is_nested:
            return plain  # the usual case for queries, keys and values
        if not (value.is_cpu and value.layout is torch.strided and 0 < value.numel() <= SMALL):
            return plain
        if modes() or is_included(FUNC):
            return plain
        taken: Taken = {}
        if is_counted:
            taken["zeros"] = 1 - value.to(torch.float32).mean()
        hidden = self._shifts.are_hidden(value, hides=hides) if self.is_sampled else None
        if hidden is not None:
            taken["inverted"] = torch.tensor(int(hidden), device=value.device)
        return with_stats(plain, self._text(em, value, taken)) if taken else plain

    def of_scores(self, em: Emitter, result: Any) -> bytes:
        """`encode` with the share of weights to later positions that are almost zero.

        Of the first head of the first sample, if these are attention weights: a square matrix of
        positions.
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
        return with_stats(plain, self._text(em, result, {"hidden": hidden}))

    def of_input(self, em: Emitter, module: torch.nn.Module, args: tuple[Any, ...]) -> bytes:
        """`encode` with minimum and maximum of a layer's input, if they may be those of bytes.

        b"" otherwise: for results of other layers, and for data that was scaled.
        """
        if not (self.input and self._first) or type(module) not in _FIRST_LAYERS or len(args) != 1:
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
        return with_stats(encode(value), self._text(em, value, {"min": low, "max": high}))

    def of_given(self, em: Emitter, value: torch.Tensor) -> bytes:
        """`encode` with the numbers of a floating-point input with several rows; else b""."""
        if value.dtype not in FLOATS or value.dim() < _ROWS or len(value) < _ROWS:
            return b""
        if not is_countable(value):
            return b""
        return with_stats(encode(value), self._text(em, value, of_leaf(value, full=True)))

    def of_activation(self, em: Emitter, result: Any, activation: Activation) -> bytes:
        """`encode` with the numbers of an activation's result."""
        plain = encode(result)
        if type(result) not in PLAIN_TYPES or not self._is_now():
            return plain
        ref, text = self._last
        if ref is None or ref() is not result:  # else just taken, by the function in the module
            if not (is_countable(result) and result.dtype in FLOATS):
                return plain
            self._left -= 1
            self.is_due = self._left > 0
            text = self._text(em, result, of_activation(result, activation))
            self._last = (weakref.ref(result), text)
        return with_stats(plain, text)

    def of_function(self, em: Emitter, result: Any, activation: Activation) -> bytes:
        """`of_activation` for a function. The record of its module is needed for its name."""
        text = self.of_activation(em, result, activation)
        if em.top is not None and self._is_now():
            self.spans.add(em.top)
        return text

    def of_result(
        self, em: Emitter, module: torch.nn.Module, result: Any, *, is_root: bool
    ) -> bytes:
        """`encode` with the numbers of a result: all of an activation, else only non-finite."""
        activation = MODULES.get(type(module))
        if activation is not None:
            return self.of_activation(em, result, activation.of(module))
        plain = encode(result)
        if type(result) not in PLAIN_TYPES or not (is_root or self._is_now()):
            return plain
        if not (is_countable(result) and result.dtype in FLOATS and torch.is_grad_enabled()):
            return plain
        if not self.is_sampled and result.numel() > _ROOT:
            return plain
        return with_stats(plain, self._broken(em, result))

    def is_interesting(self, module: torch.nn.Module, span: int, told: bytes) -> bool:
        """Whether a module that no check needs is recorded for its numbers.

        These are activations, modules that call an activation function, and non-finite results.
        """
        if span in self.spans or (type(module) in MODULES and self._is_now()):
            return True
        return b'"nonfinite":' in told and b'"nonfinite":0' not in told

    def _is_now(self) -> bool:
        return self.is_due and torch.is_grad_enabled()

    def _text(self, em: Emitter, tensor: torch.Tensor, taken: Taken) -> bytes:
        names, values = tuple(taken), list(taken.values())
        if not tensor.is_cpu:
            device = torch.stack([v.detach().to(torch.float32) for v in values])
            return em.later(partial(finish, names), device)
        numbers = [value.item() for value in values]
        found = finished(names, numbers)
        if found.get("nonfinite"):
            found = exact(tensor)
        return orjson.dumps(found)

    def _broken(self, em: Emitter, tensor: torch.Tensor) -> bytes:
        total = detached(tensor).sum(dtype=torch.float32 if tensor.dtype in HALF else None)
        if not tensor.is_cpu:
            return em.later(partial(finish, ("sum",)), total.to(torch.float32).reshape(1))
        return b"" if math.isfinite(total.item()) else orjson.dumps(exact(tensor))

    # -- state

    def of_parameter(self, em: Emitter, tensor: torch.Tensor) -> bytes:
        """Numbers of a parameter that is seen for the first time."""
        if not has_norm(tensor) or tensor.numel() > _LARGEST:
            return b""
        return self._text(em, tensor, of_weights(tensor))

    def before_update(self, parameters: Iterable[torch.Tensor]) -> None:
        """An optimizer is about to step: `moves` measures the update later."""
        if not modes() and not is_included(FUNC):
            self.moves.before(parameters)

    def takes_parameters(self, size: int) -> bool:
        """Whether norms of parameters with so many elements are taken in this step."""
        if self.is_sampled or self.moves.has_any:
            return True
        return "parameter" in self._always_asked and size <= SMALL
