"""How claims about the edges of calls are put into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traincheck.relations.input_output.flow import ARGUMENT, RESULT
from traincheck.relations.phrasing import short, shown
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
    "headline": "No gradient flows back through what {subject} is given",
    "likely_cause": (
        "An argument of {subject}{where} was detached, made of numbers, computed where gradients "
        "are off, or comes from a frozen model, as both arguments may: what it comes from is not "
        "trained by this way."
    ),
    "fix": "Remove detach(), .data, torch.tensor() and no_grad() on the way to {subject}{where}; "
    "call requires_grad_(True) on a model that is to be trained; a distribution passes gradients "
    "through rsample(), not through sample().",
}
# How often ``detach`` is called is a habit that says where gradients go.
CUT: Mapping[str, str] = {
    "likely_cause": (
        "A tensor is detached that is not in the reference, or no longer is: gradients go another "
        "way{where}."
    ),
    "fix": "Find the detach() that the reference does not have, or that is missing here{where}.",
}
_NAMED = 2  # modules that are named in a sentence


def text_of(params: Mapping[str, Any]) -> str:
    """A claim as a sentence."""
    name = short(params["api"])
    autocast = params.get("autocast")
    scope = f"Under autocast to {autocast}, " if autocast else ""
    if "args" in params:
        return f"{name} is called with {shown(params['args'])}"
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
    """What a claim is about, by the names in it."""
    place = params.get("of") or params.get("left", "")
    return topic_of((*params.get("args", ()), *params.get("is", ()), place))


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _fixed(key: str, value: Any) -> str:
    if key == "requires_grad":
        return "requires grad" if value else "does not require grad"
    return f"is {value}" if key == "dtype" else f"has {value} dims"


def listed(name: str, keys: Sequence[str], tensor: Mapping[str, Any]) -> str:
    """Those properties of a tensor, after its name."""
    return f"{name}: " + ", ".join(f"{WORDS[key]} {tensor.get(key)}" for key in keys)
