"""How facts are ordered, worded and compared."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from tests.checking import net
from traincheck.diff.sources import Program, Source
from traincheck.errors import UsageError
from traincheck.facts.book import facts_of
from traincheck.facts.card import Card, Line, card_of
from traincheck.facts.compare import contrasts
from traincheck.facts.kinds import PARTS, Kind, Kinds, number_text
from traincheck.facts.population import (
    UNUSUAL,
    Population,
    encoded,
    population_of,
    rarity_of,
    read_population,
    shipped,
)
from traincheck.facts.table import KINDS
from traincheck.report.facts import (
    facts_json,
    write_annotated_text,
    write_contrasts_text,
    write_facts_markdown,
    write_facts_text,
)
from traincheck.report.facts_source import annotated
from traincheck.schema.facts import Fact

HEALTHY = facts_of(net().steps(6).build())
UNCLEARED = facts_of(net().steps(6, omit=("zero_grad",)).build())


def card(facts: list[Fact]) -> Card:
    return card_of(facts, shipped())


def text_of(facts: list[Fact]) -> str:
    stream = io.StringIO()
    write_facts_text(card(facts), stream)
    return stream.getvalue()


# -- rarity


def test_what_no_program_shows_is_rarer_the_more_could_show_it() -> None:
    assert rarity_of(0, 200, 200) < rarity_of(0, 20, 200) < rarity_of(0, 2, 200)
    assert rarity_of(0, 200, 200) < rarity_of(1, 200, 200) < rarity_of(100, 200, 200) < 1


def test_one_program_is_one_vote() -> None:
    twice = [Fact(kind="loop.zero_grad", of=name, seen_as="none") for name in ("opt0", "opt1")]
    found = population_of([twice, []])
    assert (found.programs, found.having["loop.zero_grad"]) == (2, 1)
    assert found.count(twice[0]) == 1


def test_counts_survive_a_file_and_add_up(tmp_path: Path) -> None:
    found = population_of([HEALTHY, UNCLEARED])
    path = tmp_path / "mine.json"
    path.write_bytes(encoded(found))
    assert read_population(path) == found
    assert (found | found).programs == 4
    assert (found | found).showing["loop.zero_grad", "none"] == 2


def test_a_kind_that_came_later_is_compared_with_the_programs_it_was_counted_over(
    tmp_path: Path,
) -> None:
    fact = Fact(kind="loop.zero_grad", of="opt0", seen_as="none")
    first = Population(300, {"loop.backwards": 300})
    found = first.with_new_kinds(population_of([[fact], [], []]))
    assert (found.programs, found.asked) == (300, {"loop.zero_grad": 3})
    assert found.rarity(fact) == rarity_of(1, 1, 3)
    assert (found | first).asked == {"loop.zero_grad": 303}
    assert found.with_new_kinds(population_of([[fact]])) == found
    path = tmp_path / "mine.json"
    path.write_bytes(encoded(found))
    assert read_population(path) == found


@pytest.mark.parametrize("content", [b"", b"[]", b'{"kinds": {"a": 1}}', b'{"programs": "x"}'])
def test_what_is_no_population_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="is no population of facts"):
        read_population(path)


def test_a_population_of_another_form_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_bytes(encoded(population_of([HEALTHY])).replace(b'"form": 1', b'"form": 2'))
    with pytest.raises(UsageError, match="has the form 2; this version of traincheck reads 1"):
        read_population(path)


def test_a_missing_population_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_population(tmp_path / "none.json")


# Calm: at least one class of each counted kind is common among healthy programs.
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name in shipped().having], ids=lambda kind: kind.name
)
def test_each_kind_occurs_and_has_a_calm_class(kind: Kind) -> None:
    population = shipped()
    having = population.having.get(kind.name, 0)
    most = max(population.showing.get((kind.name, one), 0) for one in kind.classes)
    assert having >= 2
    assert most > having / 4


def test_the_shipped_counts_are_of_kinds_that_exist() -> None:
    population = shipped()
    assert {kind for kind, _ in population.showing} <= {kind.name for kind in KINDS}
    assert all(seen_as in KINDS[kind].classes for kind, seen_as in population.showing)


# -- kinds


def test_a_kind_of_no_part_and_a_second_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="of no part"):
        Kinds([Kind("weather.rain", {})])
    with pytest.raises(ValueError, match="is there twice"):
        Kinds([Kind("loop.a", {}), Kind("loop.a", {})])


def test_each_part_that_a_kind_names_is_known() -> None:
    assert {kind.part for kind in KINDS} <= set(PARTS)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (1234, "1,234"),
        (0.000123456, "0.000123"),
        (123456.7, "123,457"),
        ("AdamW", "AdamW"),
        (0, "0"),
    ],
)
def test_numbers_are_written_for_people(number: object, text: str) -> None:
    assert number_text(number) == text


def test_a_sentence_says_how_often_and_on_which_ranks() -> None:
    fact = Fact(kind="signal.loss", of="backward", seen_as="zero", count=3, looks=60, ranks=(1, 2))
    assert KINDS.sentence(fact) == (
        "the loss of `backward` is exactly 0, in 3 of 60 backward passes, on ranks 1, 2"
    )


# -- the card


def test_a_healthy_run_has_no_unusual_line() -> None:
    assert card(HEALTHY).unusual == []
    assert "No fact of this run is unusual" in text_of(HEALTHY)


def test_the_most_unusual_comes_first() -> None:
    lines = card(
        [*HEALTHY, Fact(kind="loop.optimizers", of="opt1", seen_as="one never steps")]
    ).lines
    assert lines[0].fact.seen_as == "one never steps"
    assert lines[0].is_unusual
    assert [line.rarity for line in lines] == sorted(line.rarity for line in lines)
    assert all(line.is_unusual == (line.rarity <= UNUSUAL) for line in lines)


def test_the_text_names_the_part_and_the_programs() -> None:
    text = text_of([*HEALTHY, Fact(kind="loop.optimizers", of="opt1", seen_as="one never steps")])
    assert "opt1 is made and never steps" in text
    assert f"0 of {shipped().having['loop.optimizers']} healthy programs" in text
    assert max(map(len, text.splitlines())) <= 80


def test_without_a_population_the_order_is_said_to_mean_nothing() -> None:
    stream = io.StringIO()
    write_facts_text(card_of(HEALTHY, Population()), stream)
    assert "the order means nothing" in stream.getvalue()


def test_markdown_and_json_hold_every_line() -> None:
    stream = io.StringIO()
    write_facts_markdown(card(HEALTHY), stream)
    assert stream.getvalue().count("\n| ") == len(HEALTHY) + 1  # with the head of the table
    found = orjson.loads(orjson.dumps(facts_json(card(HEALTHY)), default=str))
    assert {row["kind"] for row in found["facts"]} == {fact.kind for fact in HEALTHY}


def test_names_cannot_break_a_table_of_markdown() -> None:
    stream = io.StringIO()
    fact = Fact(kind="loop.optimizers", of="a|b\n::error::", seen_as="one never steps")
    write_facts_markdown(card([fact]), stream)
    assert "a\\|b\\n" in stream.getvalue()
    assert "\n::error" not in stream.getvalue()


# -- two runs


def test_equal_runs_do_not_differ() -> None:
    assert contrasts(card(HEALTHY), card(facts_of(net().steps(9).build()))) == []


def test_the_class_that_differs_is_shown_of_both_runs() -> None:
    (found,) = contrasts(card(HEALTHY), card(UNCLEARED))
    assert [line.fact.seen_as for line in (*found.a, *found.b)] == ["one", "none"]
    stream = io.StringIO()
    write_contrasts_text([found], card(HEALTHY), card(UNCLEARED), stream)
    assert "1 fact differs in class" in stream.getvalue()
    assert "steps without zero_grad()" in stream.getvalue()


def test_a_subject_that_one_run_lacks_is_said_to_be_missing() -> None:
    (found,) = contrasts(card([]), card([Fact(kind="loop.clipping", seen_as="none")]))
    assert (len(found.a), len(found.b)) == (0, 1)
    stream = io.StringIO()
    write_contrasts_text([found], card([]), card([]), stream)
    assert "(not seen)" in stream.getvalue()


def clears(of: str, seen_as: str = "one") -> Fact:
    values = {"most": 4, "least": 1}
    return Fact(kind="loop.zero_grad", of=of, seen_as=seen_as, values=values)


def test_an_object_of_another_name_is_held_against_its_like() -> None:
    assert contrasts(card([clears("opt0")]), card([clears("adam")])) == []
    (found,) = contrasts(card([clears("opt0")]), card([clears("adam", "several")]))
    assert [line.fact.of for line in (*found.a, *found.b)] == ["opt0", "adam"]
    several = [clears("adam", "several"), clears("sgd", "varies")]
    assert len(contrasts(card([clears("opt0")]), card(several))) == 3


def test_usual_facts_of_an_object_that_one_run_does_not_use_are_one_line() -> None:
    steps = Fact(kind="loop.backward passes", of="opt1", seen_as="one")
    never = Fact(kind="loop.optimizers", of="opt1", seen_as="one never steps")
    a, b = card([clears("opt1"), steps]), card([never])
    found = contrasts(a, b)
    assert [one.more for one in found] == [0, 1]
    assert found[0].b[0].fact is never  # what is unusual is never folded
    stream = io.StringIO()
    write_contrasts_text(found, a, b, stream)
    assert "and 1 usual fact more of opt1" in stream.getvalue()


def test_more_than_a_dozen_differences_are_counted() -> None:
    facts = [clears(f"opt{number}", "none") for number in range(15)]
    a, b = card([]), card(facts)
    found = contrasts(a, b)
    texts = []
    for everything in (False, True):
        stream = io.StringIO()
        write_contrasts_text(found, a, b, stream, everything=everything)
        texts.append(stream.getvalue())
    assert [text.count("steps without") for text in texts] == [12, 15]
    assert "and 3 more: --all shows them" in texts[0]


def test_findings_come_first_and_taste_last() -> None:
    fact = Fact(kind="loop.optimizers", of="opt1", seen_as="one never steps")
    lines = [
        Line(replace(fact, kind=code, of=""), code, 0, 0, rarity, severity)
        for code, rarity, severity in (("TC907", 0.001, "info"), ("TC202", 1.0, "error"))
    ]
    b = replace(card([fact]), lines=[*lines, *card([fact]).lines])
    kinds = [line.fact.kind for one in contrasts(card([]), b) for line in one.lines]
    assert kinds == ["TC202", "loop.optimizers", "TC907"]


# -- beside the source


def program(lines: int = 100) -> Program:
    text = "\n".join(f"line {number}" for number in range(1, lines + 1))
    return Program("/home/u/train.py", {"/home/u/train.py": Source("/home/u/train.py", text)})


def test_a_fact_stands_below_its_line() -> None:
    fact = Fact(kind="loop.clipping", seen_as="not known", where="/home/u/train.py:30")
    (file,) = annotated(card([fact]), program())
    (row,) = [row for row in file.rows if row.facts]
    assert (row.number, row.code) == (30, "line 30")
    stream = io.StringIO()
    write_annotated_text([file], stream)
    lines = stream.getvalue().splitlines()
    assert "gradients are clipped" in lines[lines.index("   30 line 30") + 1]


def test_of_a_long_file_the_lines_around_are_shown() -> None:
    fact = Fact(kind="loop.clipping", seen_as="none", where="/home/u/train.py:300")
    (file,) = annotated(card([fact]), program(1000))
    assert [row.number for row in file.rows] == [0, *range(296, 305)]


def test_source_that_changed_since_the_run_is_not_annotated() -> None:
    fact = Fact(kind="loop.clipping", seen_as="none", where="/home/u/train.py:30")
    (file,) = annotated(card([fact]), program(), ["/home/u/train.py"])
    assert file.rows == ()
    stream = io.StringIO()
    write_annotated_text([file], stream)
    assert "was written after the program had begun" in stream.getvalue()


def test_a_line_of_a_file_without_a_copy_is_not_shown() -> None:
    fact = Fact(kind="loop.clipping", seen_as="none", where="/etc/passwd:1")
    assert list(annotated(card([fact]), program())) == []
