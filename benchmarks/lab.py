"""Record references and targets once each, learn, check. Kept in one folder, made on demand."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.cases import REFERENCE_SEED, REFERENCE_STEPS, Bug
from benchmarks.harness import Variables
from traincheck.api import check
from traincheck.report.json_report import report_json

Report = dict[str, Any]

FULL, SELECTIVE = "full", "selective"
VIEWS = (FULL, SELECTIVE)

_VARIABLE = re.compile(r"\b[A-Z]\w*(?:\.\w+)+\b")


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one thread of one process at a time creates ``path``."""
    with path.with_name(path.name + ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # given back when the file is closed
        yield


def made_once(out: Path, make: Callable[[Path], object]) -> Path:
    """Create ``out`` if it is missing. ``make`` writes elsewhere, so a failure leaves no files."""
    with locked(out):
        if not out.exists():
            with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
                unfinished = Path(scratch) / out.name
                make(unfinished)
                unfinished.rename(out)
    return out


class Lab:
    """Runs and invariant files by their inputs; threads and processes may share one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def reference(self, script: Path) -> Path:
        """A clean run of a script, recorded in full."""
        env = {"UP_SEED": REFERENCE_SEED, "UP_STEPS": REFERENCE_STEPS}
        return self.trace(script, env, view=FULL)

    def invariants(self, *scripts: Path) -> Path:
        """Invariants learned from clean runs of these scripts."""
        out = self.folder / ("-".join(script.stem for script in scripts) + ".invariant.json")
        return made_once(
            out, lambda path: harness.infer([self.reference(script) for script in scripts], path)
        )

    def trace(
        self,
        script: Path,
        env: Variables,
        *,
        view: str,
        invariants: Path | None = None,
        rules: bool = True,
    ) -> Path:
        """A recorded run; a selective view has the needs of invariants and requested rules."""
        selected = view == SELECTIVE
        what = [sorted(env.items()), view, *([str(invariants), rules] if selected else [])]
        digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()[:10]
        return made_once(
            self.folder / f"{script.stem}-{digest}",
            lambda out: harness.collect(
                script,
                out,
                env=env,
                invariants=invariants if selected else None,
                rules=selected and rules,
            ).expect(),
        )

    def check(
        self,
        script: Path,
        env: Variables,
        *,
        view: str,
        invariants: Path | None = None,
        rules: bool = True,
    ) -> Report:
        """Record a run through a view, and check it."""
        trace = self.trace(script, env, view=view, invariants=invariants, rules=rules)
        return checked(trace, invariants, rules=rules)


def checked(trace: Path, invariants: Path | None = None, *, rules: bool = True) -> Report:
    """The output of ``traincheck check --format json``, without starting a process.

    That both say the same is for the tests of the command. Nothing is configured: a file in the
    working directory does not count.
    """
    found = check(trace, [invariants] if invariants else [], rules=rules)
    report: Report = json.loads(json.dumps(report_json(found)))
    return report


def alarms(report: Report) -> list[dict[str, Any]]:
    """Findings of severity warning or above."""
    return [finding for finding in report["findings"] if finding["severity"] != "info"]


def first_finding(report: Report) -> dict[str, Any] | None:
    """The finding that is shown first, the cause."""
    findings = report["findings"]
    return findings[0] if findings else None


def named_variables(finding: dict[str, Any]) -> frozenset[str]:
    """Names of all variables in a finding: dotted names that begin with a class."""
    subject = finding["subject"].get("variable")
    texts = [finding[key] for key in ("title", "message", "expected", "observed")]
    return frozenset(_VARIABLE.findall(" ".join(str(text) for text in [*texts, subject])))


def wording(finding: dict[str, Any]) -> str:
    """The text of a finding."""
    parts = [finding[key] for key in ("title", "message", "expected", "observed")]
    parts += [finding["subject"].get(key) for key in ("api", "module")]
    return " | ".join(str(part) for part in parts if part)


def faults(bug: Bug, report: Report) -> list[str]:
    """The errors of a report on a run that has this bug; empty if it is correct."""
    finding = first_finding(report)
    return ["not found"] if finding is None else _shortcomings(bug, finding)


def faults_anywhere(bug: Bug, report: Report) -> list[str]:
    """`faults`, if another finding may come first.

    What another program always does (clip, say) may be missing here from the first step on.
    """
    found = [_shortcomings(bug, finding) for finding in report["findings"]]
    return min(found, key=len, default=["not found"])


def _shortcomings(bug: Bug, finding: dict[str, Any]) -> list[str]:
    wrong = []
    if finding["first_step"] not in bug.first_steps:
        wrong.append(f"first step {finding['first_step']}, not {bug.first_steps}")
    missing = bug.variables - named_variables(finding)
    if missing:
        wrong.append(f"does not name {', '.join(sorted(missing))}")
    said = wording(finding).lower()
    if bug.words and not any(word in said for word in bug.words):
        wrong.append(f"says none of {bug.words}")
    return wrong


def brief(findings: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Findings without their evidence, for a result file."""
    return [{key: value for key, value in f.items() if key != "evidence"} for f in findings]
