"""The architecture, enforced on the syntax tree: who imports whom, and how big things may get."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from traincheck.relations.registry import RELATIONS

ROOT = Path(__file__).parents[1]
# What traincheck/__init__.py offers by name.
OFFERED = ("diff", "integrations", "profile", "store", "version")
LAYERS = (
    ("errors", "handlers", "instrumentor", "version"),
    ("packages",),
    ("schema",),
    ("collect", "store"),
    ("readings",),
    ("relations", "rules"),
    ("check",),
    ("infer", "diff", "facts", "metrics", "profile"),
    ("report",),
    ("config", "presets"),
    ("api", "testing"),
    ("page", "receivers"),
    ("live", "perfetto", "sinks"),
    ("integrations",),
    ("cli",),
)
# Within collect/: the same, for its packages and the modules beside them.
COLLECT_LAYERS = (
    ("listeners", "masking", "templates"),
    ("tensors", "steps", "launch"),
    ("trace_writer",),
    ("moments",),
    ("stats", "monitor"),
    ("tracking",),
    ("context",),
    ("active_session", "observers"),
    ("probes",),
    ("instruments", "profile"),
    ("session",),
)
# Within check/.
CHECK_LAYERS = (
    ("verdicts", "grouping", "suppression"),
    ("monitors", "wording"),
    ("context", "run_overview"),
    ("finding_builder", "process"),
    ("engine",),
)
ORDERS = {
    "traincheck": LAYERS,
    "traincheck.collect": COLLECT_LAYERS,
    "traincheck.check": CHECK_LAYERS,
}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
MODULE_LINES = 600
FUNCTION_LINES = 100
COLLECT_METHODS = 12  # public, of a class
COLLECT_FUNCTION_LINES_P90 = 25
LEVEL_MODULES = 30
RULE_LINES = 300
RELATION_LINES = 1_400  # of all its modules
HOT_PATH_LINES = 300
HOT_PATH = ("collect/trace_writer/emitter.py", "collect/tensors/summarize.py")
TORCH_LAYER = "collect"
# What training may load besides the standard library; sitecustomize is the user's own.
LIGHT = {"torch", "orjson", "xxhash", "sitecustomize"}


def modules() -> list[Path]:
    return sorted([*(ROOT / "traincheck").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def dotted(path: Path, root: Path = ROOT) -> str:
    """Import name of a module: `cli/main.py` is `traincheck.cli.main`."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[0] == "cli":
        parts = ("traincheck", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PACKAGES = {dotted(path.parent) for path in modules() if path.name == "__init__.py"} | {
    "traincheck.cli"
}


def layer(name: str) -> str | None:
    """The layer that a module belongs to; None for the package itself and what is not ours."""
    head, _, rest = name.partition(".")
    if head == "cli" or name == "traincheck.__main__":
        return "cli"
    return (rest.partition(".")[0] or None) if head == "traincheck" else None


@dataclass(frozen=True)
class Parsed:
    """What the tests ask of a module. All trees at once would take a gigabyte.

    Attributes:
        imports: the statements, also inside functions; at_run_time: without those that only type
            checkers see.
        functions: with their lines. classes: with their public methods.
        globals: lines of such statements.
    """

    imports: list[ast.AST]
    at_run_time: list[ast.AST]
    functions: list[tuple[str, int]]
    classes: list[tuple[str, int]]
    globals: list[int]
    is_documented: bool


@cache
def parsed(path: Path) -> Parsed:
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    # How objects look in a notebook, page/ alone knows: that import may lead upward.
    of_notebooks = {
        each
        for node in nodes
        if isinstance(node, ast.FunctionDef) and node.name == "_repr_html_"
        for each in ast.walk(node)
    }
    imports = [
        node
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in of_notebooks
    ]
    of_types: set[ast.AST] = set()
    for node in nodes if "TYPE_CHECKING" in source else ():
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            of_types.update(each for statement in node.body for each in ast.walk(statement))
    return Parsed(
        imports,
        [node for node in imports if node not in of_types],
        list(function_sizes(nodes)),
        list(public_methods(nodes)),
        [node.lineno for node in nodes if isinstance(node, ast.Global)],
        bool(ast.get_docstring(tree)),
    )


def nodes_of(source: str) -> Iterator[ast.AST]:
    return ast.walk(ast.parse(source))


def imports(nodes: Iterable[ast.AST], module: str, is_package: bool) -> Iterator[str]:
    """Every dotted name that is imported."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + (1 if is_package else 0)]
                base = ".".join([*parts, base] if base else parts)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def upward(nodes: Iterable[ast.AST], module: str) -> set[str]:
    """Layers that `module` must not import and does."""
    own = layer(module)
    found = {layer(name) for name in imports(nodes, module, is_package=False)}
    if own not in RANK:  # traincheck/__init__.py, which loads what it offers when it is asked for
        return {name for name in found if name and name not in OFFERED}
    return {name for name in found if name in RANK and name != own and RANK[name] >= RANK[own]}


def part(name: str, package: str) -> str | None:
    """What of a package a dotted name belongs to; None for the package itself and others."""
    head, _, rest = name.partition(f"{package}.")
    return rest.partition(".")[0] if not head and rest else None


def out_of_order(nodes: Iterable[ast.AST], module: str, package: str) -> set[str]:
    """Parts of the same package that `module` imports, and that stand beside or after its own."""
    rank = {name: rank for rank, names in enumerate(ORDERS[package]) for name in names}
    own = part(module, package)
    if own is None:
        return set()
    found = {part(name, package) for name in imports(nodes, module, is_package=False)}
    return {name for name in found if name and name != own and rank[name] >= rank[own]}


def function_sizes(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Some import cycle, or nothing."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            found = walk(other, [*path, name])
            if found:
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def own_imports(path: Path, known: set[str], *, types: bool = True) -> set[str]:
    """Our modules that `path` imports; a package stands for its own `__init__`.

    types: also those that only type checkers see.
    """
    name = dotted(path)
    nodes = parsed(path).imports if types else parsed(path).at_run_time
    found = set()
    for target in imports(nodes, name, path.name == "__init__.py"):
        match = target if target in known else target.rpartition(".")[0]
        if match in known and match != name:
            found.add(match)
    return found


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_every_layer_imports_only_from_its_left() -> None:
    broken = {
        relative(path): found
        for path in modules()
        if (found := upward(parsed(path).imports, dotted(path)))
    }
    assert not broken


@pytest.mark.parametrize("package", ["traincheck.collect", "traincheck.check"])
def test_packages_import_in_one_direction(package: str) -> None:
    broken = {
        relative(path): found
        for path in modules()
        if "bootstrap"
        not in path.parts  # what is put on the path of a child: it starts the session
        if (found := out_of_order(parsed(path).imports, dotted(path), package))
    }
    assert not broken


def test_an_import_out_of_order_is_seen() -> None:
    nodes = list(nodes_of("from traincheck.collect.tracking import tracker"))
    package = "traincheck.collect"
    assert out_of_order(nodes, f"{package}.stats.x", package) == {"tracking"}
    assert not out_of_order(nodes, f"{package}.session.x", package)


def test_every_folder_has_a_layer() -> None:
    folders = {layer(dotted(path)) for path in modules() if dotted(path) != "traincheck"}
    assert folders <= set(RANK), "add the new folder to LAYERS"


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("traincheck.store.reader", "from traincheck.rules import registry"),
        ("traincheck.readings.provider", "from traincheck.relations import bounded"),
        ("traincheck.store.reader", "import traincheck.collect.trace_writer.emitter"),
        ("traincheck.check.engine", "def late():\n    from traincheck import report"),
        ("traincheck.infer.engine", "from traincheck.cli import main"),
        ("traincheck.infer.engine", "import cli.main"),
    ],
)
def test_an_import_from_the_right_is_seen(module: str, source: str) -> None:
    assert upward(nodes_of(source), module)


def test_an_import_from_the_left_is_fine() -> None:
    nodes = nodes_of("from traincheck.schema import events\nimport orjson")
    assert not upward(nodes, "traincheck.store.reader")


def test_readings_give_no_verdicts() -> None:
    words = (".Subject", ".Symptom", ".Topic")  # of the table of quantities
    judging = {
        relative(path): name
        for path in (ROOT / "traincheck" / "readings").rglob("*.py")
        for name in imports(parsed(path).imports, dotted(path), False)
        if name.startswith("traincheck.schema.findings") and not name.endswith(words)
    }
    assert not judging


def test_no_import_cycles() -> None:
    known = {dotted(path) for path in modules()}
    assert not cycle({dotted(path): own_imports(path, known) for path in modules()})


def foreign(path: Path) -> set[str]:
    """Packages that `path` imports which are neither ours nor Python's."""
    names = imports(parsed(path).imports, dotted(path), is_package=False)
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"traincheck"}


def test_what_training_loads_is_light() -> None:
    known = {dotted(path): path for path in modules()}
    graph = {name: own_imports(path, set(known), types=False) for name, path in known.items()}
    loaded = {name for name in known if layer(name) == TORCH_LAYER}
    while more := {other for name in loaded for other in graph[name]} - loaded:
        loaded |= more
    assert "traincheck.schema.claims" in loaded
    heavy = {name: found for name in loaded if (found := foreign(known[name]) - LIGHT)}
    assert not heavy


def test_a_heavy_import_is_seen() -> None:
    assert foreign(ROOT / "traincheck" / "schema" / "record.py") == {"msgspec"}


def test_a_cycle_is_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert not cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_only_collect_imports_torch() -> None:
    importing = {
        relative(path)
        for path in modules()
        for name in imports(parsed(path).imports, dotted(path), False)
        if name.split(".")[0] == "torch" and layer(dotted(path)) != TORCH_LAYER
    }
    assert not importing


def line_limit(path: Path) -> int:
    inside = relative(path).removeprefix("traincheck/")
    if inside in HOT_PATH:
        return HOT_PATH_LINES
    return RULE_LINES if re.match(r"rules/\w+/", inside) else MODULE_LINES


def test_no_module_is_too_long() -> None:
    sizes = {
        relative(path): lines
        for path in modules()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > line_limit(path)
    }
    assert not sizes


def relation_modules() -> dict[str, list[Path]]:
    """The modules of each relation: one file, or a folder. What several share is not among them."""
    folder = ROOT / "traincheck" / "relations"
    return {
        name: [folder / f"{name}.py"]
        if (folder / f"{name}.py").exists()
        else [*(folder / name).glob("*.py")]
        for name in RELATIONS
    }


def test_no_relation_is_too_long() -> None:
    sizes = {
        name: sum(len(path.read_text("utf-8").splitlines()) for path in paths)
        for name, paths in relation_modules().items()
    }
    assert min(sizes.values()) > 0
    assert not {name: lines for name, lines in sizes.items() if lines > RELATION_LINES}


def other_relations(nodes: Iterable[ast.AST], module: str, packages: set[str]) -> set[str]:
    """Other relations that a module of one relation imports."""
    own = part(module, "traincheck.relations")
    found = {part(name, "traincheck.relations") for name in imports(nodes, module, False)}
    return {name for name in found if name in packages - {own}}


def test_no_relation_imports_another() -> None:
    packages = set(relation_modules())
    broken = {
        relative(path): found
        for path in (ROOT / "traincheck" / "relations").rglob("*.py")
        if path.name != "registry.py"
        and (found := other_relations(parsed(path).imports, dotted(path), packages))
    }
    assert not broken


def test_an_import_of_another_relation_is_seen() -> None:
    nodes = list(nodes_of("from traincheck.relations.count.proposer import CallWindow"))
    module, packages = "traincheck.relations.schedule", {"count", "schedule"}
    assert other_relations(nodes, module, packages) == {"count"}
    assert not other_relations(nodes, "traincheck.relations.count.decider", packages)


def test_no_level_of_a_package_has_too_many_modules() -> None:
    sizes = Counter(path.parent for path in modules())
    assert not {relative(path): count for path, count in sizes.items() if count > LEVEL_MODULES}


def foreign_private(nodes: Iterable[ast.AST], module: str) -> set[str]:
    """Modules with a leading underscore, of another package, that `module` imports."""
    own = module.rpartition(".")[0]
    return {
        target
        for target in imports(nodes, module, is_package=False)
        if (found := re.match(r"(traincheck(?:\.\w+)*?)\._[a-z]", target))
        and found[1] in PACKAGES - {own}
    }


def test_no_private_module_of_another_package_is_imported() -> None:
    broken = {
        relative(path): found
        for path in modules()
        if (found := foreign_private(parsed(path).imports, dotted(path)))
    }
    assert not broken


def test_an_import_of_a_private_module_is_seen() -> None:
    nodes = list(nodes_of("from traincheck.collect.instruments import _wrap"))
    assert foreign_private(nodes, "traincheck.collect.session.session")
    assert not foreign_private(nodes, "traincheck.collect.instruments.data")


def test_no_function_is_too_long() -> None:
    sizes = {
        f"{relative(path)}:{name}": lines
        for path in modules()
        for name, lines in parsed(path).functions
        if lines > FUNCTION_LINES
    }
    assert not sizes


def public_methods(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    """Classes with their numbers of public methods; properties are not counted."""
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            own = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name[0] != "_"]
            yield node.name, sum(not m.decorator_list for m in own)


def collecting() -> dict[str, Parsed]:
    return {
        relative(path): parsed(path) for path in (ROOT / "traincheck" / "collect").rglob("*.py")
    }


def test_no_class_of_collect_has_too_many_methods() -> None:
    sizes = {
        f"{name}:{cls}": methods
        for name, module in collecting().items()
        for cls, methods in module.classes
        if methods > COLLECT_METHODS
    }
    assert not sizes


def test_methods_are_counted() -> None:
    source = "class A:\n def a(self): ...\n def _b(self): ...\n @property\n def c(self): ..."
    assert list(public_methods(nodes_of(source))) == [("A", 1)]


def test_functions_of_collect_are_short() -> None:
    lines = sorted(n for module in collecting().values() for _, n in module.functions)
    assert lines[len(lines) * 9 // 10] <= COLLECT_FUNCTION_LINES_P90


def test_no_global_statements() -> None:
    found = [f"{relative(path)}:{line}" for path in modules() for line in parsed(path).globals]
    assert not found


def test_every_module_says_what_it_is() -> None:
    silent = [relative(path) for path in modules() if not parsed(path).is_documented]
    assert not silent
