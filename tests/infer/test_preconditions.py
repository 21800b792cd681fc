"""Preconditions: short, simplest first, and true of no counterexample."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincheck.infer.preconditions import MAX_CLAUSES, MAX_CONDITIONS, learn
from traincheck.infer.words import sentence


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


@pytest.mark.parametrize("value", [True, False])
def test_the_sentence_reads_as_english(value):
    found = said(({"training": value}, 9, 0), ({"training": not value}, 0, 9))
    assert found == f"X, if training is {str(value).lower()}."
