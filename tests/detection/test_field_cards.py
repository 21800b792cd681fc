"""The field benchmark judges cards: only a line that the clean card lacks may name the cause."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import harness, population
from benchmarks.field import bench, judging
from benchmarks.field.cards import Cards, Seen, judge_card, judge_contrast, markdown
from benchmarks.field.case import load_cases
from benchmarks.silent_bugs.recordings import Recordings
from traincheck.facts.card import card_of
from traincheck.facts.population import read_population, shipped
from traincheck.schema.facts import Fact

CASE = replace(
    load_cases()[0],
    says=(("step",), ("skipped",)),
    facts=(("opt1", "second optimizer"), ("never steps",)),
)
STILL = Fact(kind="loop.optimizers", of="opt1", seen_as="one never steps")
CLIPPED = Fact(kind="loop.clipping", seen_as="none")
SCHEDULE = Fact(kind="loop.schedulers", of="opt0", seen_as="none")


def seen(*facts: Fact, findings: dict[str, str] | None = None) -> Seen:
    return Seen(card_of(facts, shipped()), findings or {})


def test_a_fact_that_the_clean_card_lacks_names_the_cause() -> None:
    line = judge_card(CASE, seen(CLIPPED, STILL), seen(CLIPPED))
    assert (line["verdict"], line["position"], line["by"]) == (judging.RIGHT, 1, "fact")
    assert line["is_unusual"]


def test_a_line_of_both_cards_counts_for_nothing() -> None:
    later = replace(STILL, where="train.py:9", count=3, looks=70)
    assert judge_card(CASE, seen(STILL), seen(later))["verdict"] == judging.NOTHING


def test_a_line_in_other_numbers_is_the_same() -> None:
    many, few = (
        Fact(kind="loop.zero_grad", of=name, seen_as="several", values={"most": n})
        for name, n in (("opt0", 30), ("opt1", 2))
    )
    few, many = (replace(one, values={"of": "opt0", **one.values}) for one in (few, many))
    case = replace(CASE, facts=(("zero_grad",),))
    assert judge_card(case, seen(many), seen(few))["position"] is None
    assert judge_card(case, seen(many), seen(CLIPPED))["position"] == 1


def test_words_of_another_line_do_not_help() -> None:
    case = replace(CASE, facts=(("never steps",), ("clipped",)))
    assert judge_card(case, seen(CLIPPED, STILL), seen())["position"] is None


def test_a_contrast_names_the_cause_by_one_line_of_either_side() -> None:
    fine = replace(STILL, seen_as="all step", values={"number": 2})
    line = judge_contrast(CASE, seen(CLIPPED, fine), seen(CLIPPED, STILL), seen(CLIPPED, fine))
    assert (line["verdict"], line["lines"], line["lines without a bug"]) == (judging.RIGHT, 1, 0)
    same = judge_contrast(CASE, seen(CLIPPED), seen(CLIPPED), seen(SCHEDULE))
    assert (same["verdict"], same["lines"], same["lines without a bug"]) == (judging.NOTHING, 0, 2)


def test_the_table_has_a_row_for_each_case() -> None:
    card = judge_card(CASE, seen(CLIPPED, STILL), seen(CLIPPED))
    lines = [{**card, "name": CASE.name, "mode": judging.FACTS}]
    *_, row = markdown([CASE], lines).splitlines()
    cells = [cell.strip() for cell in row.split("|")][1:-1]
    assert cells[2:] == ["right cause, loop.optimizers", "1", "not run", ""]
    assert f"cases/{CASE.name}/case.json" in cells[0]


def test_totals_count_places_and_what_named_the_cause() -> None:
    line = {"population": "known", "mode": judging.FACTS, "verdict": judging.RIGHT, "alarms": []}
    lines = [
        {**line, "position": 8, "by": "fact", "is_unusual": False, "lines": 3},
        {**line, "position": 5, "by": "finding", "is_unusual": True, "lines": 9},
        {**line, "position": 9, "by": "fact", "is_unusual": False, "lines": 4},
    ]
    (row,) = judging.totals(lines)
    assert (row["in 5"], row["in 8"], row["by fact"], row["by finding"]) == (1, 2, 2, 1)
    assert (row["unusual"], row["lines"], row["lines without a bug"]) == (1, 4, None)


def test_what_is_not_recorded_is_an_error_where_nothing_may_be_recorded(tmp_path: Path) -> None:
    cards = Cards(Recordings(tmp_path, is_complete=True))
    for mode in (judging.FACTS, judging.CONTRAST):
        line = bench.outcome(
            bench.Trial(mode=mode, case=CASE), None, bench.How(view="full", references=1), cards
        )
        assert "is not recorded in" in line["error"]
    assert list(tmp_path.iterdir()) == []


def test_only_kept_recordings_of_run_can_be_judged_without_running(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        bench.main(["--mode", "rules", "--recorded", "none"])
    assert "--recorded needs --mode" in capsys.readouterr().err


# -- the population


def test_there_are_enough_healthy_programs_each_once() -> None:
    found = population.programs()
    assert len(found) >= population.ENOUGH
    assert len({one.script for one in found}) == len(found)
    assert all(one.script.is_file() for one in found)
    assert not [one for one in found if one.script.name == "buggy.py"]


class _Recorded(Recordings):
    """Recordings of a program that runs, one that fails, and one whose package is missing."""

    def kept(self, script: Path, launcher: str, *, is_reseeded: bool = False) -> Path:
        if script.stem in ("fails", "lacks"):
            kind = "ModuleNotFoundError" if script.stem == "lacks" else "ValueError"
            raise harness.CommandFailedError(f"Traceback:\n{kind}: no such thing")
        return script


@pytest.mark.parametrize(
    ("names", "status", "said"),
    [
        (("runs", "lacks"), 0, "1 of 2 programs counted"),
        (("runs", "fails"), 1, "fails: ValueError: no such thing"),
        (("lacks",), 1, "lacks: ModuleNotFoundError: no such thing"),
    ],
)
def test_programs_that_cannot_run_here_are_named(
    names: Sequence[str],
    status: int,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    todo = [population.Program(Path(name), "python") for name in names]
    monkeypatch.setattr(population, "programs", lambda: todo)
    monkeypatch.setattr(
        population,
        "count",
        lambda found, folder, _: {
            one: population.counted(one, _Recorded(folder), _Here()) for one in found
        },
    )
    out = tmp_path / "counts.json"
    assert population.main(["--only", "s", "--out", str(out)]) == status
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    assert out.exists() == (status == 0)
    if out.exists():
        assert read_population(out).programs == 1


class _Here(population.Executor):
    """Reads the facts of a run at once, which are always the same."""

    def submit(self, *_: object, **__: object) -> _Here:  # type: ignore[override]
        return self

    def result(self) -> list[Fact]:
        return [CLIPPED]


def test_the_shipped_counts_are_not_replaced_by_those_of_a_few(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = population.OUT.read_bytes()
    with pytest.raises(SystemExit):
        population.main(["--only", "gan"])
    assert "--only needs --out" in capsys.readouterr().err
    assert population.OUT.read_bytes() == before
