"""The report as JUnit XML: a test case for each check that was decided, for tools that show tests.

A case passes only if the check held. A case is skipped, with the reason, if its violation was
suppressed or follows from another finding. With ``verbose``, undecided checks are skipped cases
too; their numbers are always properties of the suite.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TextIO
from xml.etree import ElementTree as ET

from traincheck.report._places import located
from traincheck.report.sentences import lack
from traincheck.rules.docs import docs_of
from traincheck.rules.registry import all_rules
from traincheck.schema.findings import NOTHING_CHECKED, CheckInfo, Finding, Report, Verdict
from traincheck.schema.words import all_printable, printable_lines

_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNDECIDED = (Verdict.NOT_TRIGGERED, Verdict.NOT_OBSERVABLE)


def write_junit(report: Report, stream: TextIO) -> None:
    """Write one XML document with a newline at its end."""
    report = all_printable(report)
    names = {rule.info.code: docs_of(rule).name for rule in all_rules()}
    suites = ET.Element("testsuites", name="traincheck")
    suite = ET.SubElement(suites, "testsuite", name="traincheck", errors="0")
    effects = {check: f for f in reversed(report.findings) for check in f.explains}
    properties = ET.SubElement(suite, "properties")
    for verdict in _UNDECIDED:
        value = str(report.count(verdict))
        ET.SubElement(properties, "property", name=verdict.value, value=value)
    for check_id, verdict in report.verdicts.items():
        if verdict in _UNDECIDED and not report.presentation.verbose:
            continue
        case = _case(suite, check_id, report.infos.get(check_id), names)
        found = [f for f in report.findings if f.check == check_id]
        for finding in found:
            _tell(case, finding, report)
        if not found:
            _close(case, check_id, verdict, report, effects)
    lacking = lack(report)
    if lacking is not None and report.exit_status == NOTHING_CHECKED:
        # Too little was checked, and skipped cases do not fail a build.
        case = ET.SubElement(
            suite, "testcase", classname="traincheck.run", name="something is checked"
        )
        failure = ET.SubElement(case, "failure", type="nothing-checked", message=lacking.reason)
        failure.text = f"fix: {lacking.fix}"
    for element in (suites, suite):
        element.set("tests", str(len(suite.findall("testcase"))))
        for result, name in (("failure", "failures"), ("skipped", "skipped")):
            element.set(name, str(len(suite.findall(f"testcase[{result}]"))))
    ET.indent(suites)
    text = ET.tostring(suites, encoding="unicode")
    stream.write(f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n')


def _case(
    suite: ET.Element, check_id: str, info: CheckInfo | None, names: Mapping[str, str]
) -> ET.Element:
    group = f"{info.kind}.{info.code}" if info else "check"
    about = names.get(info.code, info.title) if info else ""
    name = _clean(f"{check_id} {about}".strip())
    return ET.SubElement(suite, "testcase", classname=_clean(f"traincheck.{group}"), name=name)


def _tell(case: ET.Element, finding: Finding, report: Report) -> None:
    """A failure; a finding below --fail-on is only output."""
    place, _ = located(finding, report)
    lines = [finding.message]
    if place:
        case.set("file", _clean(place.path))
        case.set("line", str(place.line))
        lines.append(f"where: {place.path}:{place.line}")
    if finding.likely_cause:
        lines.append(f"likely cause: {finding.likely_cause}")
    if finding.fix:
        lines.append(f"fix: {finding.fix}")
    text = _clean("\n".join(lines))
    if report.presentation.fails(finding):
        title = _clean(f"{finding.code} {finding.severity}: {finding.title}")
        ET.SubElement(case, "failure", type=finding.code, message=title).text = text
    else:
        ET.SubElement(case, "system-out").text = text


def _close(
    case: ET.Element,
    check_id: str,
    verdict: Verdict,
    report: Report,
    effects: Mapping[str, Finding],
) -> None:
    """A case without a finding: passed when the check held, skipped otherwise."""
    if verdict is Verdict.HELD:
        return
    if verdict is Verdict.NOT_OBSERVABLE:
        reason = f"not observable: {report.unobservable.get(check_id, 'not recorded')}"
    elif verdict is Verdict.NOT_TRIGGERED:
        reason = "not triggered: its condition never occurred in the run"
    else:
        accepted = next((f.suppressed for f in report.suppressed if f.check == check_id), None)
        if accepted is not None:
            reason = f"suppressed by {accepted.by}: {accepted.reason}"
        else:
            cause = effects.get(check_id)
            reason = (
                f"violated as an effect of {cause.code}: {cause.title}" if cause else "suppressed"
            )
    ET.SubElement(case, "skipped", message=_clean(reason))


def _clean(text: str) -> str:
    """Without what XML cannot hold, or what a log must not show as it is."""
    return _NO_XML.sub("?", printable_lines(text))
