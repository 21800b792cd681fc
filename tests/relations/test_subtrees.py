"""Patterns that say in few words which variables of a model are alike."""

from __future__ import annotations

from traincheck.relations.subtrees import MOST_PATTERNS, expand, fold, matcher, names_folded


def frozen_below(names: list[str], *places: str) -> dict[str, str]:
    return {n: "frozen" if n.startswith(places) else "trained" for n in names}


STAGES = [f"Net.stages.{i}.{m}.{leaf}" for i in range(3) for m in (0, 1) for leaf in "wb"]


def test_a_whole_model_is_one_pattern():
    assert fold(dict.fromkeys(STAGES, "trained")) == [("Net", "trained")]


def test_numbers_that_are_alike_are_joined():
    found = fold(frozen_below([*STAGES, "Net.head.w"], "Net.stages.0.", "Net.stages.1."))
    assert found == [
        ("Net.head", "trained"),
        ("Net.stages.2", "trained"),
        ("Net.stages.[0-1]", "frozen"),
    ]


def test_a_large_model_gives_no_more_than_a_small_one():
    def lora(layers: int) -> list[tuple[str, object]]:
        parts = ("q.weight", "q.lora_A.weight", "v.weight", "mlp.weight")
        return fold({f"Gpt.h.{i}.{p}": "lora" in p for i in range(layers) for p in parts})

    assert lora(48) == lora(2)
    assert ("Gpt.h.*.q.lora_A", True) in lora(48)


def test_a_leaf_anywhere_is_one_pattern():
    names = [f"Net.{m}.{leaf}" for m in ("a", "b.c", "d") for leaf in ("weight", "bias")]
    assert fold({n: n.endswith("bias") for n in names}) == [
        ("Net.**.bias", True),
        ("Net.**.weight", False),
    ]


def test_what_takes_too_many_patterns_is_not_said():
    names = [f"Net.m{i}.w" for i in range(2 * MOST_PATTERNS)]
    assert fold({n: i % 2 for i, n in enumerate(names)}) == []


def test_patterns_match_what_lies_below_only():
    assert matcher("Net.stages.[0-1]").match("Net.stages.1.0.w")
    assert not matcher("Net.stages.[0-1]").match("Net.stages.10.0.w")
    assert not matcher("Net.fc").match("Net.fc2.weight")
    assert matcher("Net.fc").match("Net.fc/exp_avg")
    assert matcher("Net.**.bias").match("Net.a.b.bias")
    assert not matcher("Net.**.bias").match("Net.a.bias_k")


def test_names_can_be_folded_and_unfolded():
    names = [*STAGES, "Net.head.w", "Net.list.7.w"]
    folded = names_folded(names)
    assert len(folded) < len(names)
    assert sorted(n for pattern in folded for n in expand(pattern)) == sorted(names)
