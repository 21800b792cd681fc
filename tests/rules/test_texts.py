"""What users read of a finding: a fix to act on, an own title, and verbs that agree."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache

from tests.banned_words import BANNED_WORD
from tests.checking import BY_CODE, Alone
from tests.rules.broken import BROKEN
from tests.texts import findings
from tests.together import together
from traincheck.check.finding_builder import FindingBuilder
from traincheck.check.wording.symptom_messages import SYMPTOM_MESSAGES
from traincheck.rules.table import RULES
from traincheck.schema.findings import CheckInfo, Finding, Subject, Symptom, Violation

# What says only where to look, or to do what somebody else says
CONTENTLESS = re.compile(
    r"^(look at|check|see|read|do what|find what)\b[^,;:]*\.$|look at the call|as it should be",
    re.IGNORECASE,
)
SINGULAR = r"(is|has|was|gets|does|stays|changes|holds|begins)"
OTHER = "Net.other.weight"
TWO = f"Net.first.weight, {OTHER}"
# But "the gradient of A, B is zero"
DISAGREES = re.compile(rf"(?<!\bof )(?<!updates )(?<!over ){re.escape(TWO)} {SINGULAR}\b")


@cache
def told() -> dict[str, Finding]:
    """The finding of each rule, by its code."""
    return {finding.code: finding for finding in findings()}


every_code = together("code", [rule.info.code for rule in RULES])


@every_code
def test_the_fix_says_what_to_do(code: str) -> None:
    fix = told()[code].fix
    assert len(fix.split()) >= 3
    assert fix[0].isupper() or "=" in fix.split()[1]
    assert not CONTENTLESS.search(fix), fix


@every_code
def test_no_placeholder_or_foreign_word_is_left(code: str) -> None:
    finding = told()[code]
    for text in (finding.title, finding.message, finding.likely_cause, finding.fix):
        assert not re.search(r"\{[a-z]+[}|]", text), text
        assert not BANNED_WORD.search(text), text


def test_no_two_rules_have_one_title() -> None:
    counts = Counter(rule.info.title for rule in RULES)
    assert [title for title, count in counts.items() if count > 1] == []


@together("symptom", SYMPTOM_MESSAGES, ids=lambda one: one.value)
def test_the_fix_of_a_symptom_says_what_to_do(symptom: Symptom) -> None:
    words = SYMPTOM_MESSAGES[symptom]
    assert not CONTENTLESS.search(words.fix), words.fix
    assert not BANNED_WORD.search(f"{words.title} {words.likely_cause} {words.fix}")


def doubled(code: str) -> str:
    """All texts of the finding of a rule, as they are for two variables; empty if it has none."""
    monitor = Alone(BY_CODE[code])
    told = [v for event in BROKEN[code] for v in monitor.observe(event)]
    told = [v for v in [*told, *monitor.finish()] if v.subject.variable is not None]
    if not told:
        return ""
    name = str(told[0].subject.variable)

    def renamed(violation: Violation, other: str) -> Violation:
        texts = {
            field: str(getattr(violation, field)).replace(name, other)
            for field in ("message", "expected", "observed", "title", "likely_cause", "fix")
        }
        return replace(violation, subject=Subject(variable=other), **texts)

    info: CheckInfo = BY_CODE[code].info
    book = FindingBuilder({code: info})
    book.add(renamed(told[0], "Net.first.weight"))
    book.add(renamed(told[0], OTHER))
    (found,) = book.findings()
    return " / ".join((found.title, found.message, found.expected, found.likely_cause, found.fix))


@every_code
def test_verbs_agree_with_several_variables(code: str) -> None:
    text = doubled(code)
    wrong = DISAGREES.search(text)
    assert wrong is None, wrong and text[wrong.start() : wrong.end() + 40]


@together("symptom", SYMPTOM_MESSAGES, ids=lambda one: one.value)
def test_verbs_of_symptoms_agree_with_several_variables(symptom: Symptom) -> None:
    info = CheckInfo(check_id="c", kind="invariant", code="c", severity="error", title="a claim")
    book = FindingBuilder({"c": info})
    for name in ("Net.first.weight", OTHER):
        book.add(
            Violation(
                check_id="c",
                step=3,
                rank=0,
                stage="train",
                subject=Subject(variable=name),
                symptom=symptom,
                message="a claim",
                expected="something",
                observed="something else",
            )
        )
    for found in book.findings():
        text = " / ".join((found.title, found.likely_cause, found.fix))
        assert not DISAGREES.search(text), text


def test_numbers_agree_with_their_nouns() -> None:
    texts = {
        code: f"{f.message} {f.expected} {f.observed} {f.likely_cause}"
        for code, f in told().items()
    }
    one = re.compile(r"(?<![\d.])1 (times|calls|steps)\b")
    assert not {code: text for code, text in texts.items() if one.search(text)}
