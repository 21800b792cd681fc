"""Statistics of the results of recorded calls: activations, attention weights, broken numbers."""

from __future__ import annotations

import math
import weakref
from functools import partial
from typing import Any

import orjson
import torch

from traincheck.collect.stats.activations import MODULES, Activation, of_activation
from traincheck.collect.stats.argument_stats import share_hidden
from traincheck.collect.stats.stats_text import exact, finish, stats_text, with_stats
from traincheck.collect.tensors.readable import FLOATS, HALF, is_countable
from traincheck.collect.tensors.reading import PLAIN_TYPES, detached
from traincheck.collect.tensors.summarize import encode
from traincheck.collect.trace_writer.emitter import Emitter

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
        return with_stats(plain, self._broken(em, result))

    def is_interesting(self, module: torch.nn.Module, span: int, told: bytes) -> bool:
        """Whether a module that no check asks for is recorded for its numbers.

        Those of an activation, of what an activation function is called in, or broken ones.
        """
        if span in self.spans or (type(module) in MODULES and self._is_now()):
            return True
        return b'"nonfinite":' in told and b'"nonfinite":0' not in told

    def _is_now(self) -> bool:
        return self.is_due and torch.is_grad_enabled()

    def _broken(self, em: Emitter, tensor: torch.Tensor) -> bytes:
        total = detached(tensor).sum(dtype=torch.float32 if tensor.dtype in HALF else None)
        if not tensor.is_cpu:
            return em.defer(partial(finish, ("sum",)), total.to(torch.float32).reshape(1))
        return b"" if math.isfinite(total.item()) else orjson.dumps(exact(tensor))
