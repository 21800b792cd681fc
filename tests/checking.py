"""Check hand-made traces in a test, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.builders import MLP, TraceBuilder
from traincheck.check.engine import Engine
from traincheck.readings.provider import RunStates, uses_of
from traincheck.rules.table import RULES
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Finding, Report, Verdict, Violation
from traincheck.schema.protocols import Rule
from traincheck.schema.torch_api import Families

BY_CODE = {rule.info.code: rule for rule in RULES}
# For tests that count: a new rule is not to change them.
FIRST_RULES = tuple(BY_CODE[code] for code in ("TC101", "TC102", "TC201", "TC202", "TC203"))


def report_of(events: Iterable[Event], rules: Sequence[Rule] = RULES) -> Report:
    """What rules say about a trace."""
    engine = Engine(rules=rules)
    for event in events:
        engine.observe(event)
    return engine.finish()


def fires(code: str, events: Iterable[Event]) -> Finding:
    """The one finding of one rule."""
    report = report_of(events, [BY_CODE[code]])
    assert [finding.code for finding in report.findings] == [code]
    assert report.verdicts == {code: Verdict.VIOLATED}
    return report.findings[0]


def quiet(code: str, events: Iterable[Event]) -> Verdict:
    """What became of one rule that finds nothing."""
    report = report_of(events, [BY_CODE[code]])
    assert report.findings == []
    return report.verdicts[code]


class Alone:
    """One monitor of a rule and the run states that it uses, without an engine."""

    def __init__(self, rule: Rule) -> None:
        self.monitor, self.run_states = rule.monitor(), RunStates()
        if uses_of(self.monitor):
            self.monitor.bind(self.run_states)  # type: ignore[attr-defined]

    def observe(self, event: Event) -> list[Violation]:
        for run_state in self.run_states:
            run_state.observe(event)
        return list(self.monitor.observe(event))

    def finish(self) -> list[Violation]:
        return list(self.monitor.finish())


def net(**options: object) -> TraceBuilder:
    """A process with a small model and one optimizer over all of it."""
    return TraceBuilder().process().model("Net", MLP).optimizer(**options)  # type: ignore[arg-type]


def of_no_loss() -> list[Event]:
    """A training whose loss is exactly 0 in each step. No rule knows whether that is right."""
    builder = net().steps(4)
    for event in list(builder.events):
        if isinstance(event, CallEvent) and event.api == Families.BACKWARD:
            builder.edit(event, args={"tensors": {**event.args["tensors"][0], "value": 0.0}})
    return builder.build()
