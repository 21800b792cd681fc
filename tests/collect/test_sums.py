"""Sums of tensors: right in each dtype and layout, also where elements are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from traincheck.collect.tensors.sums import read_sums, sums_of, why_not
from traincheck.errors import UsageError
from traincheck.schema.metrics.sums import (
    COLUMNS,
    STATISTICS,
    divided,
    merged,
    scaled,
    statistic,
)

ALL = frozenset(COLUMNS)


def expected(x: torch.Tensor) -> dict[str, float]:
    a = x.double().numpy().ravel()
    f = a[np.isfinite(a)]
    return {
        "count": a.size, "sum": f.sum(), "squares": (f * f).sum(), "minimum": f.min(),
        "maximum": f.max(), "zeros": (f == 0).sum(), "nonfinite": a.size - f.size,
        "absolutes": np.abs(f).sum(), "cubes": (f**3).sum(), "fourths": (f**4).sum(),
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
        "needs grad": x.clone().requires_grad_(),
    }  # fmt: skip


@pytest.mark.parametrize("kind", tensors())
def test_each_column(kind: str) -> None:
    x = tensors()[kind]
    assert why_not(x) is None
    row = dict(zip(COLUMNS, sums_of(x, ALL)))
    tolerance = 1e-5 * (max(1.0, float(x.detach().double().abs().nan_to_num(posinf=0).max())) ** 4)
    for name, value in expected(x.detach()).items():
        scale = tolerance * x.numel() if name not in ("minimum", "maximum") else 0.0
        assert row[name] == pytest.approx(value, rel=1e-5, abs=1e-7 * scale), name


@pytest.mark.parametrize("columns", [{"squares"}, {"sum"}, {"minimum"}, {"sum", "zeros"}])
def test_only_what_is_asked_for(columns: set[str]) -> None:
    row = dict(zip(COLUMNS, sums_of(torch.tensor([1.0, math.nan]), frozenset(columns))))
    taken = {name for name, value in row.items() if value is not None}
    assert taken - {"maximum"} == {"count", "nonfinite", *columns}
    assert row["nonfinite"] == 1


def test_nothing_finite() -> None:
    row = sums_of(torch.full((4,), math.nan), ALL)
    assert STATISTICS["mean"].of(row) is None
    assert STATISTICS["max"].of(row) is None
    assert STATISTICS["nonfinite"].of(row) == 4


def test_large_tensors_are_as_exact_as_small_ones() -> None:
    x = torch.randn(1 << 22, generator=torch.Generator().manual_seed(1))
    row = sums_of(x, frozenset({"squares"}))
    assert row[COLUMNS.index("squares")] == pytest.approx(
        x.double().square().sum().item(), rel=1e-6
    )


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
    whole = sums_of(x, ALL)
    parts = merged([sums_of(part, ALL) for part in x.split([4, 12, 48])])
    assert parts == pytest.approx(whole, rel=1e-12)
    assert divided(merged([whole, whole]), 2) == pytest.approx(whole)
    assert scaled(whole, 3.0) == pytest.approx(sums_of(3 * x, ALL), rel=1e-12)


def test_sums_that_are_read_late_are_the_same() -> None:
    """On a device, sums are tensors until the end of a step; here on the CPU."""
    from traincheck.collect.tensors import sums

    for x in (torch.tensor([1.0, math.nan, -2.0, 0.0, math.inf]), torch.randn(5, 7)):
        late = sums._on_device(x, ALL)
        (row,) = read_sums([late])
        assert row == pytest.approx(sums_of(x, ALL), rel=1e-5)
    few = sums._on_device(torch.ones(3), frozenset({"sum"}))
    assert read_sums([[1, 2.0], few])[1][: COLUMNS.index("squares") + 1] == [3, 3.0, None]


def test_an_unknown_statistic() -> None:
    with pytest.raises(UsageError, match="no statistic is called 'kurtoses'") as caught:
        statistic("kurtoses")
    assert "kurtosis" in caught.value.fix
