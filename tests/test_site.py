"""The site of the documentation: its groups, the pages that are made for it, and their links.

`make site` builds it, and fails where a link leads nowhere.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from traincheck.rules.table import RULES

pytest.importorskip("mkdocs")
ROOT = Path(__file__).parents[1]
GROUPS = ("Start", "Use", "Understand", "Extend")
_LINK = re.compile(r"^- \[[^\]]+\]\(([^)]+)\)", re.MULTILINE)


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def groups() -> dict[str, list[str]]:
    """The pages of each group, in the order of the navigation."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["strict"]
    return {
        name: [path for row in rows for path in row.values()]
        for group in config["nav"]
        for name, rows in group.items()
    }


def test_there_are_four_groups_with_all_pages(hooks: ModuleType) -> None:
    found = groups()
    assert tuple(found) == GROUPS
    listed = [page for pages in found.values() for page in pages]
    written = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == written | {hooks.CHANGES, hooks.DECISIONS}


def test_the_first_page_lists_the_same_pages(hooks: ModuleType) -> None:
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    elsewhere = {"../CHANGELOG.md": hooks.CHANGES, "adr/": hooks.DECISIONS}
    _, *sections = text.split("\n## ")
    found = {
        section.partition("\n")[0]: [elsewhere.get(link, link) for link in _LINK.findall(section)]
        for section in sections
    }
    expected = groups()
    expected["Start"].remove("index.md")
    assert found == expected


def test_the_first_page_shows_the_output_of_the_readme() -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0]
    assert len(shown.splitlines()) > 5
    assert " ".join(shown.split()) in " ".join(readme.split())
    assert page.split("\n\n")[1] == readme.split("\n\n")[1]  # what it is


def test_the_readme_leads_to_the_groups() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in GROUPS:
        assert f"[{name}](docs/index.md#{name.lower()})" in readme


def test_each_rule_has_a_page(hooks: ModuleType) -> None:
    pages = hooks.made_pages()
    codes = [rule.info.code for rule in RULES]
    assert {f"rules/{code}.md" for code in codes} < set(pages)
    assert pages["rules/TC101.md"].startswith("# TC101 parameter-not-in-optimizer\n")
    assert "## Fires on" in pages["rules/TC101.md"]
    listed = hooks.linked((ROOT / "docs" / "rules.md").read_text(encoding="utf-8"), "rules.md")
    assert re.findall(r"^\| \[(TC\d+)\]\(rules/\1\.md\) \|", listed, re.MULTILINE) == codes


def test_each_decision_is_listed(hooks: ModuleType) -> None:
    page = hooks.made_pages()[hooks.DECISIONS]
    listed = [path for path in _LINK.findall(page) if path.startswith("adr/")]
    assert sorted(listed) == sorted(f"adr/{path.name}" for path in (ROOT / "docs/adr").iterdir())


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("a.md", "[TC030](rules.md#loss-provenance)", "[TC030](rules/TC030.md)"),
        ("a.md", "[rules](rules.md#loss-provenance)", "[rules](rules.md#loss-provenance)"),
        ("rules/TC101.md", "[All rules](../rules.md)", "[All rules](../rules.md)"),
        ("rules/TC101.md", "[TC030](../rules.md)", "[TC030](TC030.md)"),
        ("adr/0001-x.md", "[page](../probes.md#a)", "[page](../probes.md#a)"),
        ("a.md", "[script](../examples/ci/slurm.sh)", "script (`examples/ci/slurm.sh`)"),
        ("a.md", "[`cli/x.py`](../cli/x.py)", "`cli/x.py`"),
        ("a.md", "[changes](../CHANGELOG.md)", "[changes](changelog.md)"),
        ("a.md", "[decisions](adr/)", "[decisions](decisions.md)"),
        ("changelog.md", "[list](docs/rules.md)", "[list](rules.md)"),
        ("a.md", "[x](https://a.b/c.md) [y](#z)", "[x](https://a.b/c.md) [y](#z)"),
        ("a.md", "![picture](gallery/a.png)", "![picture](gallery/a.png)"),
        ("a.md", "```python\n[x](../cli/x.py)\n```", "```python\n[x](../cli/x.py)\n```"),
        ("rules.md", "| TC101 | x |", "| [TC101](rules/TC101.md) | x |"),
    ],
)
def test_a_link_holds_in_the_site(hooks: ModuleType, page: str, text: str, expected: str) -> None:
    assert hooks.linked(text, page) == expected
