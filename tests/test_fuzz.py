"""Damaged and hostile inputs: a small part of `benchmarks.fuzz`, and all that can lie at a path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.fuzz import mutations
from benchmarks.fuzz.__main__ import run_case
from benchmarks.fuzz.cases import TARGETS, Case, Target, cases
from benchmarks.fuzz.corpus import make_corpus
from traincheck.schema.findings import NOTHING_CHECKED

CASES, PARTS = 100, 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_corpus(tmp_path_factory.mktemp("fuzz") / "corpus")


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS))]
)
def test_no_damaged_input_crashes_or_hangs_a_command(
    part: int, corpus: Path, tmp_path: Path
) -> None:
    for case in cases(20_260_101, CASES):
        if case.number % PARTS == part:
            found = run_case(case, corpus, tmp_path)
            assert found.fault is None, f"{case}\n{found.fault}\n{found.err}"


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: Path(target.path).name)
def test_nothing_else_that_lies_at_a_path_is_read(
    target: Target, corpus: Path, tmp_path: Path
) -> None:
    for number, place in enumerate(mutations.PLACES):
        command = target.commands[number % len(target.commands)]
        case = Case(
            number=number, target=target, way=None, place=place, command=command, seed="places"
        )
        found = run_case(case, corpus, tmp_path)
        assert found.fault is None, f"{case}\n{found.fault}\n{found.err}"


@pytest.mark.parametrize("place", [mutations.fifo, mutations.device, mutations.directory])
@pytest.mark.parametrize("name", ["baseline.json", "config.toml", "invariant.json"])
def test_a_file_that_a_user_names_is_refused_with_its_path(
    place: mutations.Place, name: str, corpus: Path, tmp_path: Path
) -> None:
    (target,) = (one for one in TARGETS if one.path == name)
    case = Case(
        number=0, target=target, way=None, place=place, command=target.commands[0], seed="named"
    )
    found = run_case(case, corpus, tmp_path)
    assert found.status == 2
    assert name in found.err
    assert "it is a" in found.err


def test_what_is_not_damaged_is_read(corpus: Path, tmp_path: Path) -> None:
    for target in TARGETS:
        case = Case(number=0, target=target, way=None, place=None, command=(), seed="none")
        for command in set(target.commands):
            found = run_case(replace(case, command=command), corpus, tmp_path)
            others = {"run": NOTHING_CHECKED, "invariants": 2}  # several begin with the id
            allowed = (0, 1, others.get(command[0], 0))
            assert found.status in allowed, f"{command}\n{found.err}"
            assert found.status != 2 or "begin with" in found.err
