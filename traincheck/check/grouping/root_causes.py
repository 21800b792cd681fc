"""Group violations by root cause."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.check.grouping.causes import EXPLAINS, RANK, Effect, base_name
from traincheck.check.grouping.invariant_effects import INVARIANT_EFFECTS
from traincheck.schema.findings import SEVERITIES, CheckInfo, Suppressed, Symptom, Violation

_LOADER = re.compile(r"loader(\d+)\b")
_MAX_DEPTH = 1 << 10  # parts of a path
_API_APART = frozenset({Symptom.WARNED, Symptom.LOSS_INPUT})  # one cause for each API


@dataclass(slots=True)
class ViolationCount:
    """All violations of one check about one subject.

    Attributes:
        first: the earliest.
        first_step: its step; -1 before the first.
        last_step: of the latest.
        violations: how many there are.
        steps: in how many steps, not counting violations that come out of order.
        suppressed: why they are not reported; None if they are.
    """

    first: Violation
    first_step: int
    last_step: int
    violations: int = 1
    steps: int = 1
    suppressed: Suppressed | None = None

    @classmethod
    def first_of(cls, violation: Violation, suppressed: Suppressed | None = None) -> ViolationCount:
        """The count of a first violation."""
        step = step_of(violation)
        return cls(violation, step, step, suppressed=suppressed)

    def add(self, violation: Violation) -> None:
        """Count a violation."""
        step = step_of(violation)
        self.violations += 1
        self.steps += not self.first_step <= step <= self.last_step
        self.last_step = max(self.last_step, step)
        if (step, violation.rank) < (self.first_step, self.first.rank):
            self.first, self.first_step = violation, step

    @property
    def key(self) -> tuple[int, int, str, str, str]:
        """Sort key that does not depend on the order of events."""
        subject = self.first.subject
        names = (subject.variable or "", subject.module or "", subject.api or "")
        return (self.first_step, self.first.rank, *names)


@dataclass(slots=True, eq=False)
class RootCause:
    """The violations that become one finding: those of a check and symptom, and their effects.

    Attributes:
        check_id: of the check that names the cause.
        symptom: of its violations.
        counts: its violations.
        explained: id of a check, symptom and violations of each effect.
        variables: named by violations with the same symptom.
    """

    check_id: str
    symptom: Symptom
    counts: list[ViolationCount]
    explained: list[tuple[str, Symptom, ViolationCount]] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)

    @property
    def suppressed(self) -> Suppressed | None:
        """Why it is not reported; None if it is."""
        return self.counts[0].suppressed

    @property
    def leading(self) -> Violation:
        """The earliest violation, whose texts the finding has."""
        return min(self.counts, key=lambda count: count.key).first

    @property
    def all_counts(self) -> list[ViolationCount]:
        """Its own violations and the explained ones."""
        return [*self.counts, *(count for _, _, count in self.explained)]

    @property
    def own_counts(self) -> list[ViolationCount]:
        """All violations with its own symptom."""
        return [*self.counts, *(t for _, s, t in self.explained if s is self.symptom)]

    @property
    def last_step(self) -> int:
        """The last step in which its symptom was seen."""
        return max(count.last_step for count in self.own_counts)

    @property
    def steps(self) -> int:
        """Lower bound of the number of steps in which its symptom was seen."""
        return max(count.steps for count in self.own_counts)


@dataclass(slots=True, eq=False)
class _SymptomGroup:
    """The violations of one symptom within a cause. They may explain others in turn."""

    cause: RootCause
    symptom: Symptom
    first: ViolationCount
    parameters: set[str] = field(default_factory=set)

    def add(self, count: ViolationCount) -> None:
        name = count.first.subject.variable
        if name is not None:
            self.parameters.add(base_name(name))
            if self.symptom is self.cause.symptom:
                self.cause.variables.add(name)
        # Of two in one step, the first that came: it explained the other.
        if (count.first_step, count.first.rank) < (self.first.first_step, self.first.first.rank):
            self.first = count

    def explains(self, count: ViolationCount, *, is_rule: bool) -> bool:
        links = [EXPLAINS[self.symptom].get(count.first.symptom)]
        if not is_rule:
            links.append(INVARIANT_EFFECTS.get(self.symptom, {}).get(count.first.symptom))
        lag = count.first_step - self.first.first_step
        # An effect may show one step before its cause can be named, never earlier.
        if lag < -1 or self._is_suppressed_apart(count):
            return False
        violation = count.first
        effect = Effect(
            subject=violation.subject,
            topic=violation.topic,
            cause_subject=self.first.first.subject,
            variables=self.parameters,
            lag=lag,
        )
        return any(link is not None and link(effect) for link in links)

    def _is_suppressed_apart(self, count: ViolationCount) -> bool:
        """Whether only one of the two is suppressed, so that they must not be grouped."""
        if self.cause.suppressed is None:
            return count.suppressed is not None  # stays a separate finding, and is counted
        # Suppressing some variables does not suppress the same symptom of others.
        is_same = count.first.symptom is self.symptom
        name = base_name(count.first.subject.variable or "")
        return count.suppressed is None and is_same and name not in self.parameters


def group_by_cause(
    counts: Iterable[tuple[str, ViolationCount]], infos: Mapping[str, CheckInfo]
) -> list[RootCause]:
    """Group violations by root cause.

    Args:
        counts: with the id of their check.
        infos: of the checks. Rules take precedence over invariants, except for advice.
    """

    def is_rule(check_id: str) -> bool:
        return infos[check_id].kind == "rule"

    def priority(candidate: RootCause) -> tuple[int, bool, bool, bool, int, int, int, str]:
        is_advice = infos[candidate.check_id].severity == SEVERITIES[0]
        rule_last = not is_rule(candidate.check_id)
        first_step = min(count.first_step for count in candidate.counts)
        size = -len(candidate.counts)
        is_suppressed = candidate.suppressed is not None
        rank = RANK[candidate.symptom]
        depth = _outermost_depth(candidate)
        id_ = candidate.check_id
        return (rank, is_advice, rule_last, is_suppressed, first_step, depth, size, id_)

    causes: list[RootCause] = []
    groups: list[_SymptomGroup] = []  # in order of rank: the first that explains wins
    for candidate in sorted(_candidates(counts), key=priority):
        entered: dict[int, _SymptomGroup] = {}
        unexplained = []
        found_by_rule = is_rule(candidate.check_id)
        for count in candidate.counts:
            explaining = (g for g in groups if g.explains(count, is_rule=found_by_rule))
            group = next(explaining, None)
            if group is None:
                unexplained.append(count)
                continue
            group.cause.explained.append((candidate.check_id, candidate.symptom, count))
            _add_to_group(entered, groups, group.cause, candidate.symptom, count)
        if unexplained:
            cause = RootCause(candidate.check_id, candidate.symptom, unexplained)
            causes.append(cause)
            for count in unexplained:
                _add_to_group(entered, groups, cause, candidate.symptom, count)
        groups += [group for group in entered.values() if group not in groups]
    return causes


def _outermost_depth(candidate: RootCause) -> int:
    """Module depth of the outermost extra call, which causes the extra calls inside it."""
    if candidate.symptom is not Symptom.EXTRA_CALL:
        return 0
    modules = [count.first.subject.module for count in candidate.counts]
    return min(_MAX_DEPTH if module is None else module.count(".") for module in modules)


def _add_to_group(
    entered: dict[int, _SymptomGroup],
    groups: Sequence[_SymptomGroup],
    cause: RootCause,
    symptom: Symptom,
    count: ViolationCount,
) -> None:
    """Add violations to the group of their cause and symptom."""
    group = entered.get(id(cause))
    if group is None:
        known = (p for p in groups if p.cause is cause and p.symptom is symptom)
        group = entered[id(cause)] = next(known, None) or _SymptomGroup(cause, symptom, count)
    group.add(count)


def _candidates(counts: Iterable[tuple[str, ViolationCount]]) -> list[RootCause]:
    """Violations of one check and symptom, split by suppression and where steps do not overlap."""
    groups: dict[tuple[str, Symptom, Suppressed | None, str | None], list[ViolationCount]]
    groups = defaultdict(list)
    for check_id, count in counts:
        symptom = count.first.symptom
        api = count.first.subject.api if symptom in _API_APART else None
        groups[check_id, symptom, count.suppressed, api].append(count)
    return [
        RootCause(check_id, symptom, overlapping)
        for (check_id, symptom, _, _), group in groups.items()
        for overlapping in _by_overlap(group)
    ]


def _by_overlap(counts: Iterable[ViolationCount]) -> list[list[ViolationCount]]:
    """Split where there is no violation for more than a step: later ones have another cause.

    Loaders are not split: a line that makes one in each epoch repeats the same bug.
    """
    groups: list[list[ViolationCount]] = []
    of_loaders: list[ViolationCount] = []
    last = None
    for count in sorted(counts, key=lambda count: count.key):
        if of_loaders and is_loader(count.first.subject.variable):
            of_loaders.append(count)
            continue
        if last is None or count.first_step > last + 1:
            groups.append([])
            last = count.last_step
        groups[-1].append(count)
        last = max(last, count.last_step)
        if is_loader(count.first.subject.variable):
            of_loaders = groups[-1]
    return groups


def is_loader(name: str | None) -> bool:
    """Whether a variable is a loader, or a part of its batches."""
    return name is not None and _LOADER.match(name) is not None


def sort_key(name: str) -> tuple[str, int, str]:
    """Sort key of a variable's name; loaders are sorted by number."""
    match = _LOADER.match(name)
    return ("loader", int(match[1]), name) if match else (name, 0, "")


def step_of(violation: Violation) -> int:
    """The step as a number; -1 before the first."""
    return -1 if violation.step is None else violation.step
