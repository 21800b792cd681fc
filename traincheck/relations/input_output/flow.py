"""Tensors at the edge of a call, and the claims about them that are worth testing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traincheck.relations.base import ProposerBase, asked
from traincheck.relations.phrasing import is_user_api
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.marks import text_length
from traincheck.schema.torch_api import GRAD, Families

RESULT, ARGUMENT = "result", "argument "
_PART = f"{RESULT}["
COMPARED = ("device", "dtype", "shape", "shape[-1]", "shape[0]")
MEMORY = 4096  # kinds of calls remembered, so that equal calls are read once
_VARIETY = 2  # values of a dim, before an equal dim means anything
_COSMETIC = frozenset({"inplace", "out", "training"})  # change no result, or follow the mode
_MAX_TENSORS = 4  # among the arguments that are compared
_MAX_TEXT = 40  # characters; a longer one is data, not a flag


def in_view(event: CallEvent) -> bool:
    """Whether the call is one of a module, of autograd, or of a function outside all others."""
    return (
        event.family == Families.MODULE
        or event.api == GRAD
        or (event.parent is None and event.api.startswith("torch.nn.functional."))
    )


def tensor_at(event: CallEvent, name: str) -> dict[str, Any] | None:
    """The comparable properties of a tensor, by name; None when there is no such tensor.

    Of several gradients, those of the first; it requires grad if any of them does.
    """
    value = event.result if name == RESULT else event.args.get(name.removeprefix(ARGUMENT))
    if event.api == GRAD and isinstance(value, list):
        tensors = [item for item in value if _is_tensor(item)]
        any_grad = any(item.get("requires_grad") for item in tensors)
        value = {**tensors[0], "requires_grad": any_grad} if tensors else None
    elif name.startswith(_PART):
        value = dict(_parts(event)).get(name)
    return _properties(value) if isinstance(value, dict) and "shape" in value else None


def _parts(event: CallEvent) -> Iterator[tuple[str, Any]]:
    """The tensors of a module that returns several, by name: ``result[1]``, ``result[logits]``."""
    result = event.result
    if event.family != Families.MODULE:
        return
    if isinstance(result, list):
        items: Iterable[tuple[Any, Any]] = enumerate(result)
    elif isinstance(result, dict) and isinstance(result.get("dict"), dict):
        items = result["dict"].items()
    else:
        return
    yield from ((f"{_PART}{key}]", value) for key, value in items if _is_tensor(value))


def _differentiable(event: CallEvent, names: Iterable[str]) -> Iterator[str]:
    """Names of tensors that gradients may flow through. names: of arguments that are tensors."""
    if event.grad_enabled:
        yield from (RESULT, *(name for name, _ in _parts(event)))
        if event.family == Families.MODULE and event.training is not False:
            yield from (f"{ARGUMENT}{name}" for name in names)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, dict) and "shape" in value


def is_without_grad(event: CallEvent) -> bool:
    """Whether gradients are on, and no tensor argument of a function requires grad."""
    tensors = [value for value in event.args.values() if _is_tensor(value)]
    is_asked = event.grad_enabled and event.api != GRAD and bool(tensors)
    return is_asked and not any(value.get("requires_grad") for value in tensors)


def _properties(value: Mapping[str, Any]) -> dict[str, Any]:
    shape = value["shape"]
    found = {
        "dtype": value["dtype"],
        "device": value.get("device", "cpu"),
        "shape": tuple(shape),
        "ndim": len(shape),
        "requires_grad": bool(value.get("requires_grad", False)),
    }
    if shape:
        found["shape[0]"], found["shape[-1]"] = shape[0], shape[-1]
    return found


def kind_of(event: CallEvent) -> tuple[Any, ...]:
    """The key of calls for which every claim gives the same answer."""
    parts: list[Any] = [
        event.api,
        event.module,
        event.training,
        event.grad_enabled,
        event.autocast,
    ]
    for name, value in (*event.args.items(), (RESULT, event.result)):
        if isinstance(value, dict):
            if "shape" in value:
                parts += (
                    name,
                    value["dtype"],
                    tuple(value["shape"]),
                    value.get("device"),
                    value.get("requires_grad"),
                )
        elif isinstance(value, (bool, str)):
            parts += (name, value)
    if event.api == GRAD:
        given = tensor_at(event, RESULT)
        parts.append(given is not None and given["requires_grad"])
    parts += [name for name, value in _parts(event) if value.get("requires_grad")]
    return tuple(parts)


@dataclass(slots=True)
class _Api:
    """Properties of one API under one autocast state, with all their values.

    Attributes:
        equal: by the names of two tensors, the properties that never differed.
        values: by the names of two tensors, values of the left one.
        fixed: properties of the result.
        flags: values by argument.
        grads: requires_grad of the result, its parts, or arguments of a module in training, by
            module, with grad enabled.
    """

    is_function: bool
    equal: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    values: dict[tuple[str, str], dict[str, set[Any]]] = field(default_factory=dict)
    fixed: dict[str, set[Any]] = field(default_factory=dict)
    flags: dict[str, set[Any]] = field(default_factory=dict)
    grads: dict[str, dict[str | None, set[bool]]] = field(default_factory=dict)


class FlowProposer(ProposerBase):
    """Proposes what never failed. Equal calls are read once."""

    observes = asked("call")

    def __init__(self, relation: str) -> None:
        self._relation = relation
        self._apis: dict[tuple[str, str | None], _Api] = {}
        self._seen: set[tuple[Any, ...]] = set()

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent) and event.exception is None and in_view(event):
            kind = kind_of(event)
            if kind not in self._seen:
                if len(self._seen) >= MEMORY:
                    self._seen.clear()
                self._seen.add(kind)
                self._learn(event)

    def _learn(self, event: CallEvent) -> None:
        is_function = event.family != Families.MODULE
        api = self._apis.setdefault((event.api, event.autocast), _Api(is_function))
        names = [name for name, value in event.args.items() if _is_tensor(value)][:_MAX_TENSORS]
        # The first argument of a module is its input; others agree by chance.
        pairs = [(RESULT, name) for name in (names if is_function else names[:1])]
        if is_function and len(names) > 1:
            pairs.append((names[1], names[0]))  # of a loss: target and prediction
        if event.api == GRAD:  # the only claim is whether more can be derived from it
            pairs.clear()
        for pair in pairs:
            left, right = tensor_at(event, pair[0]), tensor_at(event, pair[1])
            if left is not None and right is not None:
                _compare(api, pair, left, right)
        result = tensor_at(event, RESULT)
        if result is not None:
            for key in ("dtype", "ndim"):
                api.fixed.setdefault(key, set()).add(result[key])
        for part in _differentiable(event, names):
            found = tensor_at(event, part)
            if found is not None:
                grads = api.grads.setdefault(part, {})
                grads.setdefault(event.module, set()).add(found["requires_grad"])
        for name, value in event.args.items():
            if name not in _COSMETIC:
                flag = isinstance(value, (bool, str)) and text_length(str(value)) <= _MAX_TEXT
                api.flags.setdefault(name, set()).add(value if flag else None)

    def hypotheses(self) -> Iterator[Hypothesis]:
        for name, autocast in sorted(self._apis, key=lambda key: (key[0], key[1] or "")):
            api = self._apis[name, autocast]
            base = {"api": name, **({"autocast": autocast} if autocast else {})}
            for params in (*_equal(base, api), *self._fixed(base, api)):
                yield self._claim(params, is_pinned=is_user_api(name))
            for params in _grads({"api": name}, api):
                yield self._claim(params, is_pinned=True)
            flags = {
                n: next(iter(v))
                for n, v in sorted(api.flags.items())
                if len(v) == 1 and None not in v
            }
            if api.is_function and flags:
                yield self._claim({"api": name, "args": flags}, is_pinned=True)

    def conditional_hypotheses(self) -> Iterator[Hypothesis]:
        """Claims that this run supports if another run, in which dims varied, proposes them."""
        for name, autocast in sorted(self._apis, key=lambda key: (key[0], key[1] or "")):
            base = {"api": name, **({"autocast": autocast} if autocast else {})}
            for pair, equal in sorted(self._apis[name, autocast].equal.items()):
                if equal:
                    params = {**base, "left": pair[0], "right": pair[1], "equal": sorted(equal)}
                    yield self._claim(params, is_pinned=is_user_api(name))
            if RESULT not in self._apis[name, autocast].grads:  # a part that only others trained
                wanted: dict[str, Any] = {"api": name, "is": {"requires_grad": True}}
                yield self._claim(wanted, is_pinned=True)

    def _claim(self, params: dict[str, Any], *, is_pinned: bool) -> Hypothesis:
        """is_pinned: another program may differ."""
        if is_pinned and self._program.name is not None:
            params = {**params, "program": self._program.name}
        return Hypothesis(relation=self._relation, params=params)

    def _fixed(self, base: dict[str, Any], api: _Api) -> Iterator[dict[str, Any]]:
        fixed = {key: next(iter(v)) for key, v in sorted(api.fixed.items()) if len(v) == 1}
        if any("dtype" in equal for equal in api.equal.values()):
            fixed.pop("dtype", None)  # it may follow an argument
        if "autocast" in base and "dtype" in fixed:
            yield {**base, "is": {"dtype": fixed["dtype"]}}
        elif is_user_api(base["api"]) and fixed:
            yield {**base, "is": fixed}


def _compare(
    api: _Api, pair: tuple[str, str], left: Mapping[str, Any], right: Mapping[str, Any]
) -> None:
    equal = {key for key in COMPARED if key in left and left[key] == right.get(key)}
    api.equal[pair] = api.equal[pair] & equal if pair in api.equal else equal
    values = api.values.setdefault(pair, {key: set() for key in COMPARED})
    for key, seen in values.items():
        if len(seen) < _VARIETY and key in left:
            seen.add(left[key])


def _equal(base: dict[str, Any], api: _Api) -> Iterator[dict[str, Any]]:
    for pair, equal in sorted(api.equal.items()):
        # An equal dim means something only if it varied: else a batch size would be pinned.
        varied = {key for key, seen in api.values[pair].items() if len(seen) >= _VARIETY}
        # Under autocast results always have its dtype: an equal dtype must have varied.
        plain = frozenset() if "autocast" in base else frozenset({"dtype"})
        keys = sorted(equal & (varied | plain))
        if "shape" in keys and {"shape[0]", "shape[-1]"} <= varied:
            keys = [key for key in keys if not key.startswith("shape[")]
        else:
            keys = [key for key in keys if key != "shape"]
            if not is_user_api(base["api"]):
                keys = [
                    key for key in keys if key != "shape[-1]"
                ]  # square layers are equal by chance
        if keys:
            yield {**base, "left": pair[0], "right": pair[1], "equal": keys}


def _grads(base: dict[str, Any], api: _Api) -> Iterator[dict[str, Any]]:
    for part, grads in sorted(api.grads.items()):
        wanted = {**base, "is": {"requires_grad": True}}
        if part != RESULT:
            wanted["of"] = part
        if part.startswith(ARGUMENT):  # another layer of a class may get data
            modules = sorted(name for name, found in grads.items() if name and found == {True})
            if modules:
                yield {**wanted, "modules": modules}
            continue
        if all(found == {True} for found in grads.values()):
            yield wanted
            continue
        for module, found in sorted(grads.items(), key=lambda item: item[0] or ""):
            if found == {True} and module is not None:
                yield {**wanted, "module": module}
