"""Excerpts of reference runs: which call trees an invariant keeps, and that they are few."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import jsonschema
import orjson
import pytest

from tests.builders import ADAM, MLP, TraceBuilder, healthy_run
from tests.learning import learn
from traincheck.errors import InvariantFormatError
from traincheck.infer.engine import learn_from
from traincheck.infer.excerpts import trees_from_json, trees_json
from traincheck.infer.files import read_statistics, write_statistics
from traincheck.relations.phrasing import STEP
from traincheck.schema.claims import Excerpt, Invariant, without_sampling
from traincheck.schema.invariant_file import SCHEMA_FILE, read_invariants, write_invariants
from traincheck.schema.torch_api import Families

STEP_CLAIM = {"outer": STEP, "inner": Families.OPTIMIZER_STEP}


def step_of(invariants: Iterable[Invariant]) -> Excerpt:
    """The excerpt of the claim that every step holds an optimizer step."""
    found = next(i.excerpt for i in invariants if STEP_CLAIM.items() <= i.hypothesis.params.items())
    assert found is not None
    return found


def lines_of(invariants: Iterable[Invariant]) -> list[str]:
    return [f"{line.depth} {line.api.rpartition('.')[2]}" for line in step_of(invariants).lines]


def test_a_claim_about_steps_keeps_what_a_step_is_like() -> None:
    lines = lines_of(learn(healthy_run(20)).invariants)
    assert lines[0] == "0 zero_grad"
    assert lines[-1] == "0 step"


def test_accumulation_is_told_once() -> None:
    run = TraceBuilder().process().seed().model("Net", MLP).optimizer(ADAM).train()
    format_args = step_of(learn(run.steps(20, accumulate=4).build()).invariants)
    groups = [line for line in format_args.lines if not line.api]
    assert [line.count for line in groups] == [4]


def test_an_evaluation_after_a_step_is_not_part_of_it() -> None:
    plain = learn(healthy_run(20)).invariants
    evaluated = learn(healthy_run(20, eval_every=1)).invariants
    assert lines_of(plain) == lines_of(evaluated)


def test_claims_about_variables_keep_none() -> None:
    invariants = learn(healthy_run(20)).invariants
    changes = [i for i in invariants if "role" in i.hypothesis.params]
    assert changes
    assert all(i.excerpt is None for i in changes)


def test_only_what_a_recording_for_these_invariants_holds_is_kept() -> None:
    invariants = learn(healthy_run(20)).invariants
    known = {name for i in invariants for name in without_sampling(i.needs.calls)}
    for invariant in invariants:
        for line in invariant.excerpt.lines if invariant.excerpt else ():
            assert not line.api or {line.api, line.family} & known


def test_runs_may_come_in_any_order() -> None:
    one, other = healthy_run(20), healthy_run(24, eval_every=3)
    first = learn(one, other)
    again = learn_from(list(reversed(first.statistics)))
    assert again.invariants == first.invariants


def test_each_excerpt_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "invariant.json"
    invariants = list(learn(healthy_run(20)).invariants)
    write_invariants(path, invariants, {}, ["run0"])
    document = orjson.loads(path.read_bytes())
    jsonschema.validate(document, orjson.loads(SCHEMA_FILE.read_bytes()))
    kept = {i.excerpt for i in invariants if i.excerpt is not None}
    assert 0 < len(document["excerpts"]) == len(kept) < len(invariants)
    assert read_invariants(path) == invariants
    first = path.read_bytes()
    write_invariants(path, read_invariants(path), {}, ["run0"])
    assert path.read_bytes() == first


def test_a_file_without_excerpts_is_read(tmp_path: Path) -> None:
    path = tmp_path / "invariant.json"
    write_invariants(path, learn(healthy_run(20)).invariants, {}, [])
    document = orjson.loads(path.read_bytes())
    del document["excerpts"]
    for entry in document["invariants"]:
        entry.pop("excerpt", None)
    path.write_bytes(orjson.dumps(document))
    assert all(invariant.excerpt is None for invariant in read_invariants(path))


@pytest.mark.parametrize(
    ("excerpts", "complaint"),
    [
        ({}, "which the file lacks"),
        ([], "excerpts is a list, not an object"),
        ({"x": {"depth": 0}}, "excerpts[...] has no 'lines'"),
        ({"x": {"depth": 0, "lines": [{"depth": 0}]}}, "lines[0]"),
        ({"x": {"depth": 0, "lines": [{"depth": 0, "api": 3}]}}, "lines[0].api: expected `str`"),
        ({"x": {"depth": True, "lines": []}}, "excerpts[...].depth: expected `int`, got `bool`"),
    ],
)
def test_a_damaged_excerpt_is_named(tmp_path: Path, excerpts: object, complaint: str) -> None:
    path = tmp_path / "invariant.json"
    write_invariants(path, learn(healthy_run(20)).invariants, {}, [])
    document = {**orjson.loads(path.read_bytes()), "excerpts": excerpts}
    path.write_bytes(orjson.dumps(document))
    with pytest.raises(InvariantFormatError, match=str(path)) as caught:
        read_invariants(path)
    assert complaint in str(caught.value)


def test_statistics_keep_the_trees(tmp_path: Path) -> None:
    result = learn(healthy_run(20))
    write_statistics(tmp_path / "stats", result.statistics)
    again = learn_from(read_statistics(tmp_path / "stats"))
    assert again.invariants == result.invariants
    (run,) = result.statistics
    assert trees_from_json(trees_json(run.trees)) == run.trees
    assert isinstance(next(i.excerpt for i in again.invariants if i.excerpt), Excerpt)
