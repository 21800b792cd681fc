"""Differences of two runs beside their steps: machine, versions, settings, command."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from traincheck.diff.difference import EnvironmentEntry
from traincheck.diff.items import Answer, Item, Phase, compare_values
from traincheck.diff.run_facts import RankFacts, Run
from traincheck.diff.steps import SideState, StepView
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_tensor

# Facts that differ between any two runs, or between views of one.
_UNTOLD = frozenset(
    {
        "pid", "parent_pid", "rank", "instruments", "recorded", "some", "stats", "argv0", "level",
        "thread", "worker", "collected", "settings", "sums", "view", "source",
    }
)  # fmt: skip
# Facts that change the last bits of a result.
ARITHMETIC = (
    "thread", "deterministic", "determinism", "tf32", "cudnn", "capability", "precision", "torch",
    "OMP_", "MKL", "CUBLAS", "device", "benchmark", "cuda", "mkldnn", "platform", "hostname",
)  # fmt: skip


def environment_of(a: Run, b: Run, ranks: tuple[int, int]) -> tuple[EnvironmentEntry, ...]:
    """The facts of two processes that differ; equal ones are left out."""
    mine, yours = _facts(a, ranks[0]), _facts(b, ranks[1])
    return differing(mine, yours)


def with_marks(
    entries: tuple[EnvironmentEntry, ...], a: RankFacts, b: RankFacts
) -> tuple[EnvironmentEntry, ...]:
    """The same with the facts that processes recorded about themselves."""
    more = differing(_marked(a), _marked(b))
    known = {entry.name for entry in entries}
    return (*entries, *(entry for entry in more if entry.name not in known))


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[EnvironmentEntry, ...]:
    """The names whose values differ, in the order of A."""
    return tuple(
        EnvironmentEntry(name, _text(a.get(name)), _text(b.get(name)))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    )


def arithmetic(entries: tuple[EnvironmentEntry, ...]) -> list[EnvironmentEntry]:
    """The entries that may change the last bits of a computation."""
    return [
        entry for entry in entries if any(word.lower() in entry.name.lower() for word in ARITHMETIC)
    ]


def _facts(run: Run, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    manifest = run.reader.manifest
    if manifest is not None:
        found.update({k: v for k, v in manifest.created_with.items() if isinstance(v, str)})
        found.update(manifest.environment)
        if manifest.command:
            first, *others = manifest.command
            is_python = first.rpartition("/")[2].startswith("python")
            words = ["python" if is_python else first, *others]
            if cwd := manifest.cwd:  # a path below the working directory, from there
                words = ["." if word == cwd else word.removeprefix(f"{cwd}/") for word in words]
            found["command"] = shlex.join(words)
    for name, value in run.process(rank).items():
        if name not in _UNTOLD and isinstance(value, (str, int, float, bool)):
            found[name] = value
    found["ranks"] = len(run.ranks)
    return found


def _marked(facts: RankFacts) -> dict[str, Any]:
    """The facts of the mark in which a process describes itself."""
    found: dict[str, Any] = {}
    for mark in facts.marks:
        if mark.text == "process facts":
            _flatten("", mark.data, found)
            return found
    return found


def _flatten(prefix: str, data: Mapping[str, Any], found: dict[str, Any]) -> None:
    for name, value in data.items():
        if isinstance(value, Mapping):
            _flatten(f"{prefix}{name}.", value.get("dict", value), found)
        else:
            found[f"{prefix}{name}"] = value


def _text(value: Any) -> str:
    return "not set" if value is None else str(value)


FIRST = -1  # place in the causal order of a step: before everything
_CLIPPING = {Families.CLIP_NORM, Families.CLIP_VALUE, Families.FSDP_CLIP}
_NO_SETTINGS = frozenset({"parameters", "optimizer", "foreach", "self", "0", "1"})


def compare_settings(
    a: StepView, b: StepView, states: tuple[SideState, SideState]
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


def settings_of(view: StepView, state: SideState) -> dict[str, Any]:
    """All settings of a step by name, ``AdamW.lr`` first."""
    classes = {owner: settings["", "class"] for owner, settings in state.settings.items()}
    counts = Counter(classes.values())
    # The names of optimizers: their class, with their id where several have it.
    labels = {
        owner: name if counts[name] == 1 else f"{name} {owner}" for owner, name in classes.items()
    }
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
            if (
                name not in _NO_SETTINGS
                and not is_tensor(value)
                and not isinstance(value, (dict, list))
            ):
                yield f"{short}{number}.{name}", value
