"""Numbers of tensors for the checks that ask for them: extremes, norms, shares. Never their data.

This module decides which numbers are taken and when; instruments decide where. On a device, numbers
are computed on the device and read together with the records of the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import orjson
import torch

from traincheck.collect.stats.argument_stats import (
    FUNCTIONS,
    SMALL,
    has_rows,
    is_short_row,
    of_leaf,
    of_row,
    of_weights,
    share_alike,
)
from traincheck.collect.stats.calls import ArgumentStats, ResultStats, stats_text
from traincheck.collect.stats.next_token_labels import ONCE
from traincheck.collect.tensors.reading import (
    FUNC,
    PLAIN_TYPES,
    has_memory,
    is_countable,
    is_included,
    modes,
)
from traincheck.collect.tensors.sums import has_norm
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.recording_state import Clock
from traincheck.schema.claims import Needs, without_sampling
from traincheck.schema.torch_api import ATTENTION, EMBEDDING, MULTI_HEAD, SOFTMAXES, losses

STEPS = 10  # the first ones
_SAMPLE = 1024  # elements of a parameter, evenly spread
_EXACT = frozenset({torch.float32, torch.float64})  # in other dtypes an update is lost in rounding


class UpdateSize:
    """How far the first updates of a run move its parameters, by a sample of their elements.

    Keeps samples from before an update, one step of an optimizer, until the scan after it. On the
    CPU only.

    is_requested: whether updates are still to be looked at. is_due: whether those of this step are.
    """

    def __init__(self, *, is_requested: bool) -> None:
        self.is_due = False
        self.is_requested = is_requested
        self._before: dict[int, torch.Tensor] = {}

    def begin_step(self, step: int | None) -> None:
        """A step begins."""
        self.is_requested &= step is None or step < STEPS
        self.is_due = self.is_requested and step is not None
        self._before.clear()

    def before(self, tensors: Iterable[torch.Tensor]) -> None:
        """An update is about to begin."""
        self._before = {id(tensor): _some(tensor).clone() for tensor in tensors if _is_fit(tensor)}

    def added(self, text: bytes, tensor: torch.Tensor) -> bytes:
        """Numbers of a parameter, with the largest change of an element since `before`."""
        was = self._before.pop(id(tensor), None)
        if was is None or not _is_fit(tensor):
            return text
        now = _some(tensor)
        if now.shape != was.shape or now.dtype is not was.dtype:
            return text
        moved = torch.dist(now, was, math.inf).item()
        if not math.isfinite(moved):
            return text
        return b'%b"moved":%b}' % (text[:-1] + b"," if text else b"{", repr(moved).encode())

    @property
    def has_any(self) -> bool:
        """Whether an update is being measured."""
        return bool(self._before)


def _is_fit(tensor: torch.Tensor) -> bool:
    return (
        type(tensor) in PLAIN_TYPES
        and tensor.is_cpu
        and tensor.dtype in _EXACT
        and tensor.requires_grad
        and tensor.numel() > 0
        and tensor.is_contiguous()
        and has_memory(tensor)
    )


def _some(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().view(-1)
    return flat[:: max(1, flat.numel() // _SAMPLE)]


_LARGEST = 1 << 24  # elements of a parameter that is read when it is found

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


class TensorStats:
    """Which statistics one session takes, and when.

    Attributes:
        requested: as in `Needs.stats`, however often; all of them when everything is recorded.
        parameter: whether those of parameters are taken at all.
        batch: whether those of batches are taken in this step.
        gradient: of gradients.
        activation: of activations.
        is_sampled: whether this step is one of those in which all statistics are taken.
        arguments: takes those of arguments of calls.
        results: takes those of results of calls.
        moves: how far the first updates move parameters.
    """

    def __init__(self, needs: Needs | None, clock: Clock, *, every: int = 1) -> None:
        stats = EVERYTHING if needs is None else needs.stats
        self.requested = without_sampling(stats)
        self._always_requested = self.requested & stats
        self._is_always_due = bool(self._always_requested - {"update"})  # that is up to `moves`
        self.parameter = "parameter" in self.requested
        self._clock = clock
        self._always = every > 1  # few steps are recorded at all
        self.arguments = ArgumentStats()
        self.results = ResultStats()
        self.moves = UpdateSize(is_requested="update" in self.requested)
        self.is_sampled = True  # before the first step
        self.begin_step(is_taken=True)

    def begin_step(self, *, is_taken: bool) -> None:
        """A step begins. is_taken: sampled data is recorded in it."""
        step, was_sampled = self._clock.step, self.is_sampled
        if self.moves.is_requested:
            self.moves.begin_step(step)
        is_sampled = step is not None and (self._always or is_taken)
        self.is_sampled = self.arguments.is_sampled = self.results.is_sampled = is_sampled
        if not (was_sampled or is_sampled or self._is_always_due):
            return  # nothing was taken, and nothing will be
        due = self.requested if is_sampled else self._always_requested
        self.batch = "batch" in due
        self.gradient = "gradient" in due
        self.activation = "activation" in due
        self.arguments.begin_step(
            is_sampled=is_sampled, takes_batches=self.batch, takes_inputs="input" in due
        )
        self.results.begin_step(is_sampled=is_sampled, takes_activations=self.activation)

    def wants_api(self, api: str) -> bool:
        """Whether calls of ``api`` are recorded for their statistics."""
        return api in self.requested or (self.activation and api in FUNCTIONS)

    def is_always_requested(self, api: str) -> bool:
        """Whether statistics of the arguments of ``api`` are taken in every step."""
        return api in self._always_requested

    def for_batch(self, em: Emitter, tensors: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
        """The statistics of the tensors in a batch, by path. Called only while ``batch`` is due."""
        arguments = self.arguments
        arguments.note_batch(tensors.values())
        texts = {}
        for path, tensor in tensors.items():
            if not is_countable(tensor):
                continue
            if is_short_row(tensor):
                few = of_row(tensor)
                if arguments.is_next_tokens(tensor):
                    few["shifted"] = ONCE
                texts[path] = orjson.dumps(few)
            else:
                taken = of_leaf(tensor, full=self.is_sampled)
                if self.is_sampled and has_rows(tensor):
                    taken["alike"] = share_alike(tensor)
                if arguments.is_next_tokens(tensor):
                    taken["shifted"] = torch.tensor(ONCE, device=tensor.device)
                texts[path] = stats_text(em, tensor, taken)
        return texts

    def for_parameter(self, em: Emitter, tensor: torch.Tensor) -> bytes:
        """Numbers of a parameter that is seen for the first time."""
        if not has_norm(tensor) or tensor.numel() > _LARGEST:
            return b""
        return stats_text(em, tensor, of_weights(tensor))

    def before_update(self, parameters: Iterable[torch.Tensor]) -> None:
        """An optimizer is about to step: `moves` measures the update later."""
        if not modes() and not is_included(FUNC):
            self.moves.before(parameters)

    def records_norms(self, size: int) -> bool:
        """Whether norms of parameters, which have so many elements, are taken in this step."""
        if self.is_sampled or self.moves.has_any:
            return True
        return "parameter" in self._always_requested and size <= SMALL
