"""The relation *input_output*: how arguments and result of an API relate, and what is fixed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.relations.base import OfProgram, RelationBase, counterexample
from traincheck.relations.input_output.flow import (
    ARGUMENT,
    MEMORY,
    RESULT,
    FlowProposer,
    in_view,
    is_without_grad,
    kind_of,
    tensor_at,
)
from traincheck.relations.phrasing import format_args, in_program, is_user_api, topic_of
from traincheck.schema.claims import Context, Hypothesis, Needs, within_modules
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.torch_api import Families
from traincheck.schema.words import display_name

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
