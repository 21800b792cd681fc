"""Fold violations into findings: one fault, one finding, headed by what causes it.

Decides nothing about checks.

Violations are counted as they come, in memory bounded by the number of checks and names, and folded
at the end.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from traincheck.check.causes import EXPLAINS, RANK, WORDING, Effect, base_name
from traincheck.schema.events import Event
from traincheck.schema.findings import (
    SEVERITIES,
    CheckInfo,
    Finding,
    Subject,
    Symptom,
    Violation,
)

_SHOWN_EVENTS = 6
_SHOWN_NAMES = 8


@dataclass(slots=True)
class Tally:
    """All violations of one check about one subject. first: the earliest of them."""

    first: Violation
    first_step: int
    last_step: int
    count: int = 1

    def add(self, violation: Violation) -> None:
        step = _step(violation)
        self.count += 1
        self.last_step = max(self.last_step, step)
        if (step, violation.rank) < (self.first_step, self.first.rank):
            self.first, self.first_step = violation, step


@dataclass(slots=True)
class Cluster:
    """Tallies of one check and symptom whose steps overlap, and what they explain."""

    check_id: str
    symptom: Symptom
    tallies: list[Tally]
    explained: list[tuple[str, Symptom, Tally]] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)  # about the same fault, learned from it all
    bases: set[str] = field(default_factory=set)  # the parameters behind them

    def __post_init__(self) -> None:
        for tally in self.tallies:
            self._learn(tally)

    @property
    def head(self) -> Tally:
        return min(self.tallies, key=lambda t: (t.first_step, t.first.rank, _subject_key(t)))

    def absorb(self, other: Cluster, tally: Tally) -> None:
        """Take what this cluster explains."""
        self.explained.append((other.check_id, other.symptom, tally))
        if other.symptom is self.symptom:
            self._learn(tally)

    def _learn(self, tally: Tally) -> None:
        name = tally.first.subject.variable
        if name is not None:
            self.variables.add(name)
            self.bases.add(base_name(name))


class FindingBook:
    """Takes violations as they come and gives findings.

    Args:
        infos: what is to be said about each check, by its id.
    """

    def __init__(self, infos: Mapping[str, CheckInfo]) -> None:
        self._infos = infos
        self._tallies: dict[tuple[str, Symptom, Subject], Tally] = {}

    def add(self, violation: Violation) -> bool:
        """Count a violation. Whether it is the first of its check about its subject."""
        key = (violation.check_id, violation.symptom, violation.subject)
        tally = self._tallies.get(key)
        if tally is not None:
            tally.add(violation)
            return False
        step = _step(violation)
        self._tallies[key] = Tally(violation, step, step)
        return True

    def findings(self) -> list[Finding]:
        """Findings: earliest first, then the one that explains most others, severity, id."""
        roots = fold(self._clusters(), self._infos)
        found = [_finding(root, self._infos[root.check_id]) for root in roots]
        return sorted(found, key=_importance)

    def _clusters(self) -> list[Cluster]:
        groups: dict[tuple[str, Symptom], list[Tally]] = defaultdict(list)
        for (check_id, symptom, _), tally in self._tallies.items():
            groups[check_id, symptom].append(tally)
        clusters = []
        for (check_id, symptom), tallies in groups.items():
            for overlapping in _by_overlap(tallies):
                clusters.append(Cluster(check_id, symptom, overlapping))
        return clusters


def fold(clusters: Iterable[Cluster], infos: Mapping[str, CheckInfo]) -> list[Cluster]:
    """Move every tally that another cluster explains into it; give the clusters that remain."""

    def priority(cluster: Cluster) -> tuple[int, bool, int, int, str]:
        is_learned = infos[cluster.check_id].kind != "rule"
        size = -len(cluster.tallies)
        first_step = cluster.head.first_step
        return (RANK[cluster.symptom], is_learned, first_step, size, cluster.check_id)

    roots: list[Cluster] = []
    for cluster in sorted(clusters, key=priority):
        left = []
        for tally in cluster.tallies:
            cause = _cause_of(tally, roots)
            if cause is None:
                left.append(tally)
            else:
                cause.absorb(cluster, tally)
        if left:
            roots.append(Cluster(cluster.check_id, cluster.symptom, left))
    return roots


def _cause_of(tally: Tally, roots: Iterable[Cluster]) -> Cluster | None:
    violation = tally.first
    for root in roots:
        link = EXPLAINS[root.symptom].get(violation.symptom)
        head = root.head
        lag = tally.first_step - head.first_step
        # An effect may show one step before its cause can be named, never earlier.
        if link is None or lag < -1:
            continue
        effect = Effect(
            subject=violation.subject,
            said=f"{violation.expected} {violation.observed}",
            cause_subject=head.first.subject,
            variables=root.bases,
            lag=lag,
        )
        if link(effect):
            return root
    return None


def _by_overlap(tallies: list[Tally]) -> list[list[Tally]]:
    """Split where nothing is violated for more than a step: what begins later is another fault."""
    ordered = sorted(tallies, key=lambda tally: (tally.first_step, _subject_key(tally)))
    parts: list[list[Tally]] = []
    last = None
    for tally in ordered:
        if last is None or tally.first_step > last + 1:
            parts.append([])
            last = tally.last_step
        parts[-1].append(tally)
        last = max(last, tally.last_step)
    return parts


def _finding(root: Cluster, info: CheckInfo) -> Finding:
    everything = [*root.tallies, *(tally for _, _, tally in root.explained)]
    same = [*root.tallies, *(t for _, s, t in root.explained if s is root.symptom)]
    head = root.head.first
    variables = tuple(sorted(root.variables))
    first_step = min(tally.first_step for tally in everything)
    explains = {check_id for check_id, _, _ in root.explained} - {root.check_id}
    subject = replace(head.subject, variable=variables[0]) if variables else head.subject
    fill = Filler(variables, head, subject, first_step)
    words = WORDING[root.symptom]
    title = info.title if info.kind == "rule" and info.title else words.title
    return Finding(
        id=_identity(root.check_id, subject),
        check=root.check_id,
        kind=info.kind,
        code=info.code,
        severity=info.severity,
        title=fill(title, 3),
        message=_message(head, info, variables, _shown_step(first_step)),
        step=_shown_step(first_step),
        first_step=_shown_step(first_step),
        last_step=_shown_step(max(tally.last_step for tally in same)),
        rank=head.rank,
        stage=head.stage,
        violations=sum(tally.count for tally in everything),
        subject=subject,
        expected=_with_all(head.expected, head, variables),
        observed=head.observed,
        evidence=head.evidence[:_SHOWN_EVENTS],
        likely_cause=fill(info.likely_cause or words.likely_cause, 3),
        fix=fill(info.fix or words.fix, 3),
        variables=variables,
        explains=tuple(sorted(explains)),
    )


def _message(head: Violation, info: CheckInfo, variables: Sequence[str], step: int | None) -> str:
    """The check's own sentence, with all names where it has the first."""
    at = "before the first step" if step is None else f"from step {step} on"
    said = head.message.rstrip(".")
    names = join_names(variables, _SHOWN_NAMES)
    if info.kind == "rule":
        return f"{at[:1].upper()}{at[1:]}: {_with_all(said, head, variables)}."
    about = f" ({names})" if names else ""
    return (
        f"In every reference run: {said}. Here, {at}: {head.observed or 'it does not hold'}{about}."
    )


def _with_all(text: str, head: Violation, variables: Sequence[str]) -> str:
    """``text`` with all names in place of the one that it was written for."""
    own = head.subject.variable
    return text.replace(own, join_names(variables, _SHOWN_NAMES), 1) if own and variables else text


def join_names(names: Sequence[str], limit: int) -> str:
    """The first ``limit`` names, and how many more there are."""
    shown = ", ".join(names[:limit])
    left = len(names) - limit
    return f"{shown} and {left} more" if left > 0 else shown


class Filler:
    """Fills {variables}, {subject}, {step}, {where} and {observed} into a wording."""

    def __init__(
        self, variables: Sequence[str], head: Violation, subject: Subject, step: int
    ) -> None:
        self._variables = variables
        self._subject = subject.module or _short_api(subject.api) or subject.variable or "the model"
        self._step = "0" if step < 0 else str(step)
        place = where(head.evidence)
        self._where = f" ({place})" if place else ""
        self._observed = head.observed

    def __call__(self, text: str, limit: int) -> str:
        names = join_names(self._variables, limit) or self._subject
        # Not str.format: a wording may hold braces of its own.
        return (
            text.replace("{variables}", names)
            .replace("{subject}", self._subject)
            .replace("{step}", self._step)
            .replace("{where}", self._where)
            .replace("{observed}", self._observed)
        )


def where(evidence: Iterable[Event]) -> str | None:
    """The first source line that the evidence knows of."""
    for event in evidence:
        place = getattr(event, "where", None)
        if place:
            return str(place)
    return None


def _short_api(api: str | None) -> str | None:
    """``torch.optim.Optimizer.step`` -> ``Optimizer.step``."""
    if api is None:
        return None
    parts = api.split(".")
    return ".".join(parts[-2:]) if len(parts) > 1 and parts[-2][:1].isupper() else parts[-1]


def _importance(finding: Finding) -> tuple[int, int, int, str]:
    return (
        -1 if finding.first_step is None else finding.first_step,
        -len(finding.explains),
        -SEVERITIES.index(finding.severity),
        finding.id,
    )


def _identity(check_id: str, subject: Subject) -> str:
    parts = (check_id, subject.api or "", subject.variable or "", subject.module or "")
    text = "|".join(parts)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _subject_key(tally: Tally) -> tuple[str, str, str]:
    subject = tally.first.subject
    return (subject.variable or "", subject.module or "", subject.api or "")


def _step(violation: Violation) -> int:
    return -1 if violation.step is None else violation.step  # before the first step


def _shown_step(step: int) -> int | None:
    return None if step < 0 else step
