"""Sentences of *input_output*: its claims, and what broke them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.relations.input_output.flow import ARGUMENT, RESULT
from traincheck.relations.phrasing import display_name, format_args
from traincheck.relations.topics import topic_of
from traincheck.schema.findings import Topic

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
