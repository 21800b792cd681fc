"""Arguments of functions and models, and the functions that a program calls itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import combinations
from typing import Any

from traincheck.facts.losses import LOSSES
from traincheck.relations.constant.setting import ARGUMENTS, EQUAL, TENSORS, Key, Setting
from traincheck.relations.phrasing import is_library
from traincheck.schema.events import (
    CallEvent,
)
from traincheck.schema.findings import Subject
from traincheck.schema.torch_api import ATTENTION, MODAL, MULTI_HEAD, SOFTMAXES, Families
from traincheck.schema.values import is_tensor
from traincheck.schema.words import counted

CAUSAL = "is_causal"
ATTENTIONS = frozenset({ATTENTION, MULTI_HEAD})
_WHOLE = frozenset(
    {"axis", "dim", "groups", "ignore_index", "padding_idx"}
)  # integers that are settings, not sizes
_MODE_ARGUMENTS = frozenset({"train", "training"})
_PAIR = 2
_HOLDERS = ("torch", "torch.Tensor", "torch.nn.functional")
# Functions that modules call with the arguments of their constructors.
_LAYERS = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "embedding", "gelu", "layer_norm", "linear", "relu",
        "rms_norm", "sigmoid", "silu", "tanh",
    )
)  # fmt: skip
_SOFTMAXES = SOFTMAXES | {f"{holder}.log_softmax" for holder in _HOLDERS}
_INSTEAD = LOSSES | _SOFTMAXES | {MULTI_HEAD}
_FUNCTIONS = ("torch.nn.functional.", "torch.nn.utils.clip_grad", *sorted(_SOFTMAXES))


class Arguments:
    """Numbers among the arguments of a function, and the names of its tensors.

    wanted: functions to read; None for all.
    """

    def __init__(self, wanted: Collection[str] | None) -> None:
        self._wanted = wanted

    def call(self, event: CallEvent) -> Setting | None:
        """The arguments of a call; None if it is not read."""
        api = event.api
        if self._wanted is None:
            is_wanted = api.startswith(_FUNCTIONS) and api not in _LAYERS
        else:
            is_wanted = api in self._wanted
        if not is_wanted or event.exception is not None:
            return None
        training = event.training if api in MODAL else None
        key, subject = Key(ARGUMENTS, api, training), Subject(api=api, module=event.module)
        return Setting(key, _given(event, has_mode=training is not None), event, subject)


def _given(event: CallEvent, *, has_mode: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    tensors = []
    for name, value in event.args.items():
        if isinstance(value, dict):
            if "shape" in value:
                tensors.append(_with_dims(name, value) if event.api in LOSSES else name)
        elif isinstance(value, bool):
            if name in _MODE_ARGUMENTS and has_mode:
                values[name] = value
        elif isinstance(value, float) or (isinstance(value, int) and name in _WHOLE):
            values[name] = value
    if event.api == MULTI_HEAD:  # the other arguments are those of its module
        values, tensors = {}, [name for name in tensors if name == "attn_mask"]
    if tensors:
        values[TENSORS] = sorted(tensors)
    if event.api == ATTENTION and not is_masked(values) and _has_several(event.args.get("query")):
        values[CAUSAL] = event.args.get(CAUSAL) is True
    return values


def _with_dims(name: str, tensor: Mapping[str, Any]) -> str:
    """A tensor with its dims, as ``input (2 dims)``: a loss broadcasts unequal dims."""
    return f"{name} ({counted(len(tensor['shape']), 'dim')})"


def _has_several(query: Any) -> bool:
    """Whether there are several positions: one alone, as with a cache, needs no mask."""
    return is_tensor(query) and len(query["shape"]) >= _PAIR and query["shape"][-2] > 1


def is_masked(values: Mapping[str, Any]) -> bool:
    """Whether attention was given a mask."""
    return "attn_mask" in values.get(TENSORS, ())


def equal_arguments(event: CallEvent, left_out: Collection[str]) -> Setting | None:
    """Which arguments of a model hold the same numbers, where their fingerprints are known.

    left_out: fingerprints to ignore: labels, some of which are ignored.
    """
    prints = {
        name: value["fingerprint"]
        for name, value in event.args.items()
        if isinstance(value, dict) and value.get("fingerprint") not in {None, *left_out}
    }
    if len(prints) < _PAIR:
        return None
    values = {f"{a} and {b}": prints[a] == prints[b] for a, b in combinations(sorted(prints), 2)}
    subject = Subject(api=event.api, module=event.module)
    return Setting(Key(EQUAL, event.api), values, event, subject)


class UserCalls:
    """Functions that a program calls itself, not through modules of a library.

    A module that stands for one function, such as a loss, counts as that function.
    """

    def __init__(self) -> None:
        self._open: dict[int, set[str]] = defaultdict(set)  # parent -> what it calls
        self.apis: set[str] = set()

    def call(self, event: CallEvent) -> None:
        """A call ended, after all calls within it."""
        inside = self._open.pop(event.span, ())
        if event.family == Families.MODULE:
            self.apis.update(_INSTEAD.intersection(inside) if is_library(event.api) else inside)
        if event.parent is None:
            self.apis.add(event.api)
        else:
            self._open[event.parent].add(event.api)

    def step(self) -> None:
        """No call reaches over the end of a step."""
        self._open.clear()
