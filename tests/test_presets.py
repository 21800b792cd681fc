"""The shipped invariants: a file for each name, of the right form, that speak of any program."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import orjson
import pytest

from benchmarks.silent_bugs.case import CLEAN
from benchmarks.silent_bugs.recordings import Recordings
from tests.builders import MLP, SGD, TraceBuilder, healthy_run
from tests.infer.test_statistics import without_zero_grad
from tests.learning import learn, report_of
from traincheck.errors import UsageError
from traincheck.presets import preset_names, preset_path
from traincheck.relations.registry import RELATIONS
from traincheck.schema.findings import Verdict
from traincheck.schema.invariant_file import SCHEMA_FILE, read_invariants
from traincheck.store.reader import TraceReader

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


# Programs without a fault that the rules leave alone, of which another program knows nothing
UNUSUAL = (
    "fisher_information", "halves_by_turns", "head_first", "language_model_by_hand", "part_by_hand",
)  # fmt: skip
QUICK = ("updated_by_hand",)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return Recordings(tmp_path_factory.mktemp("unusual"))


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in UNUSUAL)]
)
def test_a_healthy_program_that_trains_in_its_own_way_breaks_nothing(recordings, name):
    """By hand, alternately, or with gradients that no step applies."""
    events = [*TraceReader(recordings.run(CLEAN / f"{name}.py", "python")).events()]
    for preset in NAMES:
        report = report_of(read_invariants(preset_path(preset)), events)
        assert [(f.message, f.step) for f in report.findings] == []
        assert Verdict.HELD in report.verdicts.values()


def test_what_another_program_taught_leaves_updates_by_hand_alone(recordings):
    learned = learn(healthy_run(24))
    by_hand = TraceReader(recordings.run(CLEAN / "updated_by_hand.py", "python")).events()
    assert report_of(learned.invariants, by_hand).findings == []
    unstepped = TraceBuilder().process(argv0="other.py").model("Net", MLP).optimizer().train()
    found = report_of(learned.invariants, unstepped.steps(24, omit={"optimizer_step"}).build())
    assert "no optimizer step applies" in found.findings[0].title
