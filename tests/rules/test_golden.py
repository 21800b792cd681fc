"""What users read of each rule, on its broken run, as the golden file of its code has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import golden
from tests.checking import fires
from tests.rules.broken import BROKEN
from traincheck.rules.table import RULES

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("code", [rule.info.code for rule in RULES])
def test_the_texts_of_a_rule(code: str, request: pytest.FixtureRequest) -> None:
    update = bool(request.config.getoption("--update-golden"))
    golden.Golden(FOLDER / f"{code}.txt", "BROKEN", update=update)(fires(code, BROKEN[code]))


def with_golden_texts(module: Path) -> set[str]:
    """Names of the tests that compare texts with golden ones."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {f.name for f in functions if "golden" in {a.arg for a in f.args.args}}


@pytest.mark.parametrize("folder", ["rules", "relations"])
def test_there_are_no_golden_texts_without_a_test(folder: str) -> None:
    tests: dict[Path, set[str]] = {}
    for module in FOLDER.parents[1].joinpath(folder).rglob("test_*.py"):
        tests.setdefault(golden.path_for(module), set()).update(with_golden_texts(module))
    for path in FOLDER.parents[1].joinpath(folder, "golden").glob("*.txt"):
        names = {name.partition(" ")[0].partition("[")[0] for name in golden.read(path)}
        assert names - {"BROKEN"} <= tests[path], path.name
