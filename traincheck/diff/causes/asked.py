"""Causes in what is asked for: settings, seeds and generators, the code, the command, versions."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from traincheck.diff.causes.quantities import arguments
from traincheck.diff.evidence import Evidence
from traincheck.diff.generators import distance, source_of
from traincheck.diff.messages import A, B, text_of
from traincheck.diff.sources import Change, Source
from traincheck.schema.events import RngEvent

_SEEDS = {
    "torch": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "python": "random.seed(0)",
}
_SHOWN = 3


def schedule_not_restored(evidence: Evidence) -> dict[str, Any] | None:
    """The learning rate of a resumed run is another, and it loads no state of a scheduler."""
    if evidence.resume is None or not evidence.item.name.endswith(".lr"):
        return None
    return {
        "text": f"the learning rate is not that of the run that goes on: {B} loads no state of a "
        "scheduler",
        "fix": "Save scheduler.state_dict() in the checkpoint, and load it.",
    }


def setting(evidence: Evidence) -> dict[str, Any] | None:
    """A setting of an optimizer, a scheduler or clipping."""
    item = evidence.item
    if item.name.endswith(".class"):
        text = f"another optimizer: {item.a} in {A}, {item.b} in {B}"
        return {"code": "optimizer-class", "text": text}
    name = item.name.rpartition(".")[2]
    lines: list[tuple[bool, str, str]] = []
    # Lines of B, else of A, that may have written it, those first that write the number of the run.
    for label, side, value in ((B, evidence.b, item.b), (A, evidence.a, item.a)):
        for source in side.program.files.values() if not lines else ():
            for line, is_literal in _stores(source, name, value):
                at = f"{source.path.rpartition('/')[2]}:{line}"
                verb = "writes" if is_literal else "may write"
                text = f"{label} {verb} it at {at}: {source.lines[line - 1].strip()}"
                lines.append((not is_literal, at, text))
    lines.sort(key=lambda one: one[0])
    return {
        "text": f"{item.name} is {text_of(item.b)} in {B} and {text_of(item.a)} in {A}",
        "details": tuple(text for _, _, text in lines[:_SHOWN]),
        "where": lines[0][1] if len(lines) == 1 else "",
    }


def _stores(source: Source, name: str, value: Any) -> Iterator[tuple[int, bool]]:
    """The lines of a file that may store a value under a key or attribute.

    The second is whether a line stores this very value.
    """
    if source.tree is None:
        return
    for node in ast.walk(source.tree):
        targets: list[ast.expr]
        if isinstance(node, ast.Assign):
            targets, given = node.targets, node.value
        elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            targets, given = [node.target], node.value
        else:
            continue
        for target in targets:
            is_key = (
                isinstance(target, ast.Subscript)
                and isinstance(target.slice, ast.Constant)
                and target.slice.value == name
            )
            is_attribute = isinstance(target, ast.Attribute) and target.attr == name
            if is_key or is_attribute:
                is_literal = _is_literal(given, value)
                if is_literal is not False:
                    yield node.lineno, bool(is_literal)


def _is_literal(node: ast.expr, value: Any) -> bool | None:
    """Whether an expression is a literal of this value; None if it is no literal."""
    try:
        found = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    return bool((list(found) if isinstance(found, tuple) else found) == value)


def seed(evidence: Evidence) -> dict[str, Any] | None:
    """A generator is given another number, or in one run only, or in none."""
    item = evidence.item
    source = source_of(item)
    if item.what == "state":
        seeds = [*evidence.a.facts.seeds, *evidence.b.facts.seeds]
        is_seeded = any(event.source == source for event in seeds)
        if not isinstance(item.a, RngEvent) or item.a.moment != "start" or is_seeded:
            return None
        return {
            "code": "not-seeded",
            "text": f"{source} is not seeded, so each process begins in another state",
            "fix": f"Seed it before the model is built: {_SEEDS.get(source, 'set its seed')}.",
        }
    if item.what == "presence":
        side = A if item.b is None else B
        text = f"{source} is seeded in {side} only, so the other run begins with any state"
    else:
        text = f"another seed: {source} gets {item.a.seed} in {A} and {item.b.seed} in {B}"
    return {"text": text, "fix": "Give both runs the same seed.", "where": item.where}


def generator_not_restored(evidence: Evidence) -> dict[str, Any] | None:
    """A resumed run draws from a generator in another state."""
    item = evidence.item
    if evidence.resume is None or item.what != "state" or not isinstance(item.a, RngEvent):
        return None
    source = source_of(item)
    ahead = _ahead(distance(source, item.a.state, item.b.state))
    return {
        "text": f"the state of the {source} generator was not restored: {ahead}",
        "fix": "Save torch.get_rng_state() (and those of NumPy, Python and CUDA) in the "
        "checkpoint and set them before the loop, or give the loader a generator and save it.",
    }


def draws(evidence: Evidence) -> dict[str, Any] | None:
    """The states of a generator differ: step one until it reaches the other."""
    item = evidence.item
    if item.what != "state" or not isinstance(item.a, RngEvent):
        return None
    source = source_of(item)
    apart = distance(source, item.a.state, item.b.state)
    if apart is None:
        return {"text": f"the {source} generator is in another state: {_ahead(apart)}"}
    a, b = len(evidence.a.view.inits), len(evidence.b.view.inits)
    inits = f"parameters are initialized by {a} calls in {A} and by {b} in {B}"
    return {
        "text": f"one run draws more random numbers before this point: {_ahead(apart)}",
        "fix": "Draw the same numbers in both runs before this point, or give the loader and the "
        "augmentation generators that nothing else uses.",
        "details": (inits,) if a != b else (),
    }


def _ahead(number: int | None) -> str:
    if number is None:
        return "neither state is reached from the other within a million draws"
    if not number:
        return "a normal number waits in one state only"
    words = f"{abs(number):,} draw" + ("" if abs(number) == 1 else "s")
    return f"{B} is {words} ahead of {A}" if number > 0 else f"{A} is {words} ahead of {B}"


def code(evidence: Evidence) -> dict[str, Any] | None:
    """The user's code differs where the first difference is made, and nothing else does."""
    changes = evidence.nearest()
    if not changes:
        return None
    first = changes[0]
    around = f" in {first.function}" if first.function else ""
    places = len(changes)
    text = f"the code differs at {first.place}{around}"
    if places > 1:
        text = f"the code differs in {places} places, the nearest at {first.place}{around}"
    return {"text": text, "where": where_of(first)}


def where_of(change: Change) -> str:
    """``file:line`` of a change, by the file of B."""
    return f"{change.path_b or change.path_a}:{change.at_b or change.at_a}"


def command(evidence: Evidence) -> dict[str, Any] | None:
    """The runs were started with other arguments, and nothing else differs."""
    entry = evidence.named("command")
    if entry is None:
        return None
    a, b = arguments(entry.a), arguments(entry.b)
    mine, yours = _without(a, b), _without(b, a)
    return {
        "text": "the runs were started with other arguments: "
        f"{' '.join(mine) or 'none'} in {A}, {' '.join(yours) or 'none'} in {B}"
    }


def _without(words: Sequence[str], others: Sequence[str]) -> list[str]:
    """The words that only one command line has; an option before a value that differs stays."""
    found: list[str] = []
    for number, word in enumerate(words):
        if word not in others:
            before = words[number - 1] if number else ""
            if before.startswith("-") and before in others and not word.startswith("-"):
                found.append(before)
            found.append(word)
    return found


def versions(evidence: Evidence) -> dict[str, Any] | None:
    """The versions of libraries differ, and nothing else does."""
    entries = [e for e in evidence.environment if e.name.startswith("versions.")]
    if not entries:
        return None
    entries.sort(key=lambda entry: entry.name != "versions.torch")
    shown = ", ".join(
        f"{e.name.removeprefix('versions.')} {e.a} in {A} and {e.b} in {B}"
        for e in entries[:_SHOWN]
    )
    more = f", and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return {"text": f"the versions of libraries differ: {shown}{more}"}
