"""Changes of pages for the site: mkdocs calls these functions in `make site`, see mkdocs.yml.

A page for each rule is made from the rule. Links that lead somewhere on the pages of the repository
lead there in the site too: codes of rules to their pages, files outside docs/ to nothing but their
names, as the repository has no public address.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))  # mkdocs runs this file, and its neighbour is no package

import generate  # noqa: E402

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_ROW = re.compile(r"^\| (TC\d+) \|", re.MULTILINE)
_CODE = re.compile(r"TC\d+")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
RULES, CHANGES, DECISIONS = "rules.md", "changelog.md", "decisions.md"


def made_pages() -> dict[str, str]:
    """The pages that are in the site alone, by their path in it."""
    return {
        **generate.rule_pages(),
        DECISIONS: decisions_page(),
        CHANGES: (DOCS.parent / "CHANGELOG.md").read_text(encoding="utf-8"),
    }


def decisions_page() -> str:
    """A list of the decision records, the newest first."""
    titles = {
        path.name: path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        for path in (DOCS / "adr").glob("*.md")
    }
    rows = [f"- [{titles[name]}](adr/{name})" for name in sorted(titles, reverse=True)]
    return "\n".join(["# Decisions", "", "Why traincheck is built as it is.", "", *rows, ""])


def linked(text: str, page: str) -> str:
    """The text of a page with links that hold in the site.

    Args:
        text: of the page, in Markdown.
        page: its path in the site.
    """
    if page == RULES:
        text = _ROW.sub(r"| [\1](rules/\1.md) |", text)
    parts = _FENCE.split(text)
    return "".join(
        part if part.startswith("```") else _LINK.sub(lambda found: _link(found, page), part)
        for part in parts
    )


def _link(found: re.Match[str], page: str) -> str:
    """A link as it holds in the site."""
    label, target = found[1], found[2]
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return found[0]
    here = "" if page == CHANGES else "docs"  # the folder of its source in the repository
    name = posixpath.normpath(posixpath.join(here, posixpath.dirname(page), path))
    inside = name.removeprefix("docs/")
    if inside == name and name != "CHANGELOG.md":
        return label if label == f"`{name}`" else f"{label} (`{name}`)"
    inside = CHANGES if name == "CHANGELOG.md" else inside
    inside = DECISIONS if inside == "adr" else inside
    if inside == RULES and _CODE.fullmatch(label):
        inside, anchor = f"rules/{label}.md", ""
    base = posixpath.dirname(page) or "."
    return f"[{label}]({posixpath.relpath(inside, base)}{f'#{anchor}' if anchor else ''})"


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that are made."""
    for path, text in made_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Links of a page as they hold in the site."""
    return linked(markdown, page.file.src_uri)
