"""Topics of arguments follow from their names."""

from __future__ import annotations

import pytest

from traincheck.relations.phrasing import topic_of
from traincheck.schema.findings import Topic


@pytest.mark.parametrize(
    ("names", "topic"),
    [
        (["training"], Topic.MODE),
        (["query", "attn_mask"], Topic.MASK),
        (["is_causal"], Topic.MASK),
        (["requires_grad"], Topic.REQUIRES_GRAD),
        (["reduction"], None),
        ([], None),
        (["key_padding_mask", "training"], Topic.MODE),  # one topic, whatever the order
    ],
)
def test_the_topic_of_arguments_follows_from_their_names(
    names: list[str], topic: Topic | None
) -> None:
    assert topic_of(names) is topic
    assert topic_of(reversed(names)) is topic
