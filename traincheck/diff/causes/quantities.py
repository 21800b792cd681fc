"""The quantities that a cause says are the same, or differ: each is read in one place.

A reading is True if the quantity is the same in both runs, False if it differs, and None if the
traces do not show it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import msgspec

from traincheck.diff.environment import arithmetic
from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.items import Item, Phase
from traincheck.diff.messages import A, B
from traincheck.diff.steps import CallRecord
from traincheck.schema.events import BatchEvent, CheckpointEvent, CollectiveEvent
from traincheck.schema.observations.processes import ProcessFacts
from traincheck.schema.torch_api import Families

_CLIPS = (Families.CLIP_NORM, Families.CLIP_VALUE)
_SEQUENTIAL = "torch.nn.modules.container.Sequential"
# Their results depend on inputs and parameters alone, and on the arithmetic.
_PLAIN = frozenset(
    f"torch.nn.modules.{name}.forward"
    for name in ("linear.Linear", "linear.Bilinear", "sparse.Embedding", "activation.ReLU")
)
_SETTINGS_FILES = frozenset(
    {".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".conf", ".py", ".txt"}
)
_SMALL, _SMALL_LOSS = 1e-3, 1e-5  # relative: larger differences are no rounding


def fingerprint(value: Any) -> str | None:
    """The fingerprint of a recorded tensor; None if it has none."""
    found = value.get("fingerprint") if isinstance(value, dict) else None
    return found if isinstance(found, str) else None


def norm(value: Any) -> float | None:
    """The L2 norm of a recorded tensor; None if it has none."""
    stats = value.get("stats") if isinstance(value, dict) else None
    found = stats.get("norm") if isinstance(stats, dict) else None
    return float(found) if isinstance(found, (int, float)) else None


def arguments(command: str) -> list[str]:
    """The words of a command line but for the first script."""
    words = command.split()
    script = next((n for n, word in enumerate(words) if word.endswith(".py")), None)
    return words if script is None else [*words[:script], *words[script + 1 :]]


def is_same_command(a: Sequence[str], b: Sequence[str], *, reads_files: bool) -> bool:
    """Whether two command lines ask for the same.

    If what differs comes from no file, folders and files that hold no settings count as equal: they
    are where a program reads its data and writes its results.
    """
    if len(a) != len(b) or reads_files:
        return list(a) == list(b)
    return all(x == y or (_is_place(x) and _is_place(y)) for x, y in zip(a, b, strict=True))


def _is_place(word: str) -> bool:
    _, sign, value = word.rpartition("=")
    path = value if sign else word
    return "/" in path and PurePath(path).suffix not in _SETTINGS_FILES


def calls_of(side: Side, *families: str) -> list[CallRecord]:
    """The calls of some API families in the step."""
    return [call for call in side.view.calls if call.family in families or call.api in families]


def clears(side: Side) -> int:
    """How often gradients were cleared since the last update before this step's."""
    calls = [*(side.last.calls if side.last is not None else ()), *side.view.calls]
    updates = [n for n, call in enumerate(calls) if call.family == Families.OPTIMIZER_STEP]
    end = updates[-1] if updates else len(calls)
    start = updates[-2] if len(updates) > 1 else 0
    return sum(call.family == Families.ZERO_GRAD for call in calls[start:end])


def reductions(collectives: Sequence[CollectiveEvent]) -> int:
    """How many collectives reduce something over the ranks."""
    return sum(event.op.startswith(("all_", "reduce")) for event in collectives)


def flags(side: Side) -> Mapping[str, object]:
    """The flags that choose how the first optimizer computes an update."""
    events = side.facts.optimizers
    if not events or not events[-1].groups:
        return {}
    hyper = events[-1].groups[0].hyper
    names = ("fused", "foreach", "capturable", "differentiable")
    return {name: hyper.get(name) for name in names if hyper.get(name) is not None}


def orders(side: Side) -> list[list[str]]:
    """The names of the parameters in each group of the first optimizer."""
    events = side.facts.optimizers
    return [list(group.params) for group in events[-1].groups] if events else []


def is_scheduler_load(load: CheckpointEvent) -> bool:
    """Whether a load is that of the state of a scheduler."""
    return load.op == "load_state_dict" and "lr_scheduler" in (load.target or "")


def elsewhere(evidence: Evidence, value: Any, name: str) -> str:
    """Where run A has this value under another name or in another step; "" if nowhere."""
    if evidence.is_ranks:
        return ""
    places = [
        place
        for place in evidence.a.lookup.of_value(fingerprint(value))
        if place.kind == "state" and (place.name, place.step) != (name, evidence.a.view.number)
    ]
    if not places:
        return ""
    place = next((p for p in places if p.name != name), places[-1])
    when = "before training" if place.record.get("g") == "init" else f"after step {place.step}"
    return f"{B}'s value is that of {place.name} in {A} {when}"


def _code(evidence: Evidence) -> bool | None:
    """Equal only if both runs keep copies of all files that ran."""
    if evidence.changes:
        return False
    is_whole = all(side.program.is_whole for side in (evidence.a, evidence.b))
    return True if evidence.has_sources and is_whole else None


def _command(evidence: Evidence) -> bool | None:
    """The arguments. The scripts are compared as code, under whatever name."""
    entry, item = evidence.named("command"), evidence.then or evidence.item
    reads_files = item.phase is Phase.BATCH or item.is_opening
    return entry is None or is_same_command(
        arguments(entry.a), arguments(entry.b), reads_files=reads_files
    )


def _has_facts(evidence: Evidence) -> bool | None:
    """True if both processes recorded facts about themselves; else what differs is not known."""
    is_known = all(
        any(mark.text == ProcessFacts.text for mark in (*side.facts.marks, *side.view.marks))
        for side in (evidence.a, evidence.b)
    )
    return True if is_known else None


def _generators(evidence: Evidence) -> bool | None:
    """Equal: of those that the part draws from, as the first difference is not one of them."""
    known = [
        any(event.moment for event in (*side.view.generators, *side.view.after_batch))
        for side in (evidence.a, evidence.b)
    ]
    return True if all(known) and not _latent(evidence, Phase.RNG) else None


def _latent(evidence: Evidence, phase: Phase) -> list[Item]:
    return [item for item in evidence.latent if item.phase is phase]


def _rounding(evidence: Evidence) -> bool | None:
    """Whether values are the same but for rounding: by their numbers, or by the loss after them."""
    item = evidence.item
    if item.what not in ("bits", "numbers", "value"):
        return False
    if item.size is not None:
        return item.size <= _SMALL
    is_plain = isinstance(item.call, CallRecord) and item.call.api in _PLAIN
    if is_plain and _inputs(evidence):
        return True
    losses = [one for one in evidence.of(Phase.LOSS) if one is not item]
    if not evidence.compared[Phase.LOSS] or any(one.size is None for one in losses):
        return None
    return True if all((one.size or 0.0) <= _SMALL_LOSS for one in losses) else None


def _phase(*phases: Phase) -> Callable[[Evidence], bool | None]:
    def read(evidence: Evidence) -> bool | None:
        if any(item.phase in phases for item in evidence.items if item is not evidence.item):
            return False
        is_known = any(evidence.compared[phase] for phase in phases)
        return True if is_known and not any(evidence.unknown[one] for one in phases) else None

    return read


def _state_at_loading(evidence: Evidence) -> bool | None:
    """Whether generators are in the same states before the batch is loaded, or after its step."""
    for moment in ("generators", "closing"):
        mine, yours = (
            {e.source: e.fingerprint for e in getattr(side.view, moment) if e.fingerprint}
            for side in (evidence.a, evidence.b)
        )
        known = mine.keys() & yours.keys()
        if known:
            return all(mine[name] == yours[name] for name in known)
    return None


def _inputs(evidence: Evidence) -> bool | None:
    """Whether the part that differs is given the same, as all before it is the same.

    No code of the user stands between the modules of a Sequential.
    """
    item, call = evidence.item, evidence.item.call
    if item.phase is Phase.GRADIENT:
        return _phase(Phase.LOSS)(evidence)
    if not isinstance(call, CallRecord):
        return None
    parent = next((one for one in evidence.a.view.calls if one.span == call.parent), None)
    if parent is not None and parent.api.startswith(_SEQUENTIAL):
        return True
    return True if _code(evidence) and _command(evidence) else None


def _alike(
    read: Callable[[Side], Any], *, is_known: Callable[[Any], bool] = lambda found: True
) -> Callable[[Evidence], bool | None]:
    """Whether both sides give the same; None if one of them is not known."""

    def same(evidence: Evidence) -> bool | None:
        a, b = read(evidence.a), read(evidence.b)
        return a == b if is_known(a) and is_known(b) else None

    return same


def _initializations(side: Side) -> list[tuple[str, object]]:
    found = []
    for call in side.view.inits:
        arguments = msgspec.json.decode(call.args)
        tensor = arguments.get("tensor") if isinstance(arguments, dict) else None
        found.append((call.api, tensor.get("shape") if isinstance(tensor, dict) else None))
    return found


# Reading by name. Names are phrases, as they stand in "not known: whether ... is the same".
QUANTITIES: Mapping[str, Callable[[Evidence], bool | None]] = {
    "the code": _code,
    "the command": _command,
    "the versions of libraries": lambda evidence: (
        _has_facts(evidence)
        and not any(entry.name.startswith("versions.") for entry in evidence.environment)
    ),
    "the arithmetic": lambda evidence: (
        not arithmetic(evidence.environment) and _has_facts(evidence)
    ),
    "the settings": lambda evidence: not _latent(evidence, Phase.SETTINGS),
    "the random numbers": _generators,
    "the batch": _phase(Phase.BATCH),
    "the number of workers": lambda evidence: (
        evidence.item.a.workers == evidence.item.b.workers
        if isinstance(evidence.item.a, BatchEvent) and isinstance(evidence.item.b, BatchEvent)
        else None
    ),
    "the generators at loading": _state_at_loading,
    "autocast": _alike(lambda side: {call.autocast for call in side.view.calls if call.root}),
    "the inputs": _inputs,
    "the forward pass": _phase(Phase.FORWARD),
    "the loss": _phase(Phase.LOSS),
    "the gradients": _phase(Phase.GRADIENT),
    "all but rounding": _rounding,
    "clearing of gradients": _alike(lambda side: clears(side) > 0),
    "clipping": _alike(lambda side: bool(calls_of(side, *_CLIPS))),
    "reduction over ranks": _alike(lambda side: reductions(side.view.collectives) > 0),
    # Else the steps are made of other passes, and what they call is not comparable.
    "the number of backward passes": _alike(lambda side: len(calls_of(side, Families.BACKWARD))),
    "the number of updates": _alike(lambda side: bool(calls_of(side, Families.OPTIMIZER_STEP))),
    "the kind of update": _alike(flags),
    # Whether B loads the state of its optimizer, and of a scheduler, where A steps one.
    "the load of the optimizer": lambda evidence: any(
        load.owner and not is_scheduler_load(load) for load in evidence.b.facts.loads
    ),
    "the load of the scheduler": lambda evidence: any(
        map(is_scheduler_load, evidence.b.facts.loads)
    ),
    "the initialization": _alike(_initializations),
    "the order of the parameters": _alike(orders, is_known=bool),
    "the set of the parameters": _alike(
        lambda side: [sorted(group) for group in orders(side)], is_known=bool
    ),
}
# The names that are followed by "are", not "is".
PLURAL = frozenset(
    {
        "the versions of libraries", "the settings", "the random numbers", "the inputs",
        "the random numbers it draws", "the generators at loading", "the gradients",
    }
)  # fmt: skip
