"""Decide whether a card of facts, or the difference of two cards, names the cause of a case.

One line must name it, and the card of the clean program must not have that line, whatever numbers
stand in it. A finding of a rule is a line, too: its cause and fix count, as in `judging`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.field.case import FieldCase
from benchmarks.field.judging import (
    CONTRAST,
    FACTS,
    NOTHING,
    OTHER,
    RIGHT,
    Line,
    contains,
    text_of,
)
from benchmarks.harness import ROOT
from benchmarks.silent_bugs.recordings import Recordings
from traincheck import api
from traincheck.facts.card import Card
from traincheck.facts.card import Line as CardLine
from traincheck.facts.compare import Contrast, contrasts
from traincheck.report.json_report import report_json

_NUMBER = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class Seen:
    """The card of a run, and its findings: the text of a line -> all words of the finding."""

    card: Card
    findings: Mapping[str, str] = field(default_factory=dict)

    def words(self, line: CardLine) -> str:
        """All that a person can read of a line, in lower case."""
        found = self.findings.get(line.text) if line.severity else None
        return f"{found or line.text.lower()} {line.fact.where.rpartition('/')[2].lower()}"

    def names_cause(self, case: FieldCase, line: CardLine) -> bool:
        """Whether a line names the cause of a case."""
        return contains(self.words(line), case.says if line.severity else case.facts)


class Cards:
    """The cards of recorded runs, each read once; threads may share one."""

    def __init__(self, recordings: Recordings) -> None:
        self._recordings = recordings
        self._known: dict[Path, Seen] = {}
        self._reading = threading.Lock()

    def seen(self, script: Path, launcher: str, *, is_reseeded: bool = False) -> Seen:
        """The card of a program, recorded as ``traincheck run`` records it."""
        run = self._recordings.kept(script, launcher, is_reseeded=is_reseeded)
        with self._reading:  # reading is Python, so that threads would only wait for each other
            if run not in self._known:
                findings: dict[str, str] = {}
                for one in json.loads(json.dumps(report_json(api.check(run))))["findings"]:
                    findings[f"{one['code']}: {one['title']}"] = text_of(one)
                self._known[run] = Seen(api.facts(run), findings)
            return self._known[run]


def judge_card(case: FieldCase, buggy: Seen, clean: Seen) -> Line:
    """The result of a case in the mode *facts*. position: on the card, in its order."""
    known = {key for line in clean.card.lines for key in _keys(line)}
    new = [
        (place, line)
        for place, line in enumerate(buggy.card.lines, 1)
        if not known.intersection(_keys(line))
    ]
    right = next(((at, line) for at, line in new if buggy.names_cause(case, line)), None)
    is_shown = any(line.is_finding or line.is_unusual for _, line in new)
    return {
        "verdict": RIGHT if right else OTHER if is_shown else NOTHING,
        **_cause(*right if right else (None, None)),
        "said": [f"{at}. {line.text}" for at, line in new],
        "alarms": [line.text for line in clean.card.findings],
    }


def judge_contrast(case: FieldCase, good: Seen, buggy: Seen, clean: Seen) -> Line:
    """The result of a case in the mode *contrast*.

    ``good`` is the clean program with another seed. It is held against the two others.
    """
    found = contrasts(good.card, buggy.card)
    right: tuple[int, CardLine] | None = None
    for at, one in enumerate(found, 1):
        named = [x for x in one.b if buggy.names_cause(case, x)]
        named += [x for x in one.a if good.names_cause(case, x)]
        if named and right is None:
            right = at, named[0]
    return {
        "verdict": RIGHT if right else OTHER if found else NOTHING,
        **_cause(*right if right else (None, None)),
        "lines": len(found),
        "lines without a bug": len(contrasts(good.card, clean.card)),
        "said": [_told(one) for one in found],
        "alarms": [line.text for line in clean.card.findings],
    }


def judge_healthy_card(seen: Seen) -> Line:
    """The result of a healthy pipeline in the mode *facts*: its unusual facts are counted."""
    return {
        "steps": seen.card.head.partition(" ")[0],
        "advice": len(seen.card.unusual),
        "said": [line.text for line in seen.card.unusual],
        "alarms": [line.text for line in seen.card.findings],
    }


def judge_healthy_contrast(good: Seen, seen: Seen) -> Line:
    """The result of a healthy pipeline in the mode *contrast*: what differs by another seed."""
    found = contrasts(good.card, seen.card)
    return {
        "steps": seen.card.head.partition(" ")[0],
        "advice": len(found),
        "lines without a bug": len(found),
        "said": [_told(one) for one in found],
        "alarms": [line.text for line in seen.card.findings],
    }


def markdown(cases: Iterable[FieldCase], lines: Iterable[Line]) -> str:
    """The results of both modes as a table of Markdown for docs/, a row for each case."""
    known = {(line["name"], line["mode"]): line for line in lines}
    rows = ["| report | cause | card | place | A B | differences |", "|---|---|---|---|---|---|"]
    for case in cases:
        card, contrast = (known.get((case.name, mode), {}) for mode in (FACTS, CONTRAST))
        source = (case.folder / "case.json").relative_to(ROOT).as_posix()
        cells = [f"[`{case.name}`](../{source})", case.title.replace("|", "\\|")]
        cells += [_verdict(card), str(card.get("position") or "")]
        cells += [_verdict(contrast), str(contrast.get("lines", ""))]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _verdict(line: Line) -> str:
    found = line.get("verdict", "not run")
    return f"{found}, {line['code']}" if line.get("code") else found


def _cause(position: int | None, line: CardLine | None) -> dict[str, Any]:
    """Which line names the cause. by: ``finding``, ``advice`` or ``fact``."""
    by = ""
    if line is not None:
        by = "finding" if line.is_finding else "advice" if line.severity else "fact"
    return {
        "position": position,
        "code": line.fact.kind if line else None,
        "severity": line.severity if line else None,
        "by": by,
        "is_unusual": line is not None and (line.is_finding or line.is_unusual),
        "codes": [],
    }


def _keys(line: CardLine) -> Iterable[object]:
    """That by which a line is known again: its class, and its sentence without the numbers."""
    return (line.fact.kind, line.fact.of, line.fact.seen_as), _NUMBER.sub("#", line.text)


def _told(one: Contrast) -> str:
    sides = (" / ".join(line.text for line in lines) or "(not seen)" for lines in (one.a, one.b))
    return " -> ".join(sides)
