"""Fold violations into findings: one fault, one finding, headed by what causes it.

Decides nothing about checks.

Violations are counted as they come, in memory bounded by the number of checks and names, and folded
at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from traincheck.check.best_effort import Decorating
from traincheck.check.context.violation_context import Witness, is_near
from traincheck.check.grouping.root_causes import Fault, Tally, fold, in_order
from traincheck.check.wording.sentences import Filler, beside, message, since, with_all_names
from traincheck.check.wording.symptom_messages import WORDING
from traincheck.schema.events import Event
from traincheck.schema.findings import (
    SEVERITIES,
    Acceptance,
    Also,
    CheckInfo,
    Finding,
    Subject,
    Symptom,
    Violation,
)
from traincheck.schema.places import where

_SHOWN_EVENTS = 6
# What is asked of each step anew, so that one step may lack it and the next have it.
_OF_A_STEP = frozenset(
    {
        Symptom.EVAL_MODE,
        Symptom.EXTRA_CALL,
        Symptom.MISSING_CALL,
        Symptom.MISSING_STEP,
        Symptom.NO_BACKWARD,
    }
)

Accept = Callable[[Violation, CheckInfo], Acceptance | None]


class FindingBook:
    """Takes violations as they come and gives findings.

    Args:
        infos: what is to be said about each check, by its id.
        accept: says which violations are not to be reported, and why.
        witness: has seen what the run did.
        decorate: makes what is added to a finding.
    """

    def __init__(
        self,
        infos: Mapping[str, CheckInfo],
        accept: Accept | None = None,
        witness: Witness | None = None,
        decorate: Decorating | None = None,
    ) -> None:
        self._infos = infos
        self._accept = accept
        self._witness = witness or Witness(())
        self._decorate = decorate or Decorating()
        self._tallies: dict[tuple[str, Symptom, Subject, Acceptance | None], Tally] = {}

    def add(self, violation: Violation) -> bool:
        """Count a violation. Whether it is news: the first of its check about its subject."""
        accept, info = self._accept, self._infos[violation.check_id]
        accepted = None
        if accept is not None:
            accepted = self._decorate(
                f"looking for who accepted {info.code}", lambda: accept(violation, info), _nothing
            )
        key = (violation.check_id, violation.symptom, violation.subject, accepted)
        tally = self._tallies.get(key)
        if tally is not None:
            tally.add(violation)
            return False
        self._tallies[key] = Tally.of(violation, accepted)
        return accepted is None

    def withdraw(self, violation: Violation) -> int:
        """Drop what was counted of a check about a subject; how many violations that were."""
        named = (violation.check_id, violation.symptom, violation.subject)
        keys = [key for key in self._tallies if key[:3] == named]
        return sum(self._tallies.pop(key).count for key in keys)

    def findings(self, steps: int = 0) -> list[Finding]:
        """Findings of a run of so many steps.

        Earliest first, then the one that explains most others, severity, id. Advice comes last.
        Those that were accepted are among them.
        """
        tallies = [(check_id, tally) for (check_id, *_), tally in self._tallies.items()]
        faults = self._decorate(
            "grouping findings by cause",
            lambda: fold(tallies, self._infos),
            lambda: [_alone(check_id, tally) for check_id, tally in tallies],
        )
        return sorted((self._finding(fault, steps) for fault in faults), key=_importance)

    def _finding(self, fault: Fault, steps: int) -> Finding:
        witness, decorate, infos = self._witness, self._decorate, self._infos
        info = infos[fault.check_id]
        found = decorate(
            f"the wording of {info.code}",
            lambda: _finding(fault, info, witness.near(fault.check_id)),
            lambda: _bare(fault, info),
        )
        sides, rows = decorate(
            f"the comparison for {info.code}",
            lambda: witness.of_ranks(fault) or (found.sides, witness.beside(fault, steps)),
            lambda: (found.sides, ()),
        )
        also = decorate(
            f"the list of what {info.code} explains", lambda: _also(fault, infos), lambda: ()
        )
        return replace(found, severity=_severity(fault, infos), also=also, beside=rows, sides=sides)


def _nothing() -> None:
    """In place of an addition that failed."""


def _alone(check_id: str, tally: Tally) -> Fault:
    """A fault of one tally, where they could not be grouped."""
    fault = Fault(check_id, tally.first.symptom, [tally])
    fault.variables.update(name for name in [tally.first.subject.variable] if name is not None)
    return fault


def _bare(fault: Fault, info: CheckInfo) -> Finding:
    """A finding in the words of its violation alone."""
    head = fault.head
    step = min(tally.first_step for tally in fault.everything)
    return Finding(
        id=fingerprint(fault.check_id, head.subject),
        check=fault.check_id,
        kind=info.kind,
        code=info.code,
        severity=info.severity,
        title=head.title or info.title or info.headline,
        message=head.message,
        step=_shown_step(step),
        first_step=_shown_step(step),
        last_step=_shown_step(fault.last_step),
        rank=head.rank,
        stage=head.stage,
        violations=sum(tally.count for tally in fault.everything),
        steps=fault.steps,
        subject=head.subject,
        expected=head.expected,
        observed=head.observed,
        topic=head.topic,
        variables=tuple(fault.variables),
        likely_cause=head.likely_cause or info.likely_cause,
        fix=head.fix or info.fix,
        accepted=fault.accepted,
        provisional=head.provisional,
    )


def _severity(fault: Fault, infos: Mapping[str, CheckInfo]) -> str:
    """What is folded is to fail what it would have failed by itself, unless it may be meant."""
    highest = max(SEVERITIES.index(infos[one.first.check_id].severity) for one in fault.everything)
    return SEVERITIES[min(highest, SEVERITIES.index(WORDING[fault.symptom].at_most))]


def _also(fault: Fault, infos: Mapping[str, CheckInfo]) -> tuple[Also, ...]:
    """What else the fault broke, each check once, in order of what came first."""
    found: dict[str, list[Tally]] = {}
    for check_id, _, tally in fault.explained:
        if check_id != fault.check_id:
            found.setdefault(check_id, []).append(tally)
    ordered = sorted(found.items(), key=lambda one: (min(t.key for t in one[1]), one[0]))
    return tuple(_also_broke(infos[check_id], tallies) for check_id, tallies in ordered)


def _also_broke(info: CheckInfo, tallies: Sequence[Tally]) -> Also:
    first, names = tallies[0], {tally.first.subject.variable for tally in tallies}
    variables = sorted(name for name in names if name is not None)
    step = min(tally.first_step for tally in tallies)
    fill = Filler(variables, first.first, first.first.subject, step, since(step), None)
    return Also(
        check=info.check_id,
        kind=info.kind,
        code=info.code,
        text=fill(_general(first.first, info)[0], 3) if info.kind == "rule" else info.title,
        first_step=_shown_step(step),
        violations=sum(tally.count for tally in tallies),
        subjects=tuple(sorted({_named(tally.first.subject) for tally in tallies} - {""})),
    )


def _named(subject: Subject) -> str:
    return subject.variable or subject.module or subject.api or ""


def _finding(fault: Fault, info: CheckInfo, near: Sequence[Event]) -> Finding:
    head = fault.head
    words = WORDING[fault.symptom]
    evidence = sorted([*head.evidence, *near], key=lambda event: not is_near(event, words.near))
    variables = tuple(sorted(fault.variables, key=in_order))
    first_step = min(tally.first_step for tally in fault.everything)
    explains = {check_id for check_id, _, _ in fault.explained} - {fault.check_id}
    subject = replace(head.subject, variable=variables[0]) if variables else head.subject
    is_once = info.kind == "invariant" and fault.symptom in _OF_A_STEP
    at = since(first_step, is_once=is_once and fault.last_step == first_step)
    fill = Filler(variables, head, subject, first_step, at, where(evidence))
    more = beside(fault)
    title, fix = _general(head, info)
    title = head.title or (info.kind == "rule" and title) or info.headline or words.title
    return Finding(
        id=fingerprint(fault.check_id, subject),
        check=fault.check_id,
        kind=info.kind,
        code=info.code,
        severity=info.severity,
        title=fill(title, 3),
        message=message(head, info, variables, at) + more,
        step=_shown_step(first_step),
        first_step=_shown_step(first_step),
        last_step=_shown_step(fault.last_step),
        rank=head.rank,
        stage=head.stage,
        violations=sum(tally.count for tally in fault.everything),
        steps=fault.steps,
        subject=subject,
        expected=with_all_names(head.expected, head, variables),
        observed=head.observed,
        topic=head.topic,
        evidence=tuple(evidence[:_SHOWN_EVENTS]),
        likely_cause=fill(head.likely_cause or info.likely_cause or words.likely_cause, 3) + more,
        fix=fill(head.fix or fix or words.fix, 3),
        variables=variables,
        explains=tuple(sorted(explains)),
        accepted=fault.accepted,
        provisional=head.provisional,
    )


def _general(head: Violation, info: CheckInfo) -> tuple[str, str]:
    """Title and fix that a check has for its violations: they name one of several optimizers."""
    if not head.optimizer:
        return info.title, info.fix
    return info.title_of_several or info.title, info.fix_of_several or info.fix


def _importance(finding: Finding) -> tuple[bool, int, int, int, str]:
    return (
        finding.severity == SEVERITIES[0],  # advice explains no fault, however early it is known
        -1 if finding.first_step is None else finding.first_step,
        -len(finding.explains),
        -SEVERITIES.index(finding.severity),
        finding.id,
    )


def fingerprint(check_id: str, subject: Subject) -> str:
    """What a finding of a check about a subject is known by, the same in every run."""
    parts = (check_id, subject.api or "", subject.variable or "", subject.module or "")
    text = "|".join(parts)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _shown_step(step: int) -> int | None:
    return None if step < 0 else step
