"""The relation *input_output*: how arguments and result of an API relate, and what is fixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from traincheck.relations.base import OfProgram, ProposerBase, RelationBase, asked, counterexample
from traincheck.relations.phrasing import format_args, in_program, is_user_api, topic_of
from traincheck.schema.claims import Context, Hypothesis, Needs, within_modules
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.marks import text_length
from traincheck.schema.torch_api import GRAD, Families
from traincheck.schema.words import display_name

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


WORDS = {
    "dtype": "dtype",
    "device": "device",
    "shape": "shape",
    "shape[0]": "first dim",
    "shape[-1]": "last dim",
}
_AND = " and "
DETACHED: Mapping[str, str] = {
    "headline": "No gradient flows back through the arguments of {subject}",
    "likely_cause": (
        "An argument of {subject}{where} was detached, built from numbers, computed with gradients "
        "off, or comes from a frozen model. The modules that computed it are not trained."
    ),
    "fix": "Remove detach(), .data, torch.tensor() and no_grad() on the way to {subject}{where}. "
    "Call requires_grad_(True) on a model that should train. A distribution passes gradients "
    "through rsample(), not through sample().",
}
_NAMED = 2  # modules that are named in a sentence


def text_of(params: Mapping[str, Any]) -> str:
    """The claim as a sentence."""
    name = display_name(params["api"])
    autocast = params.get("autocast")
    scope = f"Under autocast to {autocast}, " if autocast else ""
    if "args" in params:
        return f"{name} is called with {format_args(params['args'])}"
    modules = params.get("modules", [params["module"]] if "module" in params else [])
    if 0 < len(modules) <= _NAMED:
        name = _AND.join(modules)
    if "is" in params:
        what = _AND.join(_fixed(key, value) for key, value in sorted(params["is"].items()))
        of = params.get("of", RESULT)
        of = of if of.startswith(ARGUMENT) else f"the {of}"
        where = f" in {len(modules)} modules" if len(modules) > _NAMED else ""
        return _sentence(f"{scope}{of} of {name} {what}{where}")
    what = _AND.join(WORDS[key] for key in params["equal"])
    left = "result" if params["left"] == "result" else f"argument {params['left']}"
    return _sentence(f"{scope}the {left} of {name} has the {what} of argument {params['right']}")


def topic_of_claim(params: Mapping[str, Any]) -> Topic | None:
    """The topic of a claim, by the names in it."""
    place = params.get("of") or params.get("left", "")
    return topic_of((*params.get("args", ()), *params.get("is", ()), place))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _fixed(key: str, value: Any) -> str:
    if key == "requires_grad":
        return "requires grad" if value else "does not require grad"
    return f"is {value}" if key == "dtype" else f"has {value} dims"


def listed(name: str, keys: Sequence[str], tensor: Mapping[str, Any]) -> str:
    """Some properties of a tensor, after its name."""
    return f"{name}: " + ", ".join(f"{WORDS[key]} {tensor.get(key)}" for key in keys)


class InputOutput(RelationBase):
    """The result and the arguments of an API fit each other.

    Claims:
        - Two tensors among result and arguments have an equal dtype, device or shape, or an equal
          first or last dim.
        - The result has a fixed dtype or number of dims, or requires grad. So does each tensor of a
          module that returns several, and each tensor that other modules pass to a module in
          training.
        - Flags always have the same value.

    Example:
        ``The result of Linear.forward has the dtype of its argument 0.`` A kernel that falls back
        to another precision breaks it. ``cross_entropy is called with reduction='mean'.``

    Evidence:
        One example for each call of the API, outside autocast or under the autocast dtype that the
        claim names. Equal dims count only if the dim took several values: a batch size is never
        pinned, and a square layer proves nothing. Context: training, grad_enabled.

    Chance:
        A coin for each example.

    Not claimed:
        - Any size or number.
        - Anything of functions inside other modules: *contains* covers their flags.
        - Anything of other scripts, for flags, and for dtype or grad of a script's own modules.
    """

    name = "input_output"
    severity = "warning"

    def proposer(self) -> FlowProposer:
        return FlowProposer(self.name)

    def decider(self, claims: Sequence[Hypothesis]) -> FlowDecider:
        return FlowDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kinds = frozenset({"mark"} if "program" in claim.params else ())
        return Needs(calls=within_modules(claim.params["api"]), kinds=kinds)

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, text_of(claim.params))

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        return DETACHED if claim.params.get("of", "").startswith(ARGUMENT) else {}

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """More properties of the same tensors imply fewer; a class implies one of its modules."""
        mine, its = claim.params, other.params
        if other.relation != self.name or mine["api"] != its["api"]:
            return False
        if any(mine.get(key) not in (None, its.get(key)) for key in ("program", "module")):
            return False
        if any(mine.get(key) != its.get(key) for key in ("autocast", "of")):
            return False
        if "modules" in mine and not set(mine["modules"]) >= set(its.get("modules", ())):
            return False
        if "equal" in mine:
            same = [mine.get(key) == its.get(key) for key in ("left", "right")]
            return all(same) and "equal" in its and _implied(mine["equal"]) >= set(its["equal"])
        for key in ("is", "args"):
            if key in mine:
                return key in its and mine[key].items() >= its[key].items()
        return False


def _implied(properties: Sequence[str]) -> set[str]:
    more = {"shape[0]", "shape[-1]"} if "shape" in properties else set()
    return set(properties) | more


class FlowDecider(OfProgram):
    """Decides all claims about an API at once, and equal kinds of calls only once."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._by_api: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for index, claim in enumerate(claims):
            _check(claim.params)
            self._by_api[claim.params["api"]].append((index, claim.params))
        self._judged: dict[tuple[Any, ...], Sequence[tuple[int, Example]]] = {}
        self._contexts: dict[tuple[Any, ...], Context] = {}
        self._held: dict[int, Example] = {}
        self._step: int | None = None
        self._flowing: set[int] = set()  # claims that hold of some call in this step
        self._cut: dict[int, list[Example]] = defaultdict(
            list
        )  # calls that do not count in that case

    def observe(self, event: Event) -> Sequence[tuple[int, Example]]:
        if not isinstance(event, CallEvent):
            return ()
        claims = self._by_api.get(event.api)
        if claims is None or event.exception is not None or not in_view(event):
            return ()
        key = kind_of(event)
        if (known := self._judged.get(key)) is None:
            known = tuple(self._judge(claims, event))
            if all(example.holds for _, example in known):  # a negative one names step and event
                if len(self._judged) >= MEMORY:
                    self._judged.clear()
                self._judged[key] = known
        return known if event.family == Families.MODULE else self._of_step(event, known)

    def finish(self) -> Sequence[tuple[int, Example]]:
        """The last step is over."""
        return self._begin(None)

    def _begin(self, step: int | None) -> list[tuple[int, Example]]:
        """Begin another step. Claims count that no call of the last step satisfied."""
        found = [
            (index, example)
            for index, examples in self._cut.items()
            if index not in self._flowing
            for example in examples
        ]
        self._step = step
        self._flowing.clear()
        self._cut.clear()
        return found

    def _of_step(
        self, event: CallEvent, known: Sequence[tuple[int, Example]]
    ) -> Sequence[tuple[int, Example]]:
        """Arguments may come from a teacher, if gradients flow through other calls."""
        found = self._begin(event.step) if event.step != self._step else []
        self._flowing.update(index for index, example in known if example.holds)
        if not found and all(example.holds for _, example in known):
            return known  # the same object for the same answer
        for index, example in known:
            if example.symptom == Symptom.DETACHED and is_without_grad(event):
                self._cut[index].append(example)
            else:
                found.append((index, example))
        return found

    def _judge(
        self, claims: Sequence[tuple[int, Mapping[str, Any]]], event: CallEvent
    ) -> list[tuple[int, Example]]:
        found = []
        for index, params in claims:
            if not self._program.fits(params):
                continue
            if event.module not in params.get("modules", (params.get("module", event.module),)):
                continue
            # A claim about dtypes applies to one state of autocast
            if ("equal" in params or "dtype" in params.get("is", ())) and params.get(
                "autocast"
            ) != event.autocast:
                continue
            answer = _answer(params, event)
            if answer is not None:
                found.append((index, self._example(params, event, *answer)))
        return found

    def _example(
        self, params: Mapping[str, Any], event: CallEvent, expected: str, observed: str
    ) -> Example:
        features: dict[str, Any] = {}
        found = params.get("is", ())
        if params.get("of", "").startswith(ARGUMENT):
            pass  # only calls with grad enabled are judged
        elif "requires_grad" in found:
            features = {"grad_enabled": event.grad_enabled}
        elif event.training is not None and is_user_api(event.api):
            features = {"training": event.training}
        context = self._contexts.setdefault(tuple(sorted(features.items())), features)
        if expected == observed:
            known = self._held.get(id(context))  # contexts are kept
            if known is None:
                known = self._held[id(context)] = Example(holds=True, context=context)
            return known
        return counterexample(
            event,
            Subject(api=event.api, module=event.module),
            expected,
            observed,
            Symptom.DETACHED if "requires_grad" in found else Symptom.WRONG_VALUE,
            context=context,
            stage=event.stage,
        ).replace(topic=topic_of_claim(params))


def _check(params: Mapping[str, Any]) -> None:
    """Raise ValueError for parameters that no version wrote: they must not seem to hold."""
    forms = [key for key in ("equal", "is", "args") if key in params]
    if len(forms) != 1 or (forms == ["equal"] and not set(params["equal"]) <= set(WORDS)):
        raise ValueError(f"nothing is known of {dict(params)}")


def _answer(params: Mapping[str, Any], event: CallEvent) -> tuple[str, str] | None:
    """The expectation and the observation; None if the call cannot be judged."""
    if "args" in params:
        wanted = params["args"]
        given = {name: event.args[name] for name in wanted if name in event.args}
        return format_args(wanted), format_args(given)
    if "is" in params:
        is_given = params.get("of", "").startswith(ARGUMENT)
        if is_given and (not event.grad_enabled or event.training is False):
            return None
        tensor = tensor_at(event, params.get("of", RESULT))
        if tensor is None:
            return None
        found = {key: tensor[key] for key in params["is"]}
        part = f"{params['of']}: " if "of" in params else ""
        return part + format_args(params["is"]), part + format_args(found)
    left, right = tensor_at(event, params["left"]), tensor_at(event, params["right"])
    if left is None or right is None:
        return None
    keys = params["equal"]
    if left["ndim"] < 2 and right["ndim"] < 2:  # noqa: PLR2004  # its one dim is no batch
        keys = [key for key in keys if key != "shape[0]"]
        if not keys:
            return None
    return listed(params["left"], keys, right), listed(params["left"], keys, left)
