"""Rows of a summary: the probed models, what held, and what could not be observed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments, Status
from traincheck.schema.words import counted, joined

_NAMED = 3  # models
_WORDS = {
    Experiments.REPLAY: "unchanged copies agree",
    Experiments.ROW_MIXING: "other samples do not matter",
    Experiments.BATCH_PLACE: "the place in the batch does not matter",
    Experiments.PADDING: "padding does not matter",
    Experiments.PADDING_ROW: "the padding vector does not matter",
    Experiments.EVAL_STATE: "evaluation changes no statistics",
    Experiments.IN_PLACE: "in-place activations do not matter",
    Experiments.GRADIENT: "the gradient is that of the loss",
    Experiments.LATER_TOKENS: "later tokens do not matter",
}


def probe_rows(probes: Sequence[ProbeEvent]) -> Iterator[tuple[str, str]]:
    """Label and text of each row; none if nothing was probed."""
    if not probes:
        return
    replays = [event for event in probes if event.name == Experiments.REPLAY]
    if replays:
        copies = sum(event.numbers.get("copies", 0.0) for event in replays)
        seconds = sum(event.numbers.get("cpu_s", 0.0) for event in replays)
        models = joined(list(dict.fromkeys(event.model for event in replays)), _NAMED)
        steps = len({event.step for event in replays})
        yield (
            "probed",
            f"{models} in {counted(steps, 'step')}: {copies:,.0f} copies of the process, "
            f"{seconds:.1f} s of CPU",
        )
    held = _by_model(probes, Status.HELD)
    for name, models_of in held.items():
        if name != Experiments.REPLAY:
            yield "probe held", f"{_WORDS.get(name, name)}: {joined(models_of, _NAMED)}"
    for text in dict.fromkeys(e.detail["by_design"] for e in probes if "by_design" in e.detail):
        yield "left out", f"functions whose gradient is not compared: {text}"
    unknown = [e for e in probes if e.name not in held and e.status == Status.NOT_OBSERVABLE]
    for reason, words in _by_reason(unknown).items():
        yield "not observable", f"{reason} ({joined(words, len(_WORDS))})"
    failed = _by_reason([event for event in probes if event.status == Status.FAILED])
    for reason, words in failed.items():
        yield "failed", f"a bug in traincheck: {reason} ({joined(words, _NAMED)})"
    if failed:
        yield "fix", "report it to whoever gave you this copy, with this output"


def _by_reason(probes: Sequence[ProbeEvent]) -> dict[str, list[str]]:
    """Reason -> experiments in words."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in probes:
        words = _WORDS.get(event.name, event.name)
        if words not in found[event.reason]:
            found[event.reason].append(words)
    return found


def _by_model(probes: Sequence[ProbeEvent], status: str) -> dict[str, list[str]]:
    """Experiment -> models with this result and no other."""
    moved = {(event.name, event.model) for event in probes if event.status == Status.MOVED}
    found: dict[str, list[str]] = {}
    for event in probes:
        if event.status == status and (event.name, event.model) not in moved:
            models = found.setdefault(event.name, [])
            if event.model not in models:
                models.append(event.model)
    return found
