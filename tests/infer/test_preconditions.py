"""Preconditions: short, simplest first, and true of no counterexample."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.infer.preconditions import (
    MAX_CLAUSES,
    MAX_CONDITIONS,
    learn,
    preconditions_by_scope,
    sentence,
)
from traincheck.schema.claims import PROGRAM


def counts(*rows):
    return {tuple(sorted(context.items())): (good, bad) for context, good, bad in rows}


def said(*rows) -> str | None:
    learned = learn(counts(*rows))
    return None if learned is None else sentence("X", learned.precondition)


def test_none_is_best():
    assert said(({"leaf": "weight"}, 5, 0), ({"leaf": "bias"}, 5, 0)) == "X."


def test_a_feature_that_explains_goes_before_one_that_fits():
    assert (
        said(
            ({"leaf": "weight", "requires_grad": True, "module_class": "A"}, 50, 0),
            ({"leaf": "bias", "requires_grad": False, "module_class": "B"}, 0, 50),
        )
        == "X, if requires_grad is true."
    )


def test_two_conditions_where_one_is_not_enough():
    assert (
        said(
            ({"requires_grad": True, "in_optimizer": True, "leaf": "a"}, 50, 0),
            ({"requires_grad": True, "in_optimizer": False, "leaf": "a"}, 0, 50),
            ({"requires_grad": False, "in_optimizer": True, "leaf": "a"}, 0, 50),
        )
        == "X, if requires_grad is true and in_optimizer is true."
    )


def test_one_clause_or_another():
    rows = [({"leaf": leaf}, 50, 0) for leaf in "ab"] + [({"leaf": leaf}, 0, 9) for leaf in "cde"]
    assert said(*rows) == "X, if leaf is a or leaf is b."


def test_numbers_have_thresholds():
    rows = [({"ndim": n}, 50 * (n > 1), 9 * (n <= 1)) for n in range(5)]
    assert said(*rows) == "X, if ndim is above 1."


def test_a_mixture_that_no_context_explains_is_dropped():
    assert said(({"leaf": "a"}, 50, 50)) is None
    assert said(({"leaf": "a"}, 50, 50), ({"leaf": "b"}, 50, 0)) is None


def test_a_list_of_the_examples_is_no_precondition():
    rows = [({"leaf": str(i)}, 10 * (i % 2), 10 * (1 - i % 2)) for i in range(12)]
    assert said(*rows) is None


def test_what_was_seen_in_one_mode_only_is_claimed_of_that_mode():
    assert said(({"training": True}, 50, 0)) == "X, if training is true."
    assert said(({"training": True}, 50, 0), ({"training": False}, 5, 0)) == "X."
    assert (
        said(({"training": True, "stage": "a"}, 5, 0), ({"training": True, "stage": "b"}, 0, 5))
        == "X, if stage is a and training is true."
    )


def test_never_held_means_nothing_learned():
    assert learn(counts(({"leaf": "a"}, 0, 5))) is None


contexts = st.fixed_dictionaries(
    {
        "requires_grad": st.booleans(),
        "leaf": st.sampled_from("abc"),
        "ndim": st.integers(0, 3),
        "stage": st.sampled_from(["train", "eval"]),
    }
)
tables = st.lists(st.tuples(contexts, st.integers(0, 20), st.integers(0, 3)), max_size=12)


@given(tables)
def test_no_counterexample_is_let_through_and_nearly_every_example_is(rows):
    table = counts(*rows)
    learned = learn(table)
    if learned is None:
        return
    precondition = learned.precondition
    inside = {f: c for f, c in table.items() if precondition.holds(dict(f))}
    assert not any(bad for _, bad in inside.values())
    held = sum(good for good, _ in inside.values())
    assert held == learned.positive >= 0.95 * sum(good for good, _ in table.values())
    assert len(precondition.clauses) <= MAX_CLAUSES
    assert all(len(clause) <= MAX_CONDITIONS for clause in precondition.clauses)


@given(tables, st.integers(0, 1000))
def test_the_order_of_the_examples_does_not_matter(rows, seed):
    table = counts(*rows)
    items = list(table.items())
    random.Random(seed).shuffle(items)
    assert learn(dict(items)) == learn(table)


def drawn(table, share, seed):
    """A sample of the examples: of each context some, but never none of those that there are."""
    pick = random.Random(seed)

    def some(count):
        return max(min(count, 1), sum(pick.random() < share for _ in range(count)))

    items = [(features, tuple(map(some, both))) for features, both in table.items()]
    pick.shuffle(items)
    return dict(items)


@given(
    st.dictionaries(contexts.map(lambda c: tuple(sorted(c.items()))), st.integers(20, 60)),
    st.sampled_from(["requires_grad", "leaf", "ndim", "both", "either"]),
    st.integers(0, 1000),
)
def test_a_sample_of_the_examples_teaches_the_same(found, truth, seed):
    rules = {
        "requires_grad": lambda c: c["requires_grad"],
        "leaf": lambda c: c["leaf"] != "a",
        "ndim": lambda c: c["ndim"] > 1,
        "both": lambda c: c["requires_grad"] and c["ndim"] > 0,
        "either": lambda c: c["leaf"] == "b" or c["stage"] == "eval",
    }
    table = {
        features: (count, 0) if rules[truth](dict(features)) else (0, count)
        for features, count in found.items()
    }
    whole, part = learn(table), learn(drawn(table, 0.3, seed))
    assert (whole is None) == (part is None)
    if whole is not None and part is not None:
        assert whole.precondition == part.precondition


def in_programs(*rows):
    return counts(*(({**context, PROGRAM: name}, good, bad) for name, context, good, bad in rows))


def told(table, min_programs=1, enough=5, **options) -> list[str]:
    found = preconditions_by_scope(
        table, min_programs, lambda learned: learned.positive >= enough, **options
    )
    return [sentence("X", learned.precondition) for learned in found]


def test_of_other_programs_nothing_is_said_beyond_what_was_seen():
    table = in_programs(("a.py", {"requires_grad": True}, 9, 0))
    assert told(table) == ["X, if requires_grad is true.", "In a.py, X."]
    both = in_programs(
        ("a.py", {"requires_grad": True}, 9, 0), ("a.py", {"requires_grad": False}, 9, 0)
    )
    assert told(both) == ["X.", "In a.py, X."]


def test_what_each_program_has_of_its_own_is_not_said_of_others():
    table = in_programs(("a.py", {"leaf": "x"}, 9, 0), ("b.py", {"leaf": "x"}, 9, 0))
    assert told(table, min_programs=None) == ["In a.py and b.py, X."]
    assert told(table, min_programs=3) == ["In a.py and b.py, X."]
    assert told(table, min_programs=2) == ["X.", "In a.py and b.py, X."]


def test_a_program_that_speaks_against_it_is_left_out():
    table = in_programs(("a.py", {"leaf": "x"}, 9, 0), ("b.py", {"leaf": "x"}, 9, 9))
    assert told(table) == ["In a.py, X."]
    silent = in_programs(("a.py#123456", {"leaf": "x"}, 9, 0), ("b.py", {"leaf": "x"}, 9, 0))
    assert told(silent, contradicting=["a.py"]) == ["In b.py, X."]


def test_programs_may_differ_in_when_it_holds():
    table = in_programs(
        ("a.py", {"model": "A", "ndim": 1}, 9, 0),
        ("a.py", {"model": "A", "ndim": 2}, 9, 0),
        ("b.py", {"model": "B", "ndim": 1}, 0, 9),
        ("b.py", {"model": "B", "ndim": 2}, 9, 0),
    )
    assert told(table) == ["X, if in a.py or ndim is above 1 and in b.py."]


def test_names_that_mean_nothing_elsewhere_are_no_condition_of_other_programs():
    rows = [("a.py", {"model": name}, 9 * (name == "A"), 9 * (name != "A")) for name in "ABCD"]
    assert told(in_programs(*rows)) == ["In a.py, X, if model is A."]
    own = [
        ("a.py", {"module_class": f"__main__.{c}"}, 9 * (c == "A"), 9 * (c != "A")) for c in "ABCD"
    ]
    assert told(in_programs(*own)) == ["In a.py, X, if module_class is __main__.A."]


def test_too_few_examples_of_one_program_do_not_spoil_those_of_another():
    table = in_programs(("a.py", {"leaf": "x"}, 9, 0), ("b.py", {"leaf": "x"}, 2, 0))
    assert told(table, min_programs=None) == ["In a.py, X."]
    few = in_programs(("b.py", {"leaf": "x"}, 2, 0))
    assert told(few, min_programs=None) == ["In b.py, X."]  # to be told why it is dropped


def test_a_model_with_frozen_parts_is_no_evidence_for_others():
    table = in_programs(("a.py", {"frozen": True}, 9, 0), ("b.py", {"frozen": False}, 9, 0))
    assert told(table)[0] == "X, if no parameter of the model is frozen."
    assert told(in_programs(("a.py", {"frozen": True}, 9, 0))) == ["In a.py, X."]


@pytest.mark.parametrize("value", [True, False])
def test_the_sentence_reads_as_english(value):
    found = said(({"training": value}, 9, 0), ({"training": not value}, 0, 9))
    assert found == f"X, if training is {str(value).lower()}."
