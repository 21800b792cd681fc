"""Turn what the comparison of each rank found into one difference."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from traincheck.diff.causes.registry import explain
from traincheck.diff.difference import (
    Difference,
    EnvironmentEntry,
    FirstDifference,
    PhaseCount,
    Resume,
)
from traincheck.diff.evidence import Evidence
from traincheck.diff.items import Item
from traincheck.diff.messages import message_of, texts_of
from traincheck.diff.phases import PHASES, Phase
from traincheck.diff.run_facts import Run
from traincheck.diff.tally import Tally


def conclude(
    a: Run,
    b: Run,
    found: Sequence[tuple[int, Tally]],
    resume: Resume | None,
    environment: tuple[EnvironmentEntry, ...],
    words: str,
    notes: Sequence[str],
    labels: tuple[str, str] = ("", ""),
) -> Difference:
    """One difference of what each rank had: the earliest step, then phase, then rank."""
    compared: Counter[Phase] = Counter()
    unknown: Counter[Phase] = Counter()
    said = list(notes)
    for _, tally in found:
        compared += tally.compared
        unknown += tally.unknown
        said += [note for note in tally.notes if note not in said]
    broken = [
        (tally.begun or tally.first.step, rank, tally, tally.first, tally.evidence)
        for rank, tally in found
        if tally.first is not None and tally.evidence is not None
    ]
    common = {
        "a": str(a.path),
        "b": str(b.path),
        "environment": environment,
        "resume": resume,
        "compared": compared,
        "unknown": unknown,
        "closeness": words,
        "notes": tuple(said),
        "labels": labels,
        "steps": max((tally.steps for _, tally in found), default=0),
    }
    if not broken:
        programs = next((tally.programs for _, tally in found if tally.programs), None)
        changes = tuple(programs.changes()) if programs else ()
        unused = [_unused(e.item for e in tally.latent.values()) for _, tally in found[:1]]
        common["environment"] = (*environment, *itertools.chain(*unused))
        return Difference(first=None, changes=changes, **common)  # type: ignore[arg-type]
    step, rank, tally, result, evidence = min(
        broken, key=lambda one: (one[0][0], one[-1].item.position, one[1])
    )
    common["environment"] = (*environment, *_unused(evidence.latent))
    cause, candidates = explain(evidence)
    differing = Counter(item.phase for item in result.items)
    return Difference(
        first=_first(evidence, step, rank),
        cause=cause,
        candidates=candidates,
        changes=tuple(evidence.nearest()),
        phases=tuple(
            PhaseCount(
                phase=phase,
                differing=differing[phase],
                compared=max(result.compared[phase], differing[phase]),
                unknown=result.unknown[phase],
            )
            for phase in PHASES
            if result.compared[phase] or differing[phase] or result.unknown[phase]
        ),
        then=tuple(item for item in result.items if item is not evidence.item),
        after=tally.after,
        alike_after=tally.alike_after,
        growth=tally.growth,
        **common,  # type: ignore[arg-type]
    )


def _unused(latent: Iterable[Item]) -> Iterator[EnvironmentEntry]:
    """Generators in another state that nothing draws from, and settings without an effect."""
    for item in latent:
        yield EnvironmentEntry(f"unused {item.name}", *texts_of(item))


def _first(evidence: Evidence, step: tuple[int, int], rank: int) -> FirstDifference:
    """The first difference in words."""
    item = evidence.item
    a, b = texts_of(item)
    return FirstDifference(
        step=step[0],
        step_b=step[1],
        phase=item.phase,
        rank=rank,
        name=item.name,
        message=message_of(item),
        a=a,
        b=b,
        is_opening=item.is_opening,
        size=item.size,
        where=item.where,
        item=item,
    )
