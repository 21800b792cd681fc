"""No number has two readers, and nothing about it is worded twice."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from traincheck.readings.quantities import QUANTITIES
from traincheck.readings.recorded import Numbers
from traincheck.schema.probes.words import EXPERIMENTS
from traincheck.schema.values import STATS

SOURCE = Path(__file__).parents[2] / "traincheck"
JUDGES = ("readings", "relations", "rules")
# Numbers of tensors that say one thing; others, such as an element, mean what their tensor means.
TELLING = STATS.keys() - {"min", "max", "mean", "std", "zeros", "alike", "top", "columns", "fed"}
OF_BATCHES = {"padding", "attended_padding", "lost_end"}
# A rule by its module, and the functions of readings/ by which it reads what *bounded* reads, too.
SHARED = {
    Numbers.NON_FINITE: ({"non_finite", "loss_of"}, "numerics/tc701_non_finite_value.py"),
    Numbers.LOSS_SCALE: ({"scale_of"}, "step_window/accumulation.py"),
    Numbers.SMALLEST: ({"bounds", "are_distributions"}, "losses/probabilities.py"),
    Numbers.LARGEST: ({"bounds"}, "losses/tc330_target_out_of_range.py"),
    Numbers.CLIPPED_NORM: ({"clipped_norm"}, "step_window/tc224_clip_grad_without_gradients.py"),
    Numbers.DEAD: ({"dead"}, "numerics/units.py"),
    Numbers.SATURATED: ({"saturated"}, "numerics/units.py"),
    Numbers.CLASSES: ({"class_count"}, "losses/labels.py"),
    Numbers.AHEAD: ({"ahead"}, "losses/shifts.py"),
    Numbers.LEFT_OUT: ({"ignored", "ignored_label"}, "losses/token_labels.py"),
    Numbers.END_TOKEN: ({"lost_end"}, "losses/token_labels.py"),
    Numbers.MASK: ({"excluded", "padding"}, "attention/masks.py"),
    Numbers.PADDING: ({"attended_padding"}, "batch_content/tokens.py"),
    Numbers.HIDDEN: ({"hidden"}, "shared/causality.py"),
}


@cache
def trees(*packages: str) -> dict[str, ast.Module]:
    """The modules of some packages, by path."""
    return {
        path.relative_to(SOURCE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for package in packages
        for path in sorted((SOURCE / package).rglob("*.py"))
    }


@cache
def names() -> dict[str, set[str]]:
    """What each module of those that judge names, by path."""
    return {
        path: {
            node.attr if isinstance(node, ast.Attribute) else node.id
            for node in ast.walk(tree)
            if isinstance(node, (ast.Attribute, ast.Name))
        }
        for path, tree in trees(*JUDGES).items()
    }


def test_each_recorded_number_is_read_by_one_function() -> None:
    found = defaultdict(set)
    for path, tree in trees(*JUDGES).items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    read = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                    if isinstance(node, ast.Call) and read.endswith((".get", "number")):
                        keys = node.args[:2] if not read.startswith("call.args") else []
                    else:
                        keys = [node.slice] if isinstance(node, ast.Subscript) else []
                    for key in keys:
                        if isinstance(key, ast.Constant):
                            found[key.value].add(f"{path}:{function.name}")
    readers = {name: places for name, places in found.items() if name in TELLING | OF_BATCHES}
    assert {name: places for name, places in readers.items() if len(places) > 1} == {}
    assert readers.keys() == (TELLING | OF_BATCHES)


@pytest.mark.parametrize("quantity", SHARED)
def test_a_rule_reads_what_the_relation_reads(quantity: str) -> None:
    functions, rule = SHARED[quantity]
    assert functions <= names()[f"rules/{rule}"]
    readings = [used for path, used in names().items() if path.startswith("readings/")]
    assert functions <= set().union(*readings) | {"are_distributions", "bounds"}


def test_every_quantity_has_one_row() -> None:
    assert {v for n, v in vars(Numbers).items() if n.isupper()} == QUANTITIES.keys()


def long_texts(tree: ast.Module) -> Iterator[str]:
    """Texts of four words or more that a person reads; docstrings are none of them."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docs else None
        if isinstance(text, str) and len(re.findall(r"\w+ ", text)) > 4:
            yield text


def test_no_experiment_and_no_quantity_is_worded_twice() -> None:
    places = defaultdict(set)
    for path, tree in trees(*JUDGES, "schema", "diff", "check", "report").items():
        for text in long_texts(tree):
            places[text].add(path)
    words = {
        text
        for row in (*QUANTITIES.values(), *EXPERIMENTS.values())
        for text in (row.headline, row.cause, row.fix)
        if text
    }
    twice = {
        text: sorted(found) for text, found in places.items() if text in words and len(found) > 1
    }
    assert twice == {}
