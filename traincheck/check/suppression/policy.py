"""Suppression of violations by comments and the configuration, and of findings by a baseline.

Each violation is decided by itself; a baseline suppresses whole findings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from traincheck.check.suppression.source_files import SourceComments, SourceFiles, lines_calling
from traincheck.errors import BaselineError
from traincheck.schema.files import parse_json, read_regular, write_json
from traincheck.schema.findings import CheckInfo, Finding, Report, Subject, Suppressed, Violation
from traincheck.schema.record import Record
from traincheck.version import VERSION

_Key = tuple[str, Subject, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suppression:
    """An entry ``[[suppress]]`` of a configuration.

    Attributes:
        code: of a rule, the beginning of one, or the name of a relation.
        reason: that the user gave.
        variable: pattern with ``*`` and ``?``; None for any.
        module: the same.
        api: the same.
        where: the file that holds it.
    """

    code: str
    reason: str
    variable: str | None = None
    module: str | None = None
    api: str | None = None
    where: str = ""

    def __str__(self) -> str:
        """The entry as messages name it."""
        names = (("variable", self.variable), ("module", self.module), ("api", self.api))
        about = ", ".join(f'{name} = "{value}"' for name, value in names if value is not None)
        return f"[[suppress]] of {self.code}{f' ({about})' if about else ''}"

    def covers(self, code: str, subject: Subject) -> bool:
        """Whether it matches violations of ``code`` about ``subject``."""
        return (
            code.startswith(self.code)
            and _fits(self.variable, subject.variable)
            and _fits(self.module, subject.module)
            and _fits(self.api, subject.api)
        )


class SuppressionPolicy:
    """Decides which violations are suppressed, and why.

    Args:
        suppressions: of the configuration.
        sources: reads the source files of the run.
        program: returns the script of the run; empty for none. It is searched for calls whose
            source line the evidence does not have.
    """

    def __init__(
        self,
        suppressions: Iterable[Suppression] = (),
        sources: SourceFiles | None = None,
        program: Callable[[], str] = str,
    ) -> None:
        self.sources = sources or SourceFiles()
        self._suppressions = tuple(suppressions)
        self._program = program
        self._comments = SourceComments(self.sources)
        self._cache: dict[_Key, Suppressed | None] = {}
        self._used: set[Suppression] = set()

    def unused(self, codes: Iterable[str]) -> list[str]:
        """A line for each entry that matches one of ``codes`` and has suppressed nothing."""
        known = tuple(codes)
        return [
            f"{suppression} in {suppression.where or 'the configuration'} matches nothing"
            for suppression in self._suppressions
            if suppression not in self._used and any(c.startswith(suppression.code) for c in known)
        ]

    def __call__(self, violation: Violation, info: CheckInfo) -> Suppressed | None:
        found = (getattr(event, "where", None) for event in violation.evidence)
        places = tuple(dict.fromkeys(str(place) for place in found if place))
        key = (info.code, violation.subject, places)
        if key not in self._cache:
            self._cache[key] = self._decide(*key)
        return self._cache[key]

    def _decide(self, code: str, subject: Subject, places: Sequence[str]) -> Suppressed | None:
        for suppression in self._suppressions:
            if suppression.covers(code, subject):
                self._used.add(suppression)
                return Suppressed(
                    by="configuration", reason=suppression.reason, where=suppression.where
                )
        found = [self._by_comment(code, place) for place in places]
        if not places:
            program = self._program() if subject.api else ""
            source = self.sources.read(program) if program else None
            lines = sorted(lines_calling(subject.api or "", source))
            found = [self._by_comment(code, f"{program}:{line}") for line in lines]
            found = found if all(found) else []  # it may be any of these calls
        return next((one for one in found if one is not None), None)

    def _by_comment(self, code: str, place: str) -> Suppressed | None:
        comment = self._comments.at(place)
        if comment is None or (comment.codes and not code.startswith(comment.codes)):
            return None
        return Suppressed(by="comment", reason=comment.reason, where=place)


def _fits(pattern: str | None, name: str | None) -> bool:
    if pattern is None:
        return True
    # Not fnmatch: brackets are part of names such as opt0[0].3.
    expression = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return name is not None and re.fullmatch(expression, name) is not None


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
        code, title = finding.code, finding.title  # for people who read the file
        fields = {"check": finding.check, "code": code, "title": title, "variables": []}
        entry = entries.setdefault(finding.id, {"fingerprint": finding.id, **fields})
        entry["variables"] = sorted({*entry["variables"], *finding.variables})
    record = {
        "kind": _KIND,
        "schema_version": SCHEMA_VERSION,
        "created_with": {"traincheck": VERSION},
        "findings": [entry for _, entry in sorted(entries.items())],
    }
    write_json(path, record)
    return len(entries)
