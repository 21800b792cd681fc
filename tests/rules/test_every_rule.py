"""What every rule owes: documentation, a row in the table, the same answer live and replayed."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.builders import healthy_run
from tests.checking import Alone, net
from tests.rules.broken import BROKEN, TESTS
from tests.together import together
from traincheck import packages
from traincheck.check.engine import Engine
from traincheck.errors import UsageError
from traincheck.rules import registry
from traincheck.rules.docs import docs_of
from traincheck.rules.options import options_of
from traincheck.rules.registry import all_rules
from traincheck.rules.table import RULES
from traincheck.schema.events import Event
from traincheck.schema.findings import SEVERITIES, Finding
from traincheck.schema.protocols import Rule

FOLDER = Path(registry.__file__).parent
HEADINGS = ["What it checks", "Why it matters", "Fires on", "Stays quiet on", "Fix", "Source"]

rules = together("rule", RULES, ids=lambda rule: rule.info.code)


def findings(events: list[Event], *chosen: Rule) -> list[Finding]:
    engine = Engine(rules=chosen)
    for event in events:
        engine.observe(event)
    return list(engine.finish().findings)


def defined(path: Path) -> list[str]:
    """Codes of the rules that a module defines, in order."""
    return [
        keyword.value.value
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
        for keyword in node.keywords
        if keyword.arg == "code" and isinstance(keyword.value, ast.Constant)
    ]


@cache
def modules() -> dict[Path, list[str]]:
    """Codes of the rules that each module defines."""
    return {path: codes for path in sorted(FOLDER.glob("*/*.py")) if (codes := defined(path))}


def test_tables_and_folders_agree() -> None:
    codes = [rule.info.code for rule in RULES]
    assert codes == sorted(set(codes))
    assert sorted(code for found in modules().values() for code in found) == codes


def folders() -> dict[int, str]:
    """The folder of each code, as the table on the page about adding a rule has it."""
    page = (FOLDER.parents[1] / "docs" / "adding-a-rule.md").read_text(encoding="utf-8")
    found = {}
    for name, ranges in re.findall(r"^\| `(\w+)` \| ([0-9, -]+) \|$", page, re.M):
        for part in ranges.split(", "):
            first, _, last = part.partition("-")
            for code in range(int(first), int(last or first) + 1):
                assert code not in found, f"{name} and {found[code]} have {code}"
                found[code] = name
    return found


def test_the_tables_give_the_folder_of_each_code() -> None:
    known = folders()
    wrong = [
        f"{code} is in {path.parent.name}, not in {known.get(int(code[2:]))}"
        for path, codes in modules().items()
        for code in codes
        if known.get(int(code[2:])) != path.parent.name
    ]
    assert not wrong
    assert [code for code, path in TESTS.items() if path.parent.name != known[int(code[2:])]] == []


def test_a_module_is_named_by_its_one_rule_or_by_its_family() -> None:
    names = {rule.info.code: docs_of(rule).name.replace("-", "_") for rule in RULES}
    for path, codes in modules().items():
        if len(codes) == 1 and path.stem.startswith("tc"):
            assert path.stem == f"{codes[0].lower()}_{names[codes[0]]}"
        else:
            assert not path.stem.startswith("tc"), f"{path.name} has {codes}"


@rules
def test_class_and_documentation_have_one_name(rule: Rule) -> None:
    assert type(rule).__name__.lower() == docs_of(rule).name.replace("-", "")


def test_names_and_earlier_names_are_unique() -> None:
    docs = [docs_of(rule) for rule in RULES]
    names = [name for each in docs for name in (each.name, *each.aliases)]
    assert len(names) == len(set(names))


@rules
def test_a_broken_run_is_here_for_it(rule: Rule) -> None:
    assert [f.code for f in findings(BROKEN[rule.info.code], rule)] == [rule.info.code]


@rules
def test_the_docstring_has_all_headings_in_order(rule: Rule) -> None:
    text = inspect.cleandoc(type(rule).__doc__ or "")
    summary, *_ = text.splitlines()
    assert re.fullmatch(r"[a-z0-9-]+: .+\.", summary)
    found = re.findall(r"^([A-Z][\w ]+):$", text, re.M)
    assert [heading for heading in found if heading != "Options"] == HEADINGS
    assert "http" in text


@rules
def test_every_option_is_explained(rule: Rule) -> None:
    """An option is a public annotated attribute; ``[rules.CODE]`` of a configuration sets it."""
    options, sections = options_of(rule), docs_of(rule).sections
    assert ("Options" in sections) == bool(options)
    assert all(name in sections["Options"] for name in options)
    assert all(option.form != "a value" for option in options.values()), "a type nobody can write"


@rules
def test_the_information_is_complete(rule: Rule) -> None:
    info = rule.info
    assert info.check_id == info.code
    assert info.kind == "rule"
    assert info.severity in SEVERITIES
    assert info.title
    assert info.likely_cause.endswith(".")
    assert info.fix.endswith(".")
    assert rule.needs.calls or rule.needs.states or rule.needs.kinds


@rules
def test_alone_or_with_the_others_it_says_the_same(rule: Rule) -> None:
    events = BROKEN[rule.info.code]
    found = findings(events, *RULES)
    assert {f.code for f in found} == {rule.info.code}
    assert found == findings(events, rule)


@rules
def test_live_and_replayed_it_says_the_same(rule: Rule) -> None:
    events = BROKEN[rule.info.code]
    monitor = Alone(rule)
    live = [v for event in events for v in monitor.observe(event)] + monitor.finish()
    engine = Engine(rules=[rule])
    for event in events:
        engine.observe(event)
    assert len(live) == engine.finish().findings[0].violations


@rules
def test_a_running_monitor_can_be_sent_to_another_process(rule: Rule) -> None:
    events = BROKEN[rule.info.code]
    half = len(events) // 2
    monitor = Alone(rule)
    seen = [v for event in events[:half] for v in monitor.observe(event)]
    other = pickle.loads(pickle.dumps(monitor))
    seen += [v for event in events[half:] for v in other.observe(event)]
    whole = Alone(rule)
    assert seen == [v for event in events for v in whole.observe(event)]


@rules
def test_monitors_of_two_processes_share_nothing(rule: Rule) -> None:
    first, second = Alone(rule), Alone(rule)
    for event in BROKEN[rule.info.code]:
        first.observe(event)
    assert second.monitor.triggered == 0
    assert first.monitor is not second.monitor


@pytest.mark.parametrize("style", ["A", "B"])
@pytest.mark.parametrize("gaps", [0, 3])
def test_all_are_quiet_on_healthy_runs(style: str, gaps: int) -> None:
    assert findings(healthy_run(4, style=style), *RULES) == []
    sampled = net().steps(2, style=style).skipped_steps(gaps).steps(2, style=style, accumulate=3)
    assert findings(sampled.build(), *RULES) == []


def test_a_run_that_ends_anywhere_is_no_fault() -> None:
    events = healthy_run(3)
    for length in range(len(events)):
        assert findings(events[:length], *RULES) == []


class Offered:
    info = RULES[0].info
    needs = RULES[0].needs

    def monitor(self) -> object:
        return RULES[0].monitor()


def offer(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    entry = EntryPoint(name="theirs", value=f"{__name__}:{name}", group=registry.ENTRY_POINTS)
    monkeypatch.setattr(packages, "entry_points", lambda group: [entry])
    monkeypatch.setattr(EntryPoint, "load", lambda self: globals()[name])


class Another(Offered):
    info = type(RULES[0].info)(
        check_id="XX1", kind="rule", code="XX1", severity="info", title="theirs"
    )


def test_rules_of_other_packages_come_after_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "Another")
    assert [rule.info.code for rule in all_rules()] == [r.info.code for r in RULES] + ["XX1"]


def test_a_code_that_is_taken_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, "Offered")
    with pytest.raises(UsageError, match=f"{RULES[0].info.code}, which exists already"):
        all_rules()


@pytest.mark.parametrize("name", ["HEADINGS", "Path"])
def test_what_is_no_rule_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    offer(monkeypatch, name)
    with pytest.raises(UsageError, match="cannot be used as a rule"):
        all_rules()
