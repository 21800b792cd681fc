"""The checksums of one training step: of what each optimizer finds when it begins its update.

Shared by recordings and callbacks. The callers decide in which steps they are taken, and catch what
fails.
"""

from __future__ import annotations

import functools
import random
import struct
import sys
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

import torch

from traincheck.collect.tensors.checksum_snapshot import ChecksumSnapshot, bytes_fingerprint
from traincheck.collect.tensors.devices import KIND, generator_states, is_capturing, is_used
from traincheck.collect.tensors.reading import groups_of, own, state_of
from traincheck.collect.tensors.summarize import dotted, summarize_named
from traincheck.schema.checksums import (
    BATCH,
    BUFFER,
    GENERATOR,
    GRADIENT,
    GROUPS,
    LOCAL_GRADIENT,
    PARAMETER,
    SETTINGS,
    STATE,
)

_MOST_DEPTH = 3  # of lists and mappings in the state of a parameter


def add_optimizer(
    snapshot: ChecksumSnapshot,
    owner: str,
    optimizer: torch.optim.Optimizer,
    name_of: Callable[[torch.Tensor], str],
) -> None:
    """Add the class, defaults, groups and state of an optimizer.

    Args:
        snapshot: gets the records.
        owner: id of the optimizer.
        optimizer: as it is now.
        name_of: the name of a parameter.
    """
    groups = [
        {**_plain(group), "params": [name_of(parameter) for parameter in group["params"]]}
        for group in groups_of(optimizer)
    ]
    data = {
        "type": dotted(type(optimizer)),
        "defaults": _plain(own(optimizer).get("defaults", {})),
        "param_groups": groups,
    }
    snapshot.add_data(SETTINGS, owner, data, owner=owner)
    for group in groups_of(optimizer):
        for parameter in group["params"]:
            # Not by index: that would create the state
            state = state_of(optimizer, parameter)
            if isinstance(state, Mapping):
                _add_state(snapshot, owner, name_of(parameter), state)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: summarize_named(key, value) for key, value in values.items() if key != "params"}


def _add_state(
    snapshot: ChecksumSnapshot, owner: str, path: str, value: Any, depth: int = 0
) -> None:
    if isinstance(value, torch.Tensor):
        snapshot.add(STATE, path, value, owner=owner)
    elif isinstance(value, (Mapping, list, tuple)) and depth < _MOST_DEPTH:
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _add_state(snapshot, owner, f"{path}/{key}", item, depth + 1)
    else:
        snapshot.add_value(STATE, path, value, owner=owner)


def add_generators(snapshot: ChecksumSnapshot) -> None:
    """Add the states of the generators of torch, CUDA, NumPy and Python. Draws nothing.

    Those of CUDA only if the program uses it, that of NumPy only if it is loaded.
    """
    snapshot.add(GENERATOR, "torch", torch.get_rng_state())
    if is_used() and not is_capturing():
        states = [state for _, state in generator_states()]
        snapshot.add(GENERATOR, f"torch.{KIND}", torch.stack(states))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        algorithm, state, position, has_gauss, gauss = numpy.get_state()
        data = {
            "algo": algorithm,
            "state": bytes_fingerprint(state.tobytes()),
            "pos": int(position),
            "has_gauss": int(has_gauss),
            "cached_gaussian": float(gauss),
        }
        snapshot.add_data(GENERATOR, "numpy", data)
    version, words, gaussian = random.getstate()
    packed = struct.pack(f"<{len(words)}Q", *words)
    data = {"version": version, "state": bytes_fingerprint(packed), "gaussian": gaussian}
    snapshot.add_data(GENERATOR, "python", data)


Named = Iterable[tuple[str, torch.Tensor]]


class _AccumulationHook:
    """A hook that is called when the gradient of a parameter was accumulated.

    As ``register_post_accumulate_grad_hook``, with its own key: those of the program's hooks stay
    as without it.
    """

    def __init__(self, parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> None:
        self._parameter: Any = parameter
        if self._parameter._post_accumulate_grad_hooks is None:
            self._parameter._post_accumulate_grad_hooks = OrderedDict()
        self._parameter._post_accumulate_grad_hooks[self] = hook

    def remove(self) -> None:
        """Call it no more."""
        hooks = self._parameter._post_accumulate_grad_hooks
        if hooks is not None:
            hooks.pop(self, None)
            if not hooks:
                self._parameter._post_accumulate_grad_hooks = None


class Subjects(Protocol):
    """The trained variables and their optimizers in a process."""

    def parameters(self) -> Named:
        """Names and parameters; tied ones may come more than once."""

    def buffers(self) -> Named:
        """Names and buffers."""

    def optimizers(self) -> Iterable[tuple[str, torch.optim.Optimizer]]:
        """Ids and optimizers that are alive."""


class StepChecksums:
    """Takes the checksums of one step.

    A parameter, its gradient and its state are taken before the update of the optimizer that holds
    them. Parameters of no optimizer, buffers and generators are taken before the first update of
    the step. The rest is taken by `finish`, such as parameters whose optimizer did not step.

    Args:
        subjects: what is trained.
        groups: what is taken, of `traincheck.schema.checksums.GROUPS`.
        has_numbers: whether numbers are taken beside fingerprints.
    """

    def __init__(
        self,
        subjects: Subjects,
        *,
        groups: Collection[str] = GROUPS,
        has_numbers: bool = True,
    ) -> None:
        self._subjects = subjects
        self._groups = frozenset(groups)
        self._has_numbers = has_numbers
        self._snapshot = ChecksumSnapshot(has_numbers=has_numbers)
        self._taken: set[int] = set()  # ids of the parameters
        self._stepped: set[str] = set()
        self._local: dict[str, ChecksumSnapshot] = {}
        self._handles: list[Any] = []

    def add_batch(self, loader: str, index: int, leaves: Mapping[str, torch.Tensor]) -> None:
        """Add a batch.

        Args:
            loader: its name.
            index: of the batch in its epoch.
            leaves: its tensors by path.
        """
        if BATCH in self._groups:
            for name, leaf in leaves.items():
                self._snapshot.add(BATCH, name, leaf, owner=loader, data={"index": index})

    def watch_local_gradients(
        self, named: Named, guard: Callable[[Callable[..., None]], Callable[..., None]]
    ) -> None:
        """Take each gradient when it is accumulated, which is before ranks reduce it.

        Args:
            named: names and parameters.
            guard: makes a function that only counts failures of its argument.
        """
        if LOCAL_GRADIENT not in self._groups or self._handles:
            return
        for name, parameter in named:
            if parameter.requires_grad and parameter.is_leaf:
                hook = guard(functools.partial(self._accumulated, name))
                self._handles.append(_AccumulationHook(parameter, hook))

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            snapshot = ChecksumSnapshot(has_numbers=self._has_numbers)
            snapshot.add(LOCAL_GRADIENT, name, parameter.grad)
            self._local[name] = snapshot

    def unwatch(self) -> None:
        """Remove the hooks of `watch_local_gradients`."""
        while self._handles:
            self._handles.pop().remove()

    def before_update(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to write its parameters."""
        live = dict(self._subjects.optimizers())
        owner = next((name for name, one in live.items() if one is optimizer), None)
        if owner is None or owner in self._stepped:  # one that another wraps; a second update
            return
        is_first = not self._stepped
        self._stepped.add(owner)
        self.unwatch()
        others = {
            id(p)
            for name, one in live.items()
            if name not in self._stepped
            for group in groups_of(one)
            for p in group["params"]
        }
        self._add_parameters(others)
        if is_first:
            self._add_rest()
        self._add_optimizer(owner, optimizer)

    def finish(self) -> list[dict[str, Any]]:
        """The fields of all records of the step. Waits for devices."""
        self.unwatch()
        self._add_parameters(frozenset())
        if not self._stepped:
            self._add_rest()
        for owner, optimizer in self._subjects.optimizers():
            if owner not in self._stepped:
                self._add_optimizer(owner, optimizer)
        records = self._snapshot.finish()
        for snapshot in self._local.values():
            records += snapshot.finish()
        return records

    def _add_parameters(self, skipped: Collection[int]) -> None:
        """Add all parameters that were not added yet; tied ones once."""
        for name, parameter in self._subjects.parameters():
            if id(parameter) in self._taken or id(parameter) in skipped:
                continue
            self._taken.add(id(parameter))
            if PARAMETER in self._groups:
                self._snapshot.add(PARAMETER, name, parameter)
            if GRADIENT in self._groups and parameter.grad is not None:
                self._snapshot.add(GRADIENT, name, parameter.grad)

    def _add_rest(self) -> None:
        if BUFFER in self._groups:
            seen: set[int] = set()
            for name, buffer in self._subjects.buffers():
                if id(buffer) not in seen:
                    seen.add(id(buffer))
                    self._snapshot.add(BUFFER, name, buffer)
        if GENERATOR in self._groups:
            add_generators(self._snapshot)

    def _add_optimizer(self, owner: str, optimizer: torch.optim.Optimizer) -> None:
        if SETTINGS not in self._groups:
            return
        names = {
            id(p): f"{owner}[{number}].{place}"
            for number, group in enumerate(groups_of(optimizer))
            for place, p in enumerate(group["params"])
        }
        for name, parameter in self._subjects.parameters():
            if id(parameter) in names:
                names[id(parameter)] = name
        add_optimizer(self._snapshot, owner, optimizer, lambda p: names[id(p)])
