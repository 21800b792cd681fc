"""Sums of tensors: right in each dtype and layout, also where elements are not finite.

Statistics equal those of numpy in double precision, however the elements are split into calls,
micro-batches, ranks and shards, and however large the mean is against the spread.
"""

from __future__ import annotations

import math
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metrics.offline import FORMULAS
from traincheck.collect.tensors import sums
from traincheck.collect.tensors.sums import read_sums, sums_of, why_not
from traincheck.errors import UsageError
from traincheck.metrics.trace import combine
from traincheck.schema.events import MetricsEvent
from traincheck.schema.metrics.sums import (
    COLUMNS,
    STATISTICS,
    Row,
    divided,
    merged,
    scaled,
    sharded,
    statistic,
    with_moments,
)

RAW = ("cubes", "fourths")  # in older traces
ALL = frozenset(COLUMNS) - {*RAW}


def expected(x: torch.Tensor) -> dict[str, float]:
    a = x.double().numpy().ravel()
    f = a[np.isfinite(a)]
    return {
        "count": a.size, "sum": f.sum(), "squares": (f * f).sum(), "minimum": f.min(),
        "maximum": f.max(), "zeros": (f == 0).sum(), "nonfinite": a.size - f.size,
        "absolutes": np.abs(f).sum(), "mean": f.mean(), "m2": ((f - f.mean()) ** 2).sum(),
        "m3": ((f - f.mean()) ** 3).sum(), "m4": ((f - f.mean()) ** 4).sum(),
    }  # fmt: skip


def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 1001, generator=generator)
    huge = torch.full((3,), 1e30)
    return {
        "float32": x,
        "shifted": x + 100,
        "float64": x.double(),
        "bfloat16": x.bfloat16(),
        "float16": x.half(),
        "transposed": x.t(),
        "strided": x[::3, ::7],
        "expanded": x[:1].expand(50, 1001),
        "channels last": x[:256, :1000].reshape(4, 16, 50, 80).contiguous(
            memory_format=torch.channels_last
        ),
        "one element": torch.tensor(3.0),
        "NaN and infinities": torch.tensor([1.0, math.nan, -math.inf, 2.0, math.inf, 0.0]),
        "sum of infinities": torch.tensor([math.inf, -math.inf, 4.0]),
        "squares overflow": huge,
        "squares underflow": torch.linspace(1, 2, 9) * 1e-25,
        "needs grad": x.clone().requires_grad_(),
    }  # fmt: skip


@pytest.mark.parametrize("kind", tensors())
def test_each_column(kind: str) -> None:
    x = tensors()[kind]
    assert why_not(x) is None
    row = dict(zip(COLUMNS, sums_of(x, ALL)))
    for name, value in expected(x.detach()).items():
        assert row[name] == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("columns", [{"squares"}, {"sum"}, {"minimum"}, {"sum", "zeros"}])
def test_only_what_is_asked_for(columns: set[str]) -> None:
    row = dict(zip(COLUMNS, sums_of(torch.tensor([1.0, math.nan]), frozenset(columns))))
    found = {name for name, value in row.items() if value is not None}
    assert found - {"maximum"} == {"count", "nonfinite", *columns}
    assert row["nonfinite"] == 1


def test_nothing_finite() -> None:
    row = sums_of(torch.full((4,), math.nan), ALL)
    assert STATISTICS["mean"].of(row) is None
    assert STATISTICS["max"].of(row) is None
    assert STATISTICS["nonfinite"].of(row) == 4


@pytest.mark.parametrize("size", [200, 5000, (1 << 16) + 77])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_tensors_are_as_exact_as_small_ones(size: int, dtype: torch.dtype) -> None:
    """Also where rounding has one direction."""
    for x in (torch.full((size,), 0.1), torch.linspace(-1, 3, size)):
        row = known(taken(x.to(dtype), frozenset({"sum", "squares"})))
        wide = x.to(dtype).double()
        assert row["squares"] == pytest.approx(wide.square().sum().item(), rel=1e-6)
        assert row["sum"] == pytest.approx(wide.sum().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.ones(2, dtype=torch.int64), "dtype int64"),
        (torch.ones(2, dtype=torch.bool), "dtype bool"),
        (torch.ones(2, dtype=torch.complex64), "dtype complex64"),
        (torch.ones(0), "no elements"),
        (torch.eye(2).to_sparse(), "sparse or nested"),
        (torch.ones(2, device="meta"), "a Tensor that cannot be read"),
    ],
)
def test_what_cannot_be_measured_says_why(tensor: torch.Tensor, reason: str) -> None:
    assert why_not(tensor) == reason


def test_parts_add_up_to_the_whole() -> None:
    x = torch.randn(64, 33).double()
    whole = taken(x)
    parts = merged([taken(part) for part in x.split([4, 12, 48])])
    assert known(parts) == pytest.approx(known(whole), rel=1e-11)
    assert known(divided(merged([whole, whole]), 2)) == pytest.approx(known(whole))
    assert known(scaled(whole, 3.0)) == pytest.approx(known(taken(3 * x)), rel=1e-11)


@pytest.mark.parametrize("widest", [torch.float64, torch.float32])
def test_sums_that_are_read_late_are_the_same(
    widest: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device, sums are tensors until the end of a step; here on the CPU."""
    monkeypatch.setattr(sums, "_widest", lambda _: widest)
    odd = torch.tensor([1.0, math.nan, -2.0, 0.0, math.inf])
    for x in (odd, torch.randn(5, 7) + 1e3, odd * 1e-20, odd * 1e20, odd.bfloat16()):
        (row,) = read_sums([sums._on_device(x, ALL)])
        right = known(taken(x))
        assert known(row) == pytest.approx(right, rel=1e-5, abs=1e-6 * right["absolutes"])
    constant = torch.full((777,), 0.1)
    assert of(read_sums([sums._on_device(constant, ALL)])[0])["std"] == 0
    few = sums._on_device(torch.ones(3), frozenset({"sum"}))
    assert read_sums([[1, 2.0], few])[1][: COLUMNS.index("squares") + 1] == [3, 3.0, None]


def taken(x: torch.Tensor, columns: frozenset[str] = ALL) -> Row:
    (row,) = read_sums([sums_of(x, columns)])
    return row


def known(row: Row) -> dict[str, float | int]:
    return {name: number for name, number in zip(COLUMNS, row) if number is not None}


def of(row: Row) -> dict[str, float | None]:
    return {name: each.of(row) for name, each in STATISTICS.items()}


MOMENTS = ("mean", "std", "var", "skewness", "kurtosis", "rms", "norm", "sum")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@st.composite
def elements(draw: st.DrawFn) -> tuple[torch.Tensor, list[int]]:
    """Elements of any mean and spread, not all equal, and where they are split."""
    dtype = draw(st.sampled_from(DTYPES))
    seed, size = draw(st.integers(0, 999)), draw(st.integers(2, 3000))
    x = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = draw(st.sampled_from([x, x.abs() ** 3, (x > 1).double(), x.sign()]))
    shift, unit = draw(st.floats(-1e6, 1e6)), 10.0 ** draw(st.integers(-4, 0))
    x = ((x + draw(st.sampled_from([0.0, 1.0, shift]))) * unit / 100).to(dtype)
    cuts = draw(st.lists(st.integers(0, size), max_size=6))
    return x, sorted({0, *cuts, size})


@settings(max_examples=150, deadline=None, derandomize=True)
@given(elements(), st.integers(1, 3), st.sampled_from(["call", "device", "rank", "shard", "copy"]))
def test_moments_are_those_of_numpy(
    given: tuple[torch.Tensor, list[int]], pieces: int, how: str
) -> None:
    x, cuts = given
    rows = []
    for start, end in pairwise(cuts):
        one = sums._on_device if how == "device" else sums_of
        rows += read_sums([one(part, ALL) for part in x[start:end].chunk(pieces)])
    name = "parameter/w" if how in ("shard", "copy") else "activation/w"
    if how in ("call", "device"):
        rows = [merged(rows)]
    copies = 2 if how == "copy" else 1
    events = [
        MetricsEvent(
            0, 0, 0, "train", rank, "",
            names={"0": name}, sums=[[0, *row]],
            combine={"0": sharded(copies)} if name == "parameter/w" else {},
        )
        for rank, row in enumerate(rows * copies)
    ]  # fmt: skip
    found = combine(events)
    exact = x.double().numpy()
    for statistic_name in MOMENTS:
        values = found.get(f"{name}/{statistic_name}", {})
        if statistic_name in ("skewness", "kurtosis") and not exact.var():
            assert not values
            continue
        value = float(FORMULAS[statistic_name](exact))
        # A sum may cancel in numpy, too: to a part of the sum of absolute values
        slack = {"sum": np.abs(exact).sum(), "mean": np.abs(exact).mean()}.get(statistic_name, 0)
        slack = 1e-8 if statistic_name == "skewness" else 1e-15 * float(slack)  # of 0
        assert values[0] == pytest.approx(value, rel=1e-6, abs=slack), statistic_name
    assert found[f"{name}/count"][0] == len(exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.1, -3e4, 1e-20])
def test_equal_elements_have_no_spread(dtype: torch.dtype, value: float) -> None:
    """std is exactly 0, also over calls; skewness and kurtosis are not defined."""
    x = torch.full((70_001,), value, dtype=dtype)
    found = of(merged([taken(x), taken(x[:3]), taken(x[:77])]))
    assert (found["std"], found["var"]) == (0, 0)
    assert found["skewness"] is found["kurtosis"] is None
    x[7] += x[7] or 1
    assert of(taken(x))["std"]


def test_a_tensor_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0)) + 50
    whole = known(taken(x))
    monkeypatch.setattr(sums, "_WIDE_PIECE", 96)
    monkeypatch.setattr(sums, "_LARGE_PIECE", 96)
    assert known(taken(x)) == pytest.approx(whole, rel=1e-11)


class Distributed:
    """A tensor over ranks, as DTensor is one."""

    def __init__(self, *placements: str) -> None:
        self.placements = [
            SimpleNamespace(is_shard=lambda p=p: p == "S", is_replicate=lambda p=p: p == "R")
            for p in placements
        ]
        self.device_mesh = SimpleNamespace(size=lambda dim: (2, 4)[dim])

        self._local_tensor = torch.ones(3)


@pytest.mark.parametrize(
    ("placements", "how"),
    [("S", "shard"), ("RS", "shard/2"), ("SR", "shard/4"), ("SS", "shard"), ("RR", None)],
)
def test_the_copies_of_a_shard(placements: str, how: str | None) -> None:
    _, copies = sums.local_part(Distributed(*placements))
    assert (sharded(copies) if copies else None) == how


def old(x: torch.Tensor) -> Row:
    """The raw sums of an older trace."""
    row = taken(x, frozenset({"sum", "squares"}))
    row[COLUMNS.index("cubes")] = float((x.double() ** 3).sum())
    row[COLUMNS.index("fourths")] = float((x.double() ** 4).sum())
    return row


def test_raw_sums_of_older_traces() -> None:
    """They give the moments where they do not cancel, and nothing where they do."""
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    names = {"std", "skewness", "kurtosis"}
    found, right = of(with_moments(old(x))), of(taken(x))
    assert {n: found[n] for n in names} == pytest.approx({n: right[n] for n in names}, rel=1e-5)
    far = of(with_moments(old(x + 50)))
    assert far["std"] == pytest.approx(right["std"], rel=1e-3)
    assert (far["skewness"], far["kurtosis"]) == (None, None)
    assert of(with_moments(old(x + 1e4)))["std"] is None


def test_an_unknown_statistic() -> None:
    with pytest.raises(UsageError, match="no statistic is called 'kurtoses'") as caught:
        statistic("kurtoses")
    assert "kurtosis" in caught.value.fix
