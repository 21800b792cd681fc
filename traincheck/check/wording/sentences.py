"""Sentences of a finding, and what is filled in into its words. Groups and decides nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from traincheck.check.grouping.root_causes import Fault
from traincheck.schema.apis import LANDMARKS
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Topic, Violation
from traincheck.schema.words import joined

_SHOWN_NAMES = 8
_BY_NUMBER = re.compile(r"\{([\w ]+)\|([\w ]+)\}")  # {is|are}: of one variable, and of several
_CALLED = {Symptom.MISSING_CALL: "does not call", Symptom.EXTRA_CALL: "calls"}


def beside(fault: Fault) -> str:
    """Sentences on what else a fault took in, each with a space before it; empty if nothing."""
    return _frozen_beside(fault) + _called_beside(fault) + _numbers_beside(fault)


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


def since(step: int, *, is_once: bool = False) -> str:
    """In which steps. is_once: in this one, and in none after it."""
    if step < 0:
        return "before the first step"
    return f"in step {step}" if is_once else f"from step {step} on"


def message(head: Violation, info: CheckInfo, variables: Sequence[str], at: str) -> str:
    """The check's own sentence, with all names where it has the first."""
    said = head.message.rstrip(".")
    names = joined(variables, _SHOWN_NAMES)
    if info.kind == "rule":
        return f"{at[:1].upper()}{at[1:]}: {with_all_names(said, head, variables)}."
    about = f" ({names})" if names else ""
    seen = head.observed or "it does not hold"
    return f"{said}. This held in every reference run. In this run, {at}: {seen}{about}."


def with_all_names(text: str, head: Violation, variables: Sequence[str]) -> str:
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
