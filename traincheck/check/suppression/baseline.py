"""A baseline: findings of an earlier check, which later checks suppress.

A finding is known if it has the same check and subject, and names no new variable. Its step does
not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from traincheck.errors import BaselineError
from traincheck.schema.files import write_json
from traincheck.schema.findings import Finding, Report, Suppressed
from traincheck.schema.json_text import parse_json
from traincheck.schema.reading import read_regular
from traincheck.schema.record import Record
from traincheck.version import VERSION

SCHEMA_VERSION = 1
_KIND = "traincheck-baseline"
_MAKE = "make one with traincheck check -t DIR --baseline FILE --write-baseline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Known findings.

    Attributes:
        path: its file.
        known: fingerprint of a finding -> the variables that it names.
    """

    path: str
    known: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def contains(self, finding: Finding) -> bool:
        """Whether a finding is known."""
        variables = self.known.get(finding.id)
        return variables is not None and variables.issuperset(finding.variables)

    def apply(self, report: Report) -> Report:
        """The report with its known findings suppressed."""
        why = Suppressed(by="baseline", reason="in the baseline", where=self.path)
        known = [f for f in report.findings if self.contains(f)]
        left = [f for f in report.findings if not self.contains(f)]
        suppressed = [*report.suppressed, *(replace(f, suppressed=why) for f in known)]
        return replace(report, findings=left, suppressed=suppressed)


class _Entry(Record, frozen=True, kw_only=True):
    fingerprint: str
    check: str
    variables: frozenset[str]


class _File(Record, frozen=True, kw_only=True):
    findings: tuple[_Entry, ...]


def read_baseline(path: Path) -> Baseline:
    """Read a baseline.

    Raises:
        BaselineError: it is missing, damaged, or something else.
    """
    try:
        record = parse_json(read_regular(path))
    except FileNotFoundError as error:
        raise BaselineError(f"baseline {path} does not exist", fix=_MAKE) from error
    except OSError as error:
        raise BaselineError(
            f"baseline {path} cannot be read: {error.strerror}", fix=_MAKE
        ) from error
    except ValueError as error:
        raise BaselineError(f"baseline {path} is damaged: {error}", fix=_MAKE) from error
    if not isinstance(record, dict) or record.get("kind") != _KIND:
        raise BaselineError(f"{path} is not a baseline", fix=_MAKE)
    version = record.get("schema_version")
    if version != SCHEMA_VERSION:
        raise BaselineError(
            f"baseline {path} was written by schema {version}, this is {SCHEMA_VERSION}", fix=_MAKE
        )
    try:
        entries = msgspec.convert(record, _File).findings
    except msgspec.ValidationError as error:
        raise BaselineError(f"baseline {path} is damaged: {error}", fix=_MAKE) from error
    return Baseline(path=str(path), known={one.fingerprint: one.variables for one in entries})


def write_baseline(path: Path, findings: Iterable[Finding]) -> int:
    """Write a baseline of ``findings`` atomically. Returns the number of entries.

    Raises:
        OutputError: it could not be written.
    """
    entries: dict[str, dict[str, Any]] = {}
    for finding in findings:
        entry = entries.setdefault(finding.id, _entry(finding))
        entry["variables"] = sorted({*entry["variables"], *finding.variables})
    record = {
        "kind": _KIND,
        "schema_version": SCHEMA_VERSION,
        "created_with": {"traincheck": VERSION},
        "findings": [entry for _, entry in sorted(entries.items())],
    }
    write_json(path, record)
    return len(entries)


def _entry(finding: Finding) -> dict[str, Any]:
    return {
        "fingerprint": finding.id,
        "check": finding.check,
        "code": finding.code,  # code and title are for people who read the file
        "title": finding.title,
        "variables": [],
    }
