"""The documents say what the program does: pages are fresh, examples run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from traincheck.schema import events

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FORBIDDEN_WORDS = ("anomaly", "anomalies")
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("tests/*.md")])


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def load(name: str) -> ModuleType:
    """A program in docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load("generate")


def test_generated_pages_are_fresh(generator: ModuleType) -> None:
    stale = [
        path.name
        for path, text in generator.pages().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert not stale, "run `make docs`"
    assert not generator.left_over(), "run `make docs`"


def test_a_stale_section_is_replaced(generator: ModuleType) -> None:
    text = "a\n<!-- begin generated: x -->\nold\n<!-- end generated: x -->\nb\n"
    assert "old" not in generator.replaced(text, "x", "new")
    assert generator.replaced(text, "x", "new").startswith("a\n")
    assert generator.replaced(text, "x", "new").endswith("-->\nb\n")


def test_every_field_of_every_event_is_explained(generator: ModuleType) -> None:
    for event_type in events.EVENT_TYPES:
        own = set(event_type.__struct_fields__[len(generator.HEADER) - 1 :])
        assert own <= set(generator.described(event_type.__doc__)), event_type.__name__


def test_every_command_has_help(generator: ModuleType) -> None:
    missing = []
    for name, command in generator.commands():
        if not command.help:
            missing.append(name)
        missing += [
            f"{name} {option.opts[-1]}"
            for option in command.params
            if option.param_type_name == "option" and not option.help
        ]
    assert not missing


@pytest.mark.parametrize("page", names(pages()))
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = _LINK.findall(path.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not broken


@pytest.mark.parametrize("page", names(pages()))
def test_words_are_those_of_the_glossary(page: str) -> None:
    words = set(re.findall(r"\w+", (ROOT / page).read_text(encoding="utf-8").lower()))
    assert not words & set(FORBIDDEN_WORDS)


def test_every_word_of_the_event_schema_is_in_the_format_page() -> None:
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    assert all(f"### {kind}\n" in text for kind in events.KINDS)


def test_the_readme_example_runs_and_says_what_it_shows() -> None:
    """Numbers are left out: losses differ from one machine to another."""
    shown = README.read_text(encoding="utf-8")
    now = load("readme_example").rendered(shown)
    assert telling(now) == telling(shown), "run `make docs`"


def test_a_stale_output_in_the_readme_is_replaced() -> None:
    page = "```bash\necho new; pwd\n```\n\n```console\nold\n```\n"
    now = load("readme_example").rendered(page)
    assert now == "```bash\necho new; pwd\n```\n\n```console\nnew\n/home/you\n```\n"


def telling(text: str) -> list[str]:
    """The words of a page, without numbers and line breaks."""
    return re.sub(r"\d[\d.,]*", "#", text).split()
