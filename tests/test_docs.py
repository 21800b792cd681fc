"""The documents say what the program does: pages are fresh, examples run, links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests import warm
from tests.together import together
from traincheck.cli.main import main
from traincheck.schema import events

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
TAUGHT = "codes"  # the command that docs/adding-a-command.md adds
FORBIDDEN_WORDS = ("anomaly", "anomalies")
TRAIN = """
import argparse, os, torch
from torch import distributed, nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.05)
torch.manual_seed(0)
model = nn.Linear(4, 2)
if "RANK" in os.environ:
    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=parser.parse_args().lr)
for _ in range(8):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.arange(8) % 2).backward()
    optimizer.step()
"""
_SH_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("tests/*.md")]
    return sorted([*found, *ROOT.glob("examples/*.md")])


def names(paths: list[Path]) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in paths]


def load(name: str) -> ModuleType:
    """A program in docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, "environment"):  # of shells: their commands are copies of the warm process
        plain = module.environment
        path = f"{warm.commands()}{os.pathsep}{plain()['PATH']}"
        module.environment = lambda: {**plain(), "PATH": path}
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


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each command line of ours in a page: in blocks and in inline code."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").split("\n")]
    for line in (*lines, *re.findall(r"`([^`]+)`", prose)):
        found = re.match(r"\s*(?:\$ )?traincheck[ -]([a-z].*)", line)
        if found:
            yield re.split(r"[|;#&>]|  ", found[1])[0].split()


def not_ours(words: Sequence[str]) -> str:
    """The first word of a command line that is no command or option of traincheck."""
    command: click.Command = main
    while isinstance(command, click.Group) and words:
        name, *words = words
        if name.startswith("-"):
            return ""
        if name not in command.commands:
            return "" if name == TAUGHT else name
        command = command.commands[name]
    known = {"-h", "--help", *(name for each in command.params for name in each.opts)}
    for word in (word.rstrip(".,") for word in words):
        if word == "--" or word.endswith(".py"):
            return ""  # options of the program follow
        if word.startswith("-") and word.partition("=")[0] not in known:
            return word
    return ""


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("traincheck run --halt train.py --made-up", ""),
        ("traincheck run --made-up train.py", "--made-up"),
        ("traincheck lint traces", "lint"),
        ("traincheck-check -t traces --made-up", "--made-up"),
        ("traincheck invariants lists", "lists"),
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str, wrong: str) -> None:
    for text in (f"see `{line}`.", f"```sh\n{line}\n```\n"):
        assert [not_ours(words) for words in commands_in(text)] == [wrong]


@together("page", names(pages()))
def test_every_command_in_the_pages_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {wrong for words in commands_in(text) if (wrong := not_ours(words))} == set()


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


@together("page", names(pages()))
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = _LINK.findall(path.read_text(encoding="utf-8"))
    broken = [t for t in targets if "://" not in t and not (path.parent / t).exists()]
    assert not broken


def test_a_link_to_a_rule_leads_to_its_theme() -> None:
    """Pages of rules are in the site alone; the list in the repository has headings of themes."""
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    themes = {}
    for section in text.split("\n## ")[1:]:
        heading = re.sub(r"[^a-z -]", "", section.partition("\n")[0].lower()).replace(" ", "-")
        themes |= dict.fromkeys(re.findall(r"^\| (TC\d+) ", section, re.MULTILINE), heading)
    found = [
        link
        for path in pages()
        for link in re.findall(
            r"\[(TC\d+)\]\([./a-z]*rules\.md#([^)]*)\)", path.read_text(encoding="utf-8")
        )
    ]
    assert len(found) > 10
    assert all(themes[code] == heading for code, heading in found)


@together("page", names(pages()))
def test_words_are_those_of_the_glossary(page: str) -> None:
    words = set(re.findall(r"\w+", (ROOT / page).read_text(encoding="utf-8").lower()))
    assert not words & set(FORBIDDEN_WORDS)


def test_every_word_of_the_event_schema_is_in_the_format_page() -> None:
    text = (ROOT / "docs" / "trace-format.md").read_text(encoding="utf-8")
    assert all(f"### {kind}\n" in text for kind in events.KINDS)


def test_the_examples_run_and_say_what_the_pages_show() -> None:
    """Numbers are left out: losses differ from one machine to another."""
    example = load("readme_example")
    shown = [page.read_text(encoding="utf-8") for page in example.PAGES]
    assert README in example.PAGES
    for now, before in zip(example.rendered(shown), shown):
        assert telling(now) == telling(before), "run `make docs`"


def test_a_stale_output_in_a_page_is_replaced() -> None:
    page = "```bash\necho new; pwd\n```\n\n```console\nold\n```\n"
    (now,) = load("readme_example").rendered([page])
    assert now == "```bash\necho new; pwd\n```\n\n```console\nnew\n/home/you\n```\n"


def test_an_output_is_cut_where_the_page_says_so() -> None:
    page = "```bash\nseq 5\n```\n\n```console\nold\nold\n...\n```\n"
    (now,) = load("readme_example").rendered([page])
    assert now == "```bash\nseq 5\n```\n\n```console\n1\n2\n...\n```\n"


def test_a_command_that_fails_is_not_shown() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        load("readme_example").rendered(["```bash\nexit 2\n```\n"])


def test_the_first_screen_of_the_readme() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert any(line.startswith("traincheck run ") for line in lines[:25])
    assert "built-in rules" in "\n".join(lines[:10])
    assert len(lines) < 150


def test_the_readme_counts_nothing_that_grows() -> None:
    """A branch that adds a rule, a test or a module must not conflict with another one there."""
    text = README.read_text(encoding="utf-8")
    assert not re.findall(
        r"\d[\d,.]*\s+(?:\S+\s+)?(?:rules|relations|checks|modules|tests)\b", text
    )


@pytest.mark.slow  # seven commands that load torch
def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    """The commands in `sh` blocks, on a script of the reader; those that install are only named."""
    example = load("readme_example")
    (tmp_path / "package").mkdir()
    for name in ("train.py", "package/train.py"):
        (tmp_path / name).write_text(TRAIN, encoding="utf-8")
    blocks = _SH_BLOCK.findall(README.read_text(encoding="utf-8"))
    lines = [line for block in blocks for line in block.splitlines()]
    ours = [line for line in lines if line.startswith("traincheck")]
    assert len(ours) >= 7
    for line in ours:
        assert "nothing was checked" not in example.run(f"{line} || test $? = 1", tmp_path)
    installing = [line.partition("#")[0].strip() for line in lines if line not in ours]
    extras = [line.partition("[")[2].partition("]")[0] for line in installing if "[" in line]
    assert set(extras) == {"torch", "transformers"}
    assert {line for line in installing if "[" not in line} == {"pip install .", "make install"}


def telling(text: str) -> list[str]:
    """The words of a page, without numbers and line breaks."""
    return re.sub(r"\d[\d.,]*", "#", text).split()
