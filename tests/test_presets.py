"""The shipped invariants: a file for each name, of the right form, that speak of any program."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import orjson
import pytest

from tests.builders import SGD, healthy_run
from tests.infer.test_statistics import without_zero_grad
from tests.learning import report_of
from traincheck.errors import UsageError
from traincheck.presets import preset_names, preset_path
from traincheck.relations._table import RELATIONS
from traincheck.schema.invariant_file import SCHEMA_FILE, read_invariants

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = preset_names()


def test_there_is_one_for_each_way_to_train() -> None:
    assert {"accumulation", "amp", "ddp", "pytorch"} <= set(NAMES)
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_an_invariant_file_of_relations_that_there_are(name: str) -> None:
    path = preset_path(name)
    jsonschema.validate(orjson.loads(path.read_bytes()), orjson.loads(SCHEMA_FILE.read_bytes()))
    found = read_invariants(path)
    assert len(found) >= 10
    assert {one.hypothesis.relation for one in found} <= set(RELATIONS)
    for one in found:  # what they need is what the relation needs today
        assert one.needs == RELATIONS[one.hypothesis.relation].needs(one.hypothesis), one.text


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_names_no_program(name: str) -> None:
    document = preset_path(name).read_text(encoding="utf-8")
    assert '"program"' not in document
    assert '.py"' not in document


@pytest.mark.parametrize("name", NAMES)
def test_a_healthy_run_breaks_nothing(name: str) -> None:
    invariants = read_invariants(preset_path(name))
    for run in (healthy_run(20), healthy_run(12, optimizer=SGD, style="B", eval_every=2)):
        assert report_of(invariants, run).findings == []


def test_a_run_that_clears_no_gradients_is_found() -> None:
    (first, *_) = report_of(read_invariants(preset_path("pytorch")), without_zero_grad()).findings
    assert "not cleared" in first.title


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="no preset 'amq'") as caught:
        preset_path("amq")
    assert caught.value.fix is not None
    assert "did you mean amp?" in caught.value.fix
    assert "pytorch" in caught.value.fix
