"""Fold violations into findings: one fault, one finding, headed by what causes it.

Decides nothing about checks.

Violations are counted as they come, in memory bounded by the number of checks and names, and folded
at the end.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from traincheck.check.call_tree import LANDMARKS
from traincheck.check.decorating import Decorating
from traincheck.check.folding import Fault, Tally, fold, in_order
from traincheck.check.witness import Witness, is_near
from traincheck.check.wording import WORDING
from traincheck.schema.events import Event
from traincheck.schema.findings import (
    SEVERITIES,
    Acceptance,
    Also,
    CheckInfo,
    Finding,
    Subject,
    Symptom,
    Topic,
    Violation,
)
from traincheck.schema.places import where
from traincheck.schema.words import joined

_SHOWN_EVENTS = 6
_SHOWN_NAMES = 8
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
_BY_NUMBER = re.compile(r"\{([\w ]+)\|([\w ]+)\}")  # {is|are}: of one variable, and of several
_CALLED = {Symptom.MISSING_CALL: "does not call", Symptom.EXTRA_CALL: "calls"}

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
    fill = Filler(variables, first.first, first.first.subject, step, _since(step), None)
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
    since = _since(first_step, is_once=is_once and fault.last_step == first_step)
    fill = Filler(variables, head, subject, first_step, since, where(evidence))
    beside = _frozen_beside(fault) + _called_beside(fault) + _numbers_beside(fault)
    title, fix = _general(head, info)
    title = head.title or (info.kind == "rule" and title) or info.headline or words.title
    return Finding(
        id=fingerprint(fault.check_id, subject),
        check=fault.check_id,
        kind=info.kind,
        code=info.code,
        severity=info.severity,
        title=fill(title, 3),
        message=_message(head, info, variables, since) + beside,
        step=_shown_step(first_step),
        first_step=_shown_step(first_step),
        last_step=_shown_step(fault.last_step),
        rank=head.rank,
        stage=head.stage,
        violations=sum(tally.count for tally in fault.everything),
        steps=fault.steps,
        subject=subject,
        expected=_with_all(head.expected, head, variables),
        observed=head.observed,
        topic=head.topic,
        evidence=tuple(evidence[:_SHOWN_EVENTS]),
        likely_cause=fill(head.likely_cause or info.likely_cause or words.likely_cause, 3) + beside,
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


def _frozen_beside(fault: Fault) -> str:
    """A sentence on the frozen parameters that a fault of another kind took in."""
    names = {t.first.subject.variable for _, s, t in fault.explained if s is Symptom.FROZEN}
    found = sorted(name for name in names - fault.variables if name is not None)
    return f" Beside that, {joined(found, _SHOWN_NAMES)} do not require grad." if found else ""


def _called_beside(fault: Fault) -> str:
    """A sentence on computations that only the reference makes, or only this run."""
    if fault.symptom is Symptom.EVAL_MODE:
        return ""  # there calls are made, and not counted
    apis: dict[tuple[str, str], set[str]] = {}  # by what stands before and behind their names
    for _, symptom, tally in fault.explained:
        api = tally.first.subject.api
        if symptom is fault.symptom or symptom not in _CALLED or not api or _is_landmark(api):
            continue
        if tally.first.topic is not Topic.ORDER:  # what it misses may be called in another place
            how = _how_often(symptom, tally.first)
            apis.setdefault(how, set()).add(_short_api(api) or "")
    return "".join(
        f" Unlike the reference runs, this one {verb} {joined(sorted(names), 3)}{often}."
        for (verb, often), names in sorted(apis.items(), reverse=True)
    )


def _how_often(symptom: Symptom, violation: Violation) -> tuple[str, str]:
    """``calls`` and `` more often``, around the name of what is called."""
    if violation.topic is Topic.COUNT:  # of calls that the reference makes
        if symptom is Symptom.EXTRA_CALL:
            return "calls", " more often"
        if violation.measured:
            return "calls", " less often"
    return _CALLED[symptom], ""


def _numbers_beside(fault: Fault) -> str:
    """A sentence on what comes of a call that is missing or too many."""
    if fault.symptom not in _CALLED:
        return ""
    values = [t for _, s, t in fault.explained if s is Symptom.WRONG_VALUE]
    if not values:
        return ""
    first = min(values, key=lambda tally: tally.key).first
    return f" With it, another claim breaks: {first.expected}; here it is {first.observed}."


def _is_landmark(api: str) -> bool:
    """Whether a call belongs to the loop, so that its place there says all."""
    return api in LANDMARKS or api.startswith(("torch.optim.", "torch.amp.", "torch.autograd."))


def _since(step: int, *, is_once: bool = False) -> str:
    """In which steps. is_once: in this one, and in none after it."""
    if step < 0:
        return "before the first step"
    return f"in step {step}" if is_once else f"from step {step} on"


def _message(head: Violation, info: CheckInfo, variables: Sequence[str], at: str) -> str:
    """The check's own sentence, with all names where it has the first."""
    said = head.message.rstrip(".")
    names = joined(variables, _SHOWN_NAMES)
    if info.kind == "rule":
        return f"{at[:1].upper()}{at[1:]}: {_with_all(said, head, variables)}."
    about = f" ({names})" if names else ""
    seen = head.observed or "it does not hold"
    return f"{said}. This held in every reference run. In this run, {at}: {seen}{about}."


def _with_all(text: str, head: Violation, variables: Sequence[str]) -> str:
    """``text`` with all names in place of the one that it was written for."""
    own = head.subject.variable
    return text.replace(own, joined(variables, _SHOWN_NAMES), 1) if own and variables else text


class Filler:
    """Fills in {variables}, {subject}, {step}, {since}, {where} and {optimizer}.

    And {expected} and {observed}. And chooses between {is|are}, by how many variables there are.
    """

    def __init__(
        self,
        variables: Sequence[str],
        head: Violation,
        subject: Subject,
        step: int,
        since: str,
        place: str | None,
    ) -> None:
        self._variables = variables
        self._subject = subject.module or _short_api(subject.api) or subject.variable or "the model"
        self._step, self._since = "0" if step < 0 else str(step), since
        # In a sentence the name of the file is enough; the evidence has its path.
        self._where = f" ({place.rpartition('/')[2]})" if place else ""
        self._observed = head.observed
        self._optimizer = head.optimizer or "the optimizer"
        self._expected = head.expected or "as the check says"

    def __call__(self, text: str, limit: int) -> str:
        names = joined(self._variables, limit) or self._subject
        number = 1 + (len(self._variables) > 1)
        # Not str.format: a wording may hold braces of its own.
        return (
            _BY_NUMBER.sub(lambda match: match[number], text)
            .replace("{variables}", names)
            .replace("{subject}", self._subject)
            .replace("{step}", self._step)
            .replace("{since}", self._since)
            .replace("{where}", self._where)
            .replace("{expected}", self._expected)
            .replace("{observed}", self._observed)
            .replace("{optimizer}", self._optimizer)
        )


def _short_api(api: str | None) -> str | None:
    """``torch.optim.Optimizer.step`` -> ``Optimizer.step``; ``autograd.grad``, as all have one."""
    if api is None:
        return None
    parts = api.split(".")
    is_long = len(parts) > 1 and (parts[-2][:1].isupper() or parts[-1] == "grad")
    return ".".join(parts[-2:]) if is_long else parts[-1]


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
