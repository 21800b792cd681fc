"""The findings of the comparison, step by step, and the one difference that they are in the end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from traincheck.diff.causes.registry import explain
from traincheck.diff.causes.rules import PLAIN, broken_rule
from traincheck.diff.compare import StepResult
from traincheck.diff.difference import (
    Difference,
    EnvironmentEntry,
    FirstDifference,
    PhaseCount,
    Resume,
)
from traincheck.diff.evidence import Evidence
from traincheck.diff.generators import draws_from
from traincheck.diff.items import PHASES, Item, Key, Phase
from traincheck.diff.messages import A, B, Told, message_of, texts_of
from traincheck.diff.run_facts import Programs, Run

_MOST_NOTES = 5
_MOST_LATENT = 100
# What a setting of the optimizer or of clipping acts on, in the step in which it is in force.
_SET = (Phase.OPTIMIZER_STATE, Phase.PARAMETER)


@dataclass(slots=True)
class Tally:
    """The findings of the comparison of one pair of ranks so far.

    Attributes:
        compared, unknown: by phase, how many values were compared, and how many could not be.
        steps: that were compared. after: of these, how many come after the first difference.
        growth: relative difference of the loss by step.
        first: the step of the first difference; what differs in it.
        latent: generators in another state, and other settings, on which nothing depends so far.
        begun: the steps of A and B with the first difference, if it was latent until ``first``.
        programs: the source files of both runs.
    """

    compared: Counter[Phase] = field(default_factory=Counter)
    unknown: Counter[Phase] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    steps: int = 0
    after: int = 0
    alike_after: int = 0
    growth: dict[int, float] = field(default_factory=dict)
    first: StepResult | None = None
    evidence: Evidence | None = None
    latent: dict[Key, Evidence] = field(default_factory=dict)
    begun: tuple[int, int] | None = None
    programs: Programs | None = None

    def add(self, result: StepResult) -> None:
        """Count one step; its items are those that count."""
        self.steps += not result.is_tail
        self.compared += result.compared
        self.unknown += result.unknown
        for note in result.notes:
            if note not in self.notes and len(self.notes) < _MOST_NOTES:
                self.notes.append(note)
        if self.first is None:
            if not result.items:
                self._drop_level(result)
            return
        self.after += not result.is_tail
        self.alike_after += not (result.items or result.is_tail)

    def found(self, result: StepResult, evidence: Evidence) -> None:
        """Take in the first step in which something differs.

        A generator in another state, or another setting, is latent alone: it becomes the first
        difference when a value that depends on it differs.
        """
        latent = [item for item in result.items if is_latent(item)]
        others = [item for item in result.items if not is_latent(item)]
        for item in latent:
            if len(self.latent) < _MOST_LATENT:
                self.latent.setdefault(item.key, replace(evidence, item=item, items=latent))
        if not others:
            self._drop_level(result)
            return
        self.first = result
        evidence = replace(evidence, item=others[0], items=[*latent, *others])
        cause = self._used(evidence)
        evidence.latent = [one.item for one in self.latent.values() if one is not cause]
        if cause is None:
            self.evidence = evidence
            return
        self.evidence = replace(
            cause, items=[cause.item, *evidence.items], latent=evidence.latent, then=others[0]
        )
        self.begun = (cause.a.view.number, cause.b.view.number)

    def note_growth(self, result: StepResult) -> None:
        """The relative difference of the loss, at steps 0, 1, 10, 100 and so on after the first."""
        losses = [
            item
            for item in result.items
            if item.phase is Phase.LOSS and not (item.note or item.argument)
        ]
        sizes = [gap.relative for item in losses for gap in item.gaps]
        if sizes and self.after in (0, 1, 10, 100, 1000):
            self.growth[result.step[0]] = max(sizes)

    def _drop_level(self, result: StepResult) -> None:
        """Forget generators that are in the same state again, and settings that are the same."""
        names = {item.name for item in result.items if item.phase is Phase.SETTINGS}
        for key in list(self.latent):
            phase, name = key
            is_same = name in result.level if phase is Phase.RNG else name not in names
            if is_same and not result.is_tail:
                del self.latent[key]

    def _used(self, evidence: Evidence) -> Evidence | None:
        """The latent difference that the first other one comes from; None if it is itself first."""
        item = evidence.item
        clips = item.phase is Phase.GRADIENT
        # A setting may act on this: an update, or gradients that were clipped.
        if clips or (item.phase in _SET and not item.is_opening):
            now = evidence.a.view.number
            settings = [
                one
                for one in self.latent.values()
                if one.item.phase is Phase.SETTINGS and (not clips or "clip" in one.item.name)
            ]
            settings.sort(key=lambda one: one.a.view.number != now)  # the newest explains most
            if settings:
                return settings[0]
        for one in self.latent.values():
            if one.item.phase is Phase.RNG and draws_from(one.item, evidence):
                return one
        return None

    def end(self) -> None:
        """All steps are compared: settings that stayed latent are a note."""
        if self.first is not None:
            return
        for one in self.latent.values():
            if one.item.phase is Phase.SETTINGS and len(self.notes) < _MOST_NOTES:
                self.notes.append(
                    f"{one.item.name} is {one.item.a} in {A} and {one.item.b} in {B} from step "
                    f"{one.a.view.number} on, and no compared value depends on it"
                )


def is_latent(item: Item) -> bool:
    """Whether a difference is none as long as no value depends on it."""
    return item.phase in (Phase.SETTINGS, Phase.RNG)


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
        "notes": tuple(map(Told, said)),
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
    if cause is None or cause.code in PLAIN:
        by_rule = broken_rule(a, b, evidence)
        cause, candidates = (cause, candidates) if by_rule is None else (by_rule, ())
    item = evidence.item
    differing = Counter(one.phase for one in result.items)
    return Difference(
        first=FirstDifference(
            step=step[0],
            step_b=step[1],
            phase=item.phase,
            rank=rank,
            name=item.name,
            message=Told(message_of(item)),
            a=texts_of(item)[0],
            b=texts_of(item)[1],
            is_opening=item.is_opening,
            size=item.size,
            where=item.where,
            item=item,
        ),
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
        then=tuple(one for one in result.items if one is not item),
        after=tally.after,
        alike_after=tally.alike_after,
        growth=tally.growth,
        **common,  # type: ignore[arg-type]
    )


def _unused(latent: Iterable[Item]) -> Iterator[EnvironmentEntry]:
    """Generators in another state that nothing draws from, and settings without an effect."""
    for item in latent:
        yield EnvironmentEntry(f"unused {item.name}", *texts_of(item))
