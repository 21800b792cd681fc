"""Names of APIs, variables and programs in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from traincheck.readings.programs import file_of
from traincheck.schema.findings import Topic
from traincheck.schema.words import joined, listed

SEVERAL_RANKS = "several ranks"  # in the vocabulary of a run: it has more than rank 0
STEP = "step"  # as an outer window: from one step boundary to the next

_MOST_NAMES = 4  # in a sentence
_WRAPPERS = (
    "torch._dynamo.",
    "torch.ao.",
    "torch.distributed.",
    "torch.fx.",
    "torch.jit.",
    "torch.nn.modules.container.",
    "torch.nn.parallel.",
    "torch.optim.swa_utils.",
)
# Packages whose names mean the same wherever they are installed. Others may be a program's own.
_PUBLIC = tuple(
    f"{package}."
    for package in (
        "accelerate",
        "diffusers",
        "lightning",
        "peft",
        "pytorch_lightning",
        "timm",
        "torchaudio",
        "torchvision",
        "transformers",
    )
)
_OPENINGS = frozenset(
    {
        "After",
        "All",
        "Argument",
        "Between",
        "During",
        "Each",
        "Every",
        "In",
        "No",
        "The",
        "Under",
        "What",
        "When",
        "Whenever",
    }
)
ROLE_NAMES = {
    "parameter": "parameter",
    "gradient": "gradient",
    "buffer": "buffer",
    "optimizer_state": "optimizer state",
}


def format_args(args: Mapping[str, Any]) -> str:
    """Arguments as in a call: ``is_causal=True, reduction='mean'``."""
    return ", ".join(f"{name}={value!r}" for name, value in sorted(args.items()))


def names_text(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b and c``; of more than four, the first four."""
    return joined(names, _MOST_NAMES) if len(names) > _MOST_NAMES else listed(names)


def is_wrapper(api: str) -> bool:
    """Whether it belongs to torch, but only runs modules that the program puts into it."""
    return api.startswith(_WRAPPERS)


def is_library(api: str) -> bool:
    """Whether ``api`` is torch's own and means the same in every program."""
    return api.startswith("torch.") and not is_wrapper(api)


def is_user_api(api: str) -> bool:
    """Whether another program may use the same name for something else."""
    return not (is_library(api) or api.startswith(_PUBLIC))


def in_program(params: Mapping[str, Any], text: str) -> str:
    """The sentence with the one program that it applies to, if there is one."""
    return of_programs([file_of(params["program"])], text) if "program" in params else text


def of_programs(names: Sequence[str], text: str) -> str:
    """The sentence with the programs that it applies to, if there are any."""
    if not names:
        return text
    first, _, _ = text.partition(" ")
    plain = first.lower() + text[len(first) :] if first in _OPENINGS else text
    return f"In {listed(names)}, {plain}"


def selector_text(params: Mapping[str, Any]) -> str:
    """``parameter``, ``parameter of Net``, ``weight of a Linear`` or ``buffer running_mean``."""
    role = ROLE_NAMES[params["role"]]
    leaf = params.get("leaf")
    if "module_class" not in params:
        what = role if leaf is None else f"{role} {leaf}"
        return f"{what} of {params['model']}" if "model" in params else what
    kind = "" if role == "parameter" else f"{role} "
    return f"{kind}{leaf} of a {params['module_class'].rpartition('.')[2]}"


# Parts of names of arguments, flags and batch parts. The first match wins.
_PARTS = (
    ("requires_grad", Topic.REQUIRES_GRAD),
    ("training", Topic.MODE),
    ("mask", Topic.MASK),
    ("causal", Topic.MASK),
)


def topic_of(names: Iterable[str]) -> Topic | None:
    """The topic of arguments with these names; None for names of no topic."""
    known = list(names)
    return next((topic for part, topic in _PARTS if any(part in name for name in known)), None)
