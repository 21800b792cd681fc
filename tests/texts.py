"""Print what users read: the finding of each rule on its broken run. ``python -m tests.texts``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from tests.checking import report_of
from tests.rules.broken import BROKEN
from traincheck.rules.table import RULES
from traincheck.schema.findings import Finding


def findings() -> Iterator[Finding]:
    """The finding of each rule, on the run that its tests call broken."""
    for rule in RULES:
        yield from report_of(BROKEN[rule.info.code], [rule]).findings


def shown(finding: Finding) -> str:
    """All texts of a finding, one a line."""
    names = ("title", "message", "expected", "observed", "likely_cause", "fix")
    lines = [f"  {name:13}{getattr(finding, name)}" for name in names]
    head = f"{finding.code} {finding.severity}, steps {finding.first_step} to {finding.last_step}"
    return "\n".join([head, *lines])


def main(codes: Sequence[str]) -> None:
    """Print them, or those of these codes."""
    for finding in findings():
        if not codes or finding.code in codes:
            sys.stdout.write(f"{shown(finding)}\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
