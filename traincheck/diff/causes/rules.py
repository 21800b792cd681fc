"""A rule that breaks in B and not in A, as the cause of the first difference.

A finding is a cause only with its proof. Run A shows what the rule needs, and does not break it.
Run B breaks it at the first difference or before. Its subject is the setting that differs, or
belongs to the model that differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.items import Phase
from traincheck.diff.messages import A, B, Told
from traincheck.diff.run_facts import Run
from traincheck.errors import TraceFormatError
from traincheck.schema.events import MarkEvent
from traincheck.schema.findings import Finding, Report, Verdict
from traincheck.schema.places import where
from traincheck.schema.torch_api import Families

# Causes that tell what is different and not what is wrong: a rule says more.
PLAIN = frozenset({"setting", "code", "command", "versions"})
_UNBROKEN = (Verdict.HELD, Verdict.NOT_TRIGGERED)
_SCHEDULES = (Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED)


def broken_rule(a: Run, b: Run, evidence: Evidence) -> Explanation | None:
    """The first finding of B that is proven to be the cause; None if there is none.

    Both runs are read once more, A only if B has such a finding.
    """
    if evidence.is_ranks:
        return None
    try:
        found = [f for f in _checked(b).findings if f.tier == "finding" and _reaches(f, evidence)]
        verdicts = _checked(a).verdicts if found else {}
    except TraceFormatError:  # a rank that is not compared cannot be read
        return None
    finding = next((one for one in found if verdicts.get(one.check) in _UNBROKEN), None)
    if finding is None:
        return None
    return Explanation(
        code=finding.code,
        text=Told(f"{finding.code} breaks in {B} and not in {A}: {finding.title}"),
        fix=finding.fix,
        details=tuple(map(Told, filter(None, (finding.message, finding.likely_cause)))),
        where=where(finding.evidence) or "",
    )


def _checked(run: Run) -> Report:
    # These load all rules: most comparisons need none.
    from traincheck.check.engine import Engine
    from traincheck.rules.registry import all_rules

    engine = Engine((), all_rules())
    for event in run.reader.events():
        engine.observe(event)
    return engine.finish()


def _reaches(finding: Finding, evidence: Evidence) -> bool:
    """Whether a finding is about what differs first, and not later than it."""
    item, step, subject = evidence.item, evidence.b.view.number, finding.subject
    broken = -1 if finding.first_step is None else finding.first_step
    if item.phase is Phase.SETTINGS:
        return broken <= step and _is_about(finding, item.name, evidence)
    # In the same step, the order of the two is not known.
    names = (*finding.variables, subject.variable, subject.module)
    model = item.name.split()[0].partition(".")[0]
    return broken < step and model in {name.partition(".")[0] for name in names if name}


def _is_about(finding: Finding, setting: str, evidence: Evidence) -> bool:
    """Whether a finding is about a setting of an optimizer in B, such as ``AdamW opt1.lr``."""
    owner, _, name = setting.rpartition(".")
    cls, *words = owner.split()
    optimizers = {one.id: one.cls.rpartition(".")[2] for one in evidence.b.facts.optimizers}
    if finding.subject.api in _SCHEDULES:  # which does not tell the optimizer
        return name == "lr" and len(optimizers) == 1
    id_ = finding.subject.variable or ""
    is_of_it = optimizers.get(id_) == cls and (
        id_ in words or list(optimizers.values()).count(cls) == 1
    )
    marks = [event.data for event in finding.evidence if isinstance(event, MarkEvent)]
    return is_of_it and name in _texts(marks)


def _texts(value: Any) -> Iterator[str]:
    """The texts in the data of a mark, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from _texts(part)
