"""The findings of a live check, as a file in the run directory.

`traincheck run` and `traincheck check --follow` write it. The status and the terminal view read it,
so that no run is judged twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import orjson

from traincheck.schema.files import put_bytes
from traincheck.schema.json_text import dump_json, parse_json
from traincheck.schema.layout import CHECKED, SCHEMA_VERSION
from traincheck.schema.reading import read_regular

MOST_FINDINGS = 50  # in the file; all are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The state of a live check.

    Attributes:
        schema_version: of the file.
        step: the last step that was checked on all ranks; None before the first.
        pid: the process that checks.
        over: whether the check has ended.
        summary: numbers of events, steps and verdicts, as in the JSON report.
        findings: the first ones, as in the JSON report but without evidence.
        counts: severity -> number of all findings.
        tally: tier -> number of findings; empty in files of older versions.
    """

    schema_version: int = SCHEMA_VERSION
    step: int | None = None
    pid: int = 0
    over: bool = False
    summary: Mapping[str, int] = field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    tally: Mapping[str, int] = field(default_factory=dict)

    @property
    def serious(self) -> int:
        """Number of findings but observations and advice."""
        return sum(self.counts.values()) - self.counts.get("info", 0)

    def number(self, tier: str) -> int:
        """Number of findings of a tier, as every report counts them."""
        older = {"finding": self.serious, "advice": self.counts.get("info", 0)}
        return (self.tally or older).get(tier, 0)

    @property
    def shown(self) -> Sequence[Mapping[str, Any]]:
        """The findings and observations in the file."""
        return [one for one in self.findings if tier_of(one) != "advice"]


def tier_of(found: Mapping[str, Any]) -> str:
    """The tier of a finding in the file; older versions did not write it."""
    older = "advice" if found.get("severity") == "info" else "finding"
    return str(found.get("tier") or older)


def write_checked(directory: Path, checked: Checked) -> None:
    """Replace the file atomically.

    Raises:
        OSError: it could not be written.
    """
    record = {name: getattr(checked, name) for name in Checked.__slots__}
    put_bytes(directory / CHECKED, dump_json(record, option=orjson.OPT_APPEND_NEWLINE))


def read_checked(directory: Path) -> Checked | None:
    """The state of the live check of a run; None if there was none, or its file is not readable."""
    try:
        return msgspec.convert(parse_json(read_regular(directory / CHECKED)), Checked)
    except (OSError, ValueError):  # a file from elsewhere is no reason to fail
        return None
