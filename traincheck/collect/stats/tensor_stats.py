"""Numbers of tensors for the checks that ask for them: extremes, norms, shares. Never their data.

What is taken when is decided here; where, by the instruments. On a device numbers are computed
where the tensor is and read with the records of the step that hold them.
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

_ROOT = 1 << 20  # elements of a root module's result that are searched in every step
_SQUARES = 3  # dims of weights of attention at least
_POSITIONS = 4  # from which a square of weights may be those of attention
_MOST_FIRST = 4  # layers in a step that may be the first of a model
_MOST_LOOKS = 256  # at activations in one step: a step that never ends must not be slow for ever
_LARGEST = 1 << 24  # elements of a parameter that is looked at when it is found

# The losses whose arguments are read when everything is recorded.
LOSSES = losses()
# Of these, only masks are looked at: how much they leave out.
MASKED = frozenset({ATTENTION, MULTI_HEAD})
# Of these, only results: whether weights of attention leave out later positions.
SCORED = SOFTMAXES
# Of these, nothing but what they are given: it may be the target of a loss.
FED = frozenset({EMBEDDING})
EVERYTHING = (
    frozenset({"activation", "batch", "gradient", "input", "parameter", "update"})
    | LOSSES
    | MASKED
    | SCORED
    | FED
)
# Layers that may be the first of a model, and what they may be given that was not scaled.
_FIRST_LAYERS = frozenset({torch.nn.Conv2d, torch.nn.Linear})
_BRIGHT, _BYTE = 50, 255
_ROWS = 2  # dims, and rows, of a batch


class TensorStats:
    """Which numbers one session takes, and the taking.

    asked: as in `Needs.stats`, however often; those of everything when all is recorded.
    batch, gradient, input, activation: whether theirs are taken in this step.
    spans: of modules inside which a functional activation was looked at in this step, so that
    their records, which name the module, are wanted. is_sampled: whether this step is one of those
    in which everything is looked at. is_due: whether activations are, now. follows_batches:
    whether it is told what becomes of batches: which tensors models and losses are given, and
    labels that hold the next tokens. compares_ranks: whether there are others, who may be given the
    same: then it is told of inputs that come from no loader, too.
    """

    def __init__(self, needs: Needs | None, clock: Clock, *, every: int = 1) -> None:
        words = EVERYTHING if needs is None else needs.stats
        self.asked = without_sampling(words)
        self._always_asked = self.asked & words
        self._is_always_due = bool(self._always_asked - {"update"})  # that is up to `moves`
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
        """A step begins. is_taken: it is one of those in which what is wanted in some is taken."""
        step, was_sampled = self._clock.step, self.is_sampled
        if self.moves.is_asked:
            self.moves.turn(step)
        self.is_sampled = step is not None and (self._always or is_taken)
        if not (was_sampled or self.is_sampled or self._is_always_due):
            return  # nothing was taken, and nothing will be
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
        """The numbers of the tensors in a batch, by path. Asked only while ``batch`` is due."""
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
        """Remember which are labels that hold the next tokens of another, in this step."""
        if self.follows_batches and not modes() and not is_included(FUNC):
            self._shifts.look(values)

    def is_shifted(self, value: Any) -> bool:
        """Whether ``value`` is one of these labels."""
        return self._shifts.is_next(value)

    def identified(self, text: bytes, value: Any) -> bytes:
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

    def is_always_asked(self, api: str) -> bool:
        """Whether numbers of what ``api`` is given are taken in every step."""
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
        """`encode`; tokens that are embedded are remembered, to tell whether a loss gets them."""
        if self.follows_batches and not modes() and not is_included(FUNC):
            self._shifts.feed(value)
        return encode(value)

    def of_mask(self, em: Emitter, value: Any, *, hides: bool = False) -> bytes:
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
        hidden = self._shifts.are_hidden(value, hides=hides) if self.is_sampled else None
        if hidden is not None:
            taken["inverted"] = torch.tensor(int(hidden), device=value.device)
        return with_stats(plain, self._text(em, value, taken)) if taken else plain

    def of_scores(self, em: Emitter, result: Any) -> bytes:
        """`encode` with how much of the weights of later positions is next to nothing.

        Of the first head of the first sample, if these are of attention: each of some positions
        looks at as many.
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
        """`encode` with the extremes of data that a layer is given, if they may be those of bytes.

        b"" of anything else: of results of other layers, and of data that was scaled.
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
        """`encode` with the numbers of an input of several rows in floating point; else b""."""
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
        if ref is None or ref() is not result:  # else just taken: of the function in the module
            if not (is_countable(result) and result.dtype in FLOATS):
                return plain
            self._left -= 1
            self.is_due = self._left > 0
            text = self._text(em, result, of_activation(result, activation))
            self._last = (weakref.ref(result), text)
        return with_stats(plain, text)

    def of_function(self, em: Emitter, result: Any, activation: Activation) -> bytes:
        """`of_activation` of a function, whose module is wanted for its name."""
        text = self.of_activation(em, result, activation)
        if em.top is not None and self._is_now():
            self.spans.add(em.top)
        return text

    def of_result(
        self, em: Emitter, module: torch.nn.Module, result: Any, *, is_root: bool
    ) -> bytes:
        """`encode` with the numbers of a result: all of an activation, else only broken ones."""
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
        """Whether a module that no check asks for is recorded for its numbers.

        Those of an activation, of what an activation function is called in, or broken ones.
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
        """An optimizer is about to step: `moves` tells later how far."""
        if not modes() and not is_included(FUNC):
            self.moves.before(parameters)

    def takes_parameters(self, size: int) -> bool:
        """Whether norms of parameters, which have so many elements, are taken in this step."""
        if self.is_sampled or self.moves.has_any:
            return True
        return "parameter" in self._always_asked and size <= SMALL
