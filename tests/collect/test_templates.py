"""The fields that records are written with are the fields that they are read by."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import fields

from traincheck.collect import templates
from traincheck.schema.events import EVENT_TYPES
from traincheck.schema.values import TensorSummary

KEY = re.compile(rb'"(\w+)":')
WRITTEN = {name: found for name, found in vars(templates).items() if isinstance(found, bytes)}
# The kind of a record, an argument without a name, and the value of one that is no tensor.
OTHERS = {"k", "0", "value"}


def known() -> set[str]:
    return {f.encode_name for struct in (*EVENT_TYPES, TensorSummary) for f in fields(struct)}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_every_field_is_known_to_readers(name: str) -> None:
    keys = {key.decode() for key in KEY.findall(WRITTEN[name])}
    assert keys - OTHERS <= known()


def test_a_field_that_nobody_reads_is_seen() -> None:
    assert "wher" not in known()
    assert {"where", "counters", "api"} <= known()
