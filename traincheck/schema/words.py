"""Common phrases of all texts, meanings of names, and text that is safe to show."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from traincheck.schema.torch_api import Families

_ES = ("s", "x", "ch", "sh")
_HARD = "epoch"  # its ch is pronounced k


def counted(number: int, word: str) -> str:
    """``1 step``, ``2,000 steps``, ``3 batches``, ``3 epochs``."""
    ending = "es" if word.endswith(_ES) and not word.endswith(_HARD) else "s"
    return f"{number:,} {word}{'' if number == 1 else ending}"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``: all of them. There is at least one."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def joined(names: Sequence[str], limit: int = 4) -> str:
    """``a, b and 3 more``: the first ``limit`` of them."""
    shown, left = ", ".join(names[:limit]), len(names) - limit
    return f"{shown} and {left:,} more" if left > 0 else shown


_UNOWNED = re.compile(r"opt\d+\[\d+\]\.\d+\Z")
_BIASES = frozenset({"bias", "b"})
_WEIGHTS = (
    "weight", "weight_v", "weight_g", "weight_orig", "parametrizations.weight.original",
    "parametrizations.weight.original0", "parametrizations.weight.original1", "W", "w",
)  # fmt: skip
# Classes of averages: AveragedModel of torch, ModelEmaV2 of timm, EMA of ema_pytorch ...
AVERAGE_CLASS = re.compile(r"(Averaged?Model|(Moving|Running)Average|EMA|Ema(?![a-z])|SWA)\w*\Z")


def is_unowned(name: str) -> bool:
    """Whether this is the name of a tensor that an optimizer holds and no module owns."""
    return _UNOWNED.match(name) is not None


def paired_weights(name: str) -> frozenset[str]:
    """Possible names of the weight that belongs to a bias; empty for other parameters.

    They include the names that weight_norm, spectral_norm and parametrizations use, and usual names
    in hand-written layers.
    """
    module, _, leaf = name.rpartition(".")
    if leaf not in _BIASES:
        return frozenset()
    return frozenset(f"{module}.{weight}" for weight in _WEIGHTS)


_T = TypeVar("_T")
_INVISIBLE = (
    "\x00-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff"
)
_UNSAFE = re.compile(rf"[{_INVISIBLE}]|(?<!\S)::|##(?=\w*\[)")
_IN_JSON = re.compile(rf"[{_INVISIBLE}]|##(?=\w*\[)")


# Names come from traces and files, which may come from anyone. These become escapes: control
# characters, characters that change how text reads (direction, invisible characters, line
# separators), and commands of CI logs (``::error``, ``##[error]``).
def printable(text: str) -> str:
    """Text on one line: line breaks are escaped, too."""
    is_safe = text.isascii() and text.isprintable() and "::" not in text and "##" not in text
    return text if is_safe else _UNSAFE.sub(_escaped, text)


def printable_lines(text: str) -> str:
    """Text of several lines, each of them `printable`."""
    return "\n".join(map(printable, text.split("\n")))


def printable_json(text: str) -> str:
    """JSON with escapes for the same characters, which keeps its meaning."""
    lines = text.split("\n")  # of indented JSON
    return "\n".join(_IN_JSON.sub(_in_json, line) for line in lines)


def all_printable(value: _T) -> _T:
    """A report or a part of one, with printable text. Keys and evidence are unchanged."""
    made: Any = _made(value)
    return made  # type: ignore[no-any-return]


def _made(value: Any) -> Any:
    if type(value) is str:
        return printable(value)
    if isinstance(value, tuple | list):
        return type(value)(map(_made, value))
    if isinstance(value, Mapping):
        return {key: _made(part) for key, part in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **{name: _made(part) for name, part in parts.items()})
    return value


def _escaped(match: re.Match[str]) -> str:
    found = match[0]
    if found == "::":
        return r"\x3a:"
    if found == "##":
        return r"\x23#"
    return found.encode("unicode_escape").decode()


def _in_json(match: re.Match[str]) -> str:
    found = match[0]
    if found == "##":
        return r"\u0023#"
    return r"\u007f" if found == "\x7f" else json.dumps(found)[1:-1]


_SHORT = {
    "step": "training step",
    Families.BACKWARD: "backward",
    Families.MODULE: "a forward of the model",
    Families.ZERO_GRAD: "zero_grad",
}


def display_name(api: str) -> str:
    """The short name of an API: ``Linear.forward``, ``functional.relu``."""
    return _SHORT.get(api) or ".".join(api.split(".")[-2:])
