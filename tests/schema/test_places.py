"""The line of the program that a finding points to."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from traincheck.check.suppression.source_files import split_place
from traincheck.schema.places import in_package, short, where

LIBRARY = "/env/lib/site-packages/lib/loop.py:40"
THROUGH = f"{LIBRARY} from /home/me/train.py:12"


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ([THROUGH], "/home/me/train.py:12"),
        ([THROUGH, "/home/me/model.py:3"], "/home/me/model.py:3"),  # nearer to the program
        ([LIBRARY, THROUGH], "/home/me/train.py:12"),
        ([LIBRARY], LIBRARY),
        ([None, "train.py:12"], "train.py:12"),
        ([None], None),
    ],
)
def test_a_finding_points_to_the_program_rather_than_to_a_package(recorded, shown):
    events = TraceBuilder()
    for place in recorded:
        events.call("torch.Tensor.backward", where=place)
    assert where(events.build()) == shown


def test_short_names_and_comments_are_those_of_the_program():
    assert short(THROUGH) == "train.py:12"
    assert short("a\\b.py:1") == "b.py:1"
    assert short(None) == ""
    assert split_place(THROUGH) == ("/home/me/train.py", 12)
    assert in_package("/env/lib/site-packages/lib/loop.py") == "lib/loop.py"
    assert in_package("/home/me/train.py") == "/home/me/train.py"
