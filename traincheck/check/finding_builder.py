"""Build findings from violations: one finding for each root cause.

Violations are counted as they come, in memory bounded by the number of checks and names. They are
grouped by cause when findings are asked for.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from traincheck.check.context.violation_context import ViolationContext, is_source_of
from traincheck.check.grouping.root_causes import (
    RootCause,
    ViolationCount,
    group_by_cause,
    sort_key,
)
from traincheck.check.wording.sentences import (
    Template,
    message,
    side_effects_text,
    since,
    with_all_names,
)
from traincheck.check.wording.symptom_messages import SYMPTOM_MESSAGES
from traincheck.rules.rarity import healthy_programs
from traincheck.schema.events import Event
from traincheck.schema.findings import (
    SEVERITIES,
    TIERS,
    Also,
    CheckInfo,
    Finding,
    Subject,
    Suppressed,
    Symptom,
    Violation,
)
from traincheck.schema.places import where

_T = TypeVar("_T")
_LONGEST = 120  # characters of an error's text
_logger = logging.getLogger(__name__)


class BestEffort:
    """Makes additions to findings, which may fail.

    Attributes:
        notes: a sentence for each addition that failed, as keys, in order.
    """

    def __init__(self) -> None:
        self.notes: dict[str, None] = {}

    def __call__(self, what: str, make: Callable[[], _T], otherwise: Callable[[], _T]) -> _T:
        """Return what ``make`` returns, or what ``otherwise`` returns when ``make`` fails.

        Args:
            what: names the addition in a note, such as ``the comments for TC201``.
            make: makes the addition.
            otherwise: returns a replacement, and must not fail.
        """
        try:
            return make()
        except Exception as error:  # RecursionError and MemoryError, too
            _logger.debug("an addition to a finding failed", exc_info=error)
            reason = f"{type(error).__name__}: {str(error)[:_LONGEST]}"
            self.notes[f"{what} failed with {reason}; it is reported without"] = None
            return otherwise()


_SHOWN_EVENTS = 6
# Checked in each step by itself: one step may violate it and the next one not.
_CHECKED_EACH_STEP = frozenset(
    {
        Symptom.EVAL_MODE,
        Symptom.EXTRA_CALL,
        Symptom.MISSING_CALL,
        Symptom.MISSING_STEP,
        Symptom.NO_BACKWARD,
    }
)

Suppress = Callable[[Violation, CheckInfo], Suppressed | None]


class FindingBuilder:
    """Counts violations as they come and builds findings.

    Args:
        infos: title, severity and texts of each check, by its id.
        suppress: returns why a violation is not to be reported; None to report it.
        context: has recorded what the run did around violations.
        best_effort: makes the additions to a finding.
    """

    def __init__(
        self,
        infos: Mapping[str, CheckInfo],
        suppress: Suppress | None = None,
        context: ViolationContext | None = None,
        best_effort: BestEffort | None = None,
    ) -> None:
        self._infos = infos
        self._suppress = suppress
        self._context = context or ViolationContext(())
        self._best_effort = best_effort or BestEffort()
        self._counts: dict[tuple[str, Symptom, Subject, Suppressed | None], ViolationCount] = {}

    def add(self, violation: Violation) -> bool:
        """Count a violation. True if it is the first of its check about its subject."""
        suppress, info = self._suppress, self._infos[violation.check_id]
        suppressed = None
        if suppress is not None:
            suppressed = self._best_effort(
                f"looking up suppressions of {info.code}",
                lambda: suppress(violation, info),
                _nothing,
            )
        key = (violation.check_id, violation.symptom, violation.subject, suppressed)
        count = self._counts.get(key)
        if count is not None:
            count.add(violation)
            return False
        self._counts[key] = ViolationCount.first_of(violation, suppressed)
        return suppressed is None

    def withdraw(self, violation: Violation) -> int:
        """Forget the violations of a check about a subject, and return their number."""
        named = (violation.check_id, violation.symptom, violation.subject)
        keys = [key for key in self._counts if key[:3] == named]
        return sum(self._counts.pop(key).violations for key in keys)

    def findings(self, steps: int = 0) -> list[Finding]:
        """All findings of a run of ``steps`` steps, the suppressed ones included.

        Sorted by tier, rarity, first step, number of findings explained, severity and id.
        """
        counts = [(check_id, count) for (check_id, *_), count in self._counts.items()]
        causes = self._best_effort(
            "grouping findings by cause",
            lambda: group_by_cause(counts, self._infos),
            lambda: [_ungrouped(check_id, count) for check_id, count in counts],
        )
        return sorted((self._finding(cause, steps) for cause in causes), key=_sort_key)

    def _finding(self, cause: RootCause, steps: int) -> Finding:
        context, best_effort, infos = self._context, self._best_effort, self._infos
        info = infos[cause.check_id]
        found = best_effort(
            f"the wording of {info.code}",
            lambda: _finding(cause, info, context.source_event(cause.check_id)),
            lambda: _plain_finding(cause, info),
        )
        compared, rows = best_effort(
            f"the comparison for {info.code}",
            lambda: context.compare_ranks(cause) or (found.compared, context.compare(cause, steps)),
            lambda: (found.compared, ()),
        )
        also = best_effort(
            f"the list of what {info.code} explains", lambda: _also(cause, infos), lambda: ()
        )
        # The highest severity of the violations, capped where the symptom may be intended.
        highest = max(SEVERITIES.index(infos[t.first.check_id].severity) for t in cause.all_counts)
        most = SEVERITIES.index(SYMPTOM_MESSAGES[cause.symptom].at_most)
        return replace(
            found,
            severity=SEVERITIES[min(highest, most)],
            also=also,
            comparison=rows,
            compared=compared,
            healthy=healthy_programs(info.code),
        )


def _nothing() -> None:
    """In place of an addition that failed."""


def _ungrouped(check_id: str, count: ViolationCount) -> RootCause:
    """A separate root cause, used when grouping failed."""
    cause = RootCause(check_id, count.first.symptom, [count])
    cause.variables.update(name for name in [count.first.subject.variable] if name is not None)
    return cause


def _plain_finding(cause: RootCause, info: CheckInfo) -> Finding:
    """A finding with the texts of its violation only, used when wording failed."""
    head = cause.leading
    step = min(count.first_step for count in cause.all_counts)
    return Finding(
        id=fingerprint(cause.check_id, head.subject),
        check=cause.check_id,
        kind=info.kind,
        code=info.code,
        severity=info.severity,
        title=head.title or info.title or info.headline,
        message=head.message,
        step=_shown_step(step),
        first_step=_shown_step(step),
        last_step=_shown_step(cause.last_step),
        rank=head.rank,
        stage=head.stage,
        violations=sum(count.violations for count in cause.all_counts),
        steps=cause.steps,
        subject=head.subject,
        expected=head.expected,
        observed=head.observed,
        topic=head.topic,
        variables=tuple(cause.variables),
        likely_cause=head.likely_cause or info.likely_cause,
        fix=head.fix or info.fix,
        suppressed=cause.suppressed,
        provisional=head.provisional,
    )


def _also(cause: RootCause, infos: Mapping[str, CheckInfo]) -> tuple[Also, ...]:
    """The other checks that the cause broke, each once, earliest first."""
    found: dict[str, list[ViolationCount]] = {}
    for check_id, _, count in cause.explained:
        if check_id != cause.check_id:
            found.setdefault(check_id, []).append(count)
    ordered = sorted(found.items(), key=lambda one: (min(t.key for t in one[1]), one[0]))
    return tuple(_also_broke(infos[check_id], counts) for check_id, counts in ordered)


def _also_broke(info: CheckInfo, counts: Sequence[ViolationCount]) -> Also:
    first, names = counts[0], {count.first.subject.variable for count in counts}
    variables = sorted(name for name in names if name is not None)
    step = min(count.first_step for count in counts)
    fill = Template(variables, first.first, first.first.subject, step, since(step), None)
    subjects = (count.first.subject for count in counts)
    return Also(
        check=info.check_id,
        kind=info.kind,
        code=info.code,
        text=fill(_title_and_fix(first.first, info)[0], 3) if info.kind == "rule" else info.title,
        first_step=_shown_step(step),
        violations=sum(count.violations for count in counts),
        subjects=tuple(sorted({s.variable or s.module or s.api or "" for s in subjects} - {""})),
    )


def _finding(cause: RootCause, info: CheckInfo, source_event: Sequence[Event]) -> Finding:
    head = cause.leading
    wording = SYMPTOM_MESSAGES[cause.symptom]
    evidence = sorted(
        [*head.evidence, *source_event], key=lambda event: not is_source_of(event, wording.source)
    )
    variables = tuple(sorted(cause.variables, key=sort_key))
    first_step = min(count.first_step for count in cause.all_counts)
    explains = {check_id for check_id, _, _ in cause.explained} - {cause.check_id}
    subject = replace(head.subject, variable=variables[0]) if variables else head.subject
    is_once = info.kind == "invariant" and cause.symptom in _CHECKED_EACH_STEP
    at = since(first_step, is_once=is_once and cause.last_step == first_step)
    fill = Template(variables, head, subject, first_step, at, where(evidence))
    more = side_effects_text(cause)
    title, fix = _title_and_fix(head, info)
    title = head.title or (info.kind == "rule" and title) or info.headline or wording.title
    return Finding(
        id=fingerprint(cause.check_id, subject),
        check=cause.check_id,
        kind=info.kind,
        code=info.code,
        severity=info.severity,
        title=fill(title, 3),
        message=message(head, info, variables, at) + more,
        step=_shown_step(first_step),
        first_step=_shown_step(first_step),
        last_step=_shown_step(cause.last_step),
        rank=head.rank,
        stage=head.stage,
        violations=sum(count.violations for count in cause.all_counts),
        steps=cause.steps,
        subject=subject,
        expected=with_all_names(head.expected, head, variables),
        observed=head.observed,
        topic=head.topic,
        evidence=tuple(evidence[:_SHOWN_EVENTS]),
        likely_cause=fill(head.likely_cause or info.likely_cause or wording.likely_cause, 3) + more,
        fix=fill(head.fix or fix or wording.fix, 3),
        variables=variables,
        explains=tuple(sorted(explains)),
        suppressed=cause.suppressed,
        provisional=head.provisional,
    )


def _title_and_fix(head: Violation, info: CheckInfo) -> tuple[str, str]:
    """Title and fix of a check; those for several optimizers where the violation names one."""
    if not head.optimizer:
        return info.title, info.fix
    return info.title_of_several or info.title, info.fix_of_several or info.fix


def _sort_key(finding: Finding) -> tuple[int, int, int, int, int, str]:
    """Findings, then observations with the rarest first, then advice, however early it is known."""
    tier = TIERS.index(finding.tier)
    return (
        tier,
        finding.healthy[0] if tier and finding.healthy else 0,
        -1 if finding.first_step is None else finding.first_step,
        -len(finding.explains),
        -SEVERITIES.index(finding.severity),
        finding.id,
    )


def fingerprint(check_id: str, subject: Subject) -> str:
    """A stable id of the findings of a check about a subject, the same in every run."""
    parts = (check_id, subject.api or "", subject.variable or "", subject.module or "")
    text = "|".join(parts)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def _shown_step(step: int) -> int | None:
    return None if step < 0 else step
