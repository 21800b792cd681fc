"""Messages of one broken run, as the notifier makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.checking import FIRST_RULES, net, report_of
from traincheck.receivers.base import Receiver
from traincheck.receivers.messages import (
    RunName,
    finding_message,
    report_message,
    withdrawn_message,
)
from traincheck.schema.files import dump_json
from traincheck.schema.findings import Report

RUN = RunName(id="nightly-7", trace="/traces/nightly-7", program="train.py", host="gpu1")
COUNTS = {"info": 0, "warning": 0, "error": 1}


def broken() -> Report:
    """A report with one finding of severity error, TC201 at step 1."""
    return report_of(net().steps(4, omit={"zero_grad"}).build(), FIRST_RULES)


@dataclass
class Messages:
    """What a receiver gets of one run."""

    finding: dict[str, Any]
    withdrawn: dict[str, Any]
    progress: dict[str, Any]
    report: dict[str, Any]

    def send(self, receiver: Receiver) -> str:
        """All but the withdrawal, to a receiver that is then closed."""
        receiver.finding(self.finding)
        receiver.report(self.report)
        return receiver.close()


def messages_of(report: Report) -> Messages:
    finding = report.findings[0]
    made = (
        finding_message(finding, report, RUN, COUNTS),
        withdrawn_message(finding, RUN, {**COUNTS, "error": 0}),
        report_message(report, RUN, is_final=False),
        report_message(report, RUN),
    )
    return Messages(*(json.loads(dump_json(one)) for one in made))


@pytest.fixture(scope="session")
def report() -> Report:
    return broken()


@pytest.fixture(scope="session")
def messages(report: Report) -> Messages:
    return messages_of(report)


@pytest.fixture
def made() -> Callable[..., Messages]:
    """Messages of the broken report with other texts."""

    def make(**texts: str) -> Messages:
        found = broken()
        return messages_of(replace(found, findings=[replace(found.findings[0], **texts)]))

    return make
