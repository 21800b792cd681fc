"""Which violations are one fault. Groups what was counted, by cause; words are finding_builder.py's."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.check.grouping.causes import EXPLAINS, RANK, Effect, base_name
from traincheck.check.grouping.invariant_effects import DIFFERENCES
from traincheck.schema.findings import SEVERITIES, Acceptance, CheckInfo, Symptom, Violation

_LOADER = re.compile(r"loader(\d+)\b")
_DEEPEST = 1 << 10  # parts of a path
_APART = frozenset({Symptom.WARNED, Symptom.LOSS_INPUT})  # each API of these is a fault of its own


@dataclass(slots=True)
class Tally:
    """All violations of one check about one subject. first: the earliest of them.

    steps: in how many steps they were, not counting what comes late. accepted: why they are not
    reported, if they are not.
    """

    first: Violation
    first_step: int
    last_step: int
    count: int = 1
    steps: int = 1
    accepted: Acceptance | None = None

    @classmethod
    def of(cls, violation: Violation, accepted: Acceptance | None = None) -> Tally:
        """A tally of one."""
        step = step_of(violation)
        return cls(violation, step, step, accepted=accepted)

    def add(self, violation: Violation) -> None:
        """Count one more."""
        step = step_of(violation)
        self.count += 1
        self.steps += not self.first_step <= step <= self.last_step
        self.last_step = max(self.last_step, step)
        if (step, violation.rank) < (self.first_step, self.first.rank):
            self.first, self.first_step = violation, step

    @property
    def key(self) -> tuple[int, int, str, str, str]:
        """For an order that does not depend on the order of events."""
        subject = self.first.subject
        names = (subject.variable or "", subject.module or "", subject.api or "")
        return (self.first_step, self.first.rank, *names)


@dataclass(slots=True, eq=False)
class Fault:
    """What becomes one finding: tallies of one check and symptom, and those that they explain.

    variables: named by what shows the same symptom.
    """

    check_id: str
    symptom: Symptom
    tallies: list[Tally]
    explained: list[tuple[str, Symptom, Tally]] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)

    @property
    def accepted(self) -> Acceptance | None:
        """Why it is not reported, if it is not."""
        return self.tallies[0].accepted

    @property
    def head(self) -> Violation:
        """The violation that speaks for all."""
        return min(self.tallies, key=lambda tally: tally.key).first

    @property
    def everything(self) -> list[Tally]:
        """Its own tallies, and the explained."""
        return [*self.tallies, *(tally for _, _, tally in self.explained)]

    @property
    def same(self) -> list[Tally]:
        """All tallies of its own symptom."""
        return [*self.tallies, *(t for _, s, t in self.explained if s is self.symptom)]

    @property
    def last_step(self) -> int:
        """The last one in which its symptom was seen."""
        return max(tally.last_step for tally in self.same)

    @property
    def steps(self) -> int:
        """In how many steps, at least, its symptom was seen: those of one check and subject."""
        return max(tally.steps for tally in self.same)


@dataclass(slots=True, eq=False)
class _Part:
    """What shows one symptom within a fault, and explains others in turn. bases: parameters."""

    fault: Fault
    symptom: Symptom
    first: Tally
    bases: set[str] = field(default_factory=set)

    def take(self, tally: Tally) -> None:
        name = tally.first.subject.variable
        if name is not None:
            self.bases.add(base_name(name))
            if self.symptom is self.fault.symptom:
                self.fault.variables.add(name)
        # Of two of one step that which came first: it explained the other.
        if (tally.first_step, tally.first.rank) < (self.first.first_step, self.first.first.rank):
            self.first = tally

    def explains(self, tally: Tally, *, is_rule: bool) -> bool:
        links = [EXPLAINS[self.symptom].get(tally.first.symptom)]
        if not is_rule:
            links.append(DIFFERENCES.get(self.symptom, {}).get(tally.first.symptom))
        lag = tally.first_step - self.first.first_step
        # An effect may show one step before its cause can be named, never earlier.
        if lag < -1 or self._is_apart(tally):
            return False
        violation = tally.first
        effect = Effect(
            subject=violation.subject,
            topic=violation.topic,
            cause_subject=self.first.first.subject,
            variables=self.bases,
            lag=lag,
        )
        return any(link is not None and link(effect) for link in links)

    def _is_apart(self, tally: Tally) -> bool:
        """Whether one of the two is accepted in a way that must not reach the other."""
        if self.fault.accepted is None:
            return tally.accepted is not None  # stays a finding of its own, to be counted as such
        # What was accepted of some variables says nothing about the same fault of others.
        is_same = tally.first.symptom is self.symptom
        name = base_name(tally.first.subject.variable or "")
        return tally.accepted is None and is_same and name not in self.bases


def fold(tallies: Iterable[tuple[str, Tally]], infos: Mapping[str, CheckInfo]) -> list[Fault]:
    """Group tallies by cause.

    Args:
        tallies: with the id of their check.
        infos: of the checks. The words of a rule win over those of an invariant, but for advice.
    """

    def is_rule(check_id: str) -> bool:
        return infos[check_id].kind == "rule"

    def priority(cluster: Fault) -> tuple[int, bool, bool, bool, int, int, int, str]:
        is_advice = infos[cluster.check_id].severity == SEVERITIES[0]
        rule_last = not is_rule(cluster.check_id)
        first_step = min(tally.first_step for tally in cluster.tallies)
        size = -len(cluster.tallies)
        is_accepted = cluster.accepted is not None
        rank = RANK[cluster.symptom]
        depth = _depth(cluster)
        return (rank, is_advice, rule_last, is_accepted, first_step, depth, size, cluster.check_id)

    faults: list[Fault] = []
    parts: list[_Part] = []  # by rank, as clusters come by rank: the first that explains wins
    for cluster in sorted(_clusters(tallies), key=priority):
        within: dict[int, _Part] = {}
        left = []
        found_by_rule = is_rule(cluster.check_id)
        for tally in cluster.tallies:
            causes = (part for part in parts if part.explains(tally, is_rule=found_by_rule))
            cause = next(causes, None)
            if cause is None:
                left.append(tally)
                continue
            cause.fault.explained.append((cluster.check_id, cluster.symptom, tally))
            _join(within, parts, cause.fault, cluster.symptom, tally)
        if left:
            fault = Fault(cluster.check_id, cluster.symptom, left)
            faults.append(fault)
            for tally in left:
                _join(within, parts, fault, cluster.symptom, tally)
        parts += [part for part in within.values() if part not in parts]
    return faults


def _depth(cluster: Fault) -> int:
    """Of calls that are too many, how far inside a model: the outermost brings the others."""
    if cluster.symptom is not Symptom.EXTRA_CALL:
        return 0
    modules = [tally.first.subject.module for tally in cluster.tallies]
    return min(_DEEPEST if module is None else module.count(".") for module in modules)


def _join(
    within: dict[int, _Part], parts: Sequence[_Part], fault: Fault, symptom: Symptom, tally: Tally
) -> None:
    """Enter a tally where its fault shows this symptom."""
    part = within.get(id(fault))
    if part is None:
        known = (p for p in parts if p.fault is fault and p.symptom is symptom)
        part = within[id(fault)] = next(known, None) or _Part(fault, symptom, tally)
    part.take(tally)


def _clusters(tallies: Iterable[tuple[str, Tally]]) -> list[Fault]:
    """Tallies of one check and symptom, apart where their steps are or who accepted them."""
    groups: dict[tuple[str, Symptom, Acceptance | None, str | None], list[Tally]]
    groups = defaultdict(list)
    for check_id, tally in tallies:
        symptom = tally.first.symptom
        api = tally.first.subject.api if symptom in _APART else None
        groups[check_id, symptom, tally.accepted, api].append(tally)
    return [
        Fault(check_id, symptom, overlapping)
        for (check_id, symptom, _, _), group in groups.items()
        for overlapping in _by_overlap(group)
    ]


def _by_overlap(tallies: Iterable[Tally]) -> list[list[Tally]]:
    """Split where nothing is violated for more than a step: what begins later is another fault.

    Not so for loaders: a line that makes one for each epoch makes the same fault in each epoch.
    """
    parts: list[list[Tally]] = []
    of_loaders: list[Tally] = []
    last = None
    for tally in sorted(tallies, key=lambda tally: tally.key):
        if of_loaders and is_loader(tally.first.subject.variable):
            of_loaders.append(tally)
            continue
        if last is None or tally.first_step > last + 1:
            parts.append([])
            last = tally.last_step
        parts[-1].append(tally)
        last = max(last, tally.last_step)
        if is_loader(tally.first.subject.variable):
            of_loaders = parts[-1]
    return parts


def is_loader(name: str | None) -> bool:
    """Whether a variable is a loader, or a part of its batches."""
    return name is not None and _LOADER.match(name) is not None


def in_order(name: str) -> tuple[str, int, str]:
    """For sorting names; loaders by their numbers."""
    match = _LOADER.match(name)
    return ("loader", int(match[1]), name) if match else (name, 0, "")


def step_of(violation: Violation) -> int:
    """The step as a number: -1 before the first."""
    return -1 if violation.step is None else violation.step
