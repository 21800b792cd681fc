"""TC501: workers that each yield the whole of an iterable dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.batches import leaf, run_on
from traincheck.rules.shared.loaders import STREAM
from traincheck.schema.findings import Verdict


def stream(contents: Sequence[str], workers: int = 2, **more: Any) -> list[dict[str, Any]]:
    """Batches of a stream; a batch ``abcd`` holds the samples a, b, c and d."""
    return [
        {
            "index": index,
            "leaves": {"batch": leaf(content)},
            "samples": list(content),
            "sampler": STREAM,
            "workers": workers,
            **more,
        }
        for index, content in enumerate(contents)
    ]


BROKEN = run_on(stream(["abcd", "abcd", "efgh", "efgh", "ijkl", "ijkl"]))


def test_fires_at_the_first_copy(golden: Golden) -> None:
    finding = fires("TC501", BROKEN)
    assert (finding.first_step, finding.variables) == (1, ("loader0",))
    golden(finding)
    assert mentions(finding, 2, "get_worker_info")


def test_fires_when_workers_shuffle(golden: Golden) -> None:
    shuffled = stream(["abcd", "hgba", "efgh", "cdfe"])
    finding = fires("TC501", run_on(shuffled))
    assert finding.first_step == 1
    golden(finding)
    assert mentions(finding, 8, 2)


def test_fires_once_in_many_epochs() -> None:
    epoch = ["abcd", "hgba", "efgh", "cdfe"]
    batches = stream(epoch) + stream(epoch, epoch=1) + stream(epoch, epoch=2)
    assert fires("TC501", run_on(batches)).violations == 1


@pytest.mark.parametrize(
    "batches",
    [
        stream(["abcd", "efgh", "ijkl", "mnop"]),  # split
        stream(["aaaa"] * 6),  # the same data throughout
        stream(["abcd"] * 4),  # one batch is given again and again
        stream(["abab", "cdcd", "efef", "ghgh"]),  # rows that occur twice
        stream(["abcd", "abce", "fghi", "jklm"]),  # some do
        stream(["aabcdefgh", "abbccdefgghh", "abcddeeffgh", "aaabcdefgh"]),  # as ids do
        stream(["abcd"], epoch=0) + stream(["abcd"], epoch=1),  # the next epoch
    ],
)
def test_quiet_on_streams_that_are_split(batches: list[dict[str, Any]]) -> None:
    assert quiet("TC501", run_on(batches)) is Verdict.HELD


def test_quiet_on_one_worker_and_on_samplers() -> None:
    copies = ["abcd", "abcd", "efgh", "efgh"]
    assert quiet("TC501", run_on(stream(copies, workers=0))) is Verdict.NOT_TRIGGERED
    weighted = stream(copies, sampler="torch.utils.data.sampler.WeightedRandomSampler")
    assert quiet("TC501", run_on(weighted)) is Verdict.NOT_TRIGGERED
