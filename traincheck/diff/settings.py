"""The settings in force in a step: of optimizers, schedulers, and of what clips the gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from traincheck.diff.items import Item
from traincheck.diff.phases import Phase
from traincheck.diff.state import RunState
from traincheck.diff.steps import StepView
from traincheck.diff.values import Answer, compare_values
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_tensor

FIRST = -1  # place in the causal order of a step: before everything
_CLIPPING = {Families.CLIP_NORM, Families.CLIP_VALUE, Families.FSDP_CLIP}
_UNTOLD = frozenset({"parameters", "optimizer", "foreach", "self", "0", "1"})


def compare_settings(
    a: StepView, b: StepView, states: tuple[RunState, RunState]
) -> tuple[list[Item], int]:
    """The settings that differ, and how many were compared."""
    mine, yours = settings_of(a, states[0]), settings_of(b, states[1])
    items = []
    for number, name in enumerate(dict.fromkeys([*mine, *yours])):
        x, y = mine.get(name), yours.get(name)
        if (x is None or y is None) and not name.endswith((".class", " class")):
            continue  # a call or an optimizer that only one run has is told as such
        found = compare_values(x, y)
        if found.answer is Answer.DIFFERENT:
            items.append(
                Item(phase=Phase.SETTINGS, name=name, what="setting", a=x, b=y,
                     position=(FIRST, number), gaps=found.gaps, is_sized=bool(found.gaps))
            )  # fmt: skip
    return items, len(mine)


def settings_of(view: StepView, state: RunState) -> dict[str, Any]:
    """All settings of a step by name, ``AdamW.lr`` first."""
    labels = _labels(state)
    found: dict[str, Any] = {}
    lr: Mapping[str, Any] = {} if view.end is None else view.end.lr
    for optimizer, rates in lr.items():
        for number, rate in enumerate(rates):
            group = f" group {number}" if len(rates) > 1 else ""
            found[f"{labels.get(optimizer, optimizer)}{group}.lr"] = rate
    for optimizer, settings in state.settings.items():
        for (group, name), value in settings.items():
            found[f"{labels[optimizer]}{group}.{name}"] = value
    found.update(_of_calls(view))
    return found


def _labels(state: RunState) -> dict[str, str]:
    """The names of optimizers: their class, with their id where several have it."""
    classes = {owner: settings["", "class"] for owner, settings in state.settings.items()}
    counts = Counter(classes.values())
    return {
        owner: name if counts[name] == 1 else f"{name} {owner}" for owner, name in classes.items()
    }


def _of_calls(view: StepView) -> Iterator[tuple[str, Any]]:
    """The settings that are arguments of calls: limits of clipping, numbers of schedulers."""
    seen: Counter[str] = Counter()
    for call in view.calls:
        if call.family not in _CLIPPING and call.api not in _CLIPPING:
            if call.family != Families.SCHEDULER_CREATED:
                continue
            short = call.api.removesuffix(".__init__").rpartition(".")[2]
        else:
            short = call.api.rpartition(".")[2]
        seen[short] += 1
        number = f" {seen[short]}" if seen[short] > 1 else ""
        arguments = msgspec.json.decode(call.args)
        if not isinstance(arguments, dict):
            continue
        for name, value in arguments.items():
            if name not in _UNTOLD and not is_tensor(value) and not isinstance(value, (dict, list)):
                yield f"{short}{number}.{name}", value
