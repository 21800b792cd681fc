"""Sketches of tensors: how close they come, what they see, and that parts add up to the whole."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import torch

from traincheck.collect.tensors import sketch as module
from traincheck.collect.tensors.sketch import Sketcher, read_sketches
from traincheck.schema.comparison.sketch import decode, distance, norm, relative_difference, total

LIMIT = 1.35
FIRST = [954.5, -1340.0, -1636.0, -4222.5]  # of arange(1000): the same in each version


@pytest.fixture
def sketcher() -> Sketcher:
    return Sketcher()


def sketched(sketcher: Sketcher, tensor: torch.Tensor, offset: int = 0) -> tuple[float, ...]:
    found = sketcher.numbers(tensor, offset)
    assert found is not None
    return tuple(found.tolist()[:64])


def changed(tensor: torch.Tensor, kind: str, draw: random.Random) -> torch.Tensor:
    """Another tensor of the same shape, as runs make them differ."""
    other, size = tensor.clone(), tensor.numel()
    one, two = draw.sample(range(size), 2)
    if kind == "permute":
        other = tensor[torch.randperm(size)]
    elif kind == "swap two":
        other[one], other[two] = tensor[two].clone(), tensor[one].clone()
    elif kind == "swap halves":
        other = tensor.roll(size // 2)
    elif kind == "flip signs":
        other[torch.rand(size) < 0.01] *= -1
        other[one] *= -1
    elif kind == "one element":
        other[one] += 1e-3
    elif kind == "round":
        other = tensor.bfloat16().float()
    elif kind == "scale":
        other = tensor * 1.001
    else:
        other = tensor + 1e-3
    return other


KINDS = (
    "permute",
    "swap two",
    "swap halves",
    "flip signs",
    "one element",
    "round",
    "scale",
    "shift",
)


def test_99_of_100_differences_are_within_the_limit(sketcher: Sketcher) -> None:
    torch.manual_seed(0)
    draw = random.Random(0)
    far: Counter[str] = Counter()
    for number in range(1000):
        kind = KINDS[number % len(KINDS)]
        one = torch.randn(draw.choice([7, 64, 1000, 5000, 70_000]))
        other = changed(one, kind, draw)
        truth = ((one.double() - other.double()).norm() / one.double().norm()).item()
        size = one.double().norm().item()
        found = relative_difference(sketched(sketcher, other), sketched(sketcher, one), size)
        assert (found > 0) is (truth > 0), kind
        if truth:
            far[kind] += not 1 / LIMIT <= found / truth <= LIMIT
    assert far.total() <= 10, far


@pytest.mark.parametrize("shape", [(1000, 300), (3, 1 << 18), (700, 1000)])
def test_shards_add_up_to_the_whole(sketcher: Sketcher, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    whole = torch.randn(shape)
    expected = sketched(sketcher, whole)
    rows = shape[0] // 3
    parts = [whole[:rows], whole[rows:]]
    found = total([sketched(sketcher, parts[0]), sketched(sketcher, parts[1], rows * shape[1])])
    assert distance(found, expected) <= 1e-12 * norm(expected)
    misplaced = total([sketched(sketcher, part) for part in parts])
    assert distance(misplaced, expected) > 0.1 * norm(expected)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_blocks_of_any_dim_add_up(sketcher: Sketcher, dim: int) -> None:
    torch.manual_seed(0)
    whole = torch.randn(6, 10, 8)
    expected, found, at = sketched(sketcher, whole), [], 0
    for block in whole.split(3, dim):
        offsets = [0, 0, 0]
        offsets[dim] = at
        at += block.shape[dim]
        runs = module._placed(block.reshape(-1), whole.shape, block.shape, offsets)
        numbers = sketcher._added(runs)
        assert numbers is not None
        found.append(tuple(numbers.tolist()[:64]))
    assert distance(total(found), expected) <= 1e-12 * norm(expected)


def test_gradients_of_micro_batches_add_up(sketcher: Sketcher) -> None:
    torch.manual_seed(0)
    weight = torch.randn(20, 30, dtype=torch.float64, requires_grad=True)
    x = torch.randn(16, 20, dtype=torch.float64)

    def gradient(rows: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad((rows @ weight).pow(2).sum(), weight)
        return found

    parts = total([sketched(sketcher, gradient(rows)) for rows in x.split(4)])
    expected = sketched(sketcher, gradient(x))
    assert distance(parts, expected) <= 1e-12 * norm(expected)


def test_another_process_makes_the_same_sketch(sketcher: Sketcher) -> None:
    tensor = torch.arange(1000.0)
    found = sketched(sketcher, tensor)
    assert found == sketched(Sketcher(), tensor)
    assert [round(x, 3) for x in found[:4]] == FIRST


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(40, 30).t(),
        torch.randn(40, 30)[::2, ::3],
        torch.randn(50).to(torch.bfloat16),
        torch.randn(50, dtype=torch.complex64),
        torch.nn.Parameter(torch.randn(5)),
        torch.tensor(2.5),
    ],
    ids=["transposed", "strided", "bf16", "complex", "parameter", "scalar"],
)
def test_tensors_of_all_kinds(sketcher: Sketcher, tensor: torch.Tensor) -> None:
    plain = tensor.detach().contiguous()
    exact = torch.view_as_real(plain) if plain.is_complex() else plain.double()
    assert sketched(sketcher, tensor) == sketched(sketcher, exact.clone())
    numbers = sketcher.numbers(tensor)
    assert numbers is not None
    assert math.isclose(numbers[64].item() ** 0.5, exact.double().norm().item(), rel_tol=1e-12)
    assert not numbers.requires_grad


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5),
        torch.ones(3) > 0,
        torch.empty(0),
        torch.ones(3, device="meta"),
        torch.ones(3).to_sparse(),
    ],
    ids=["integers", "flags", "empty", "meta", "sparse"],
)
def test_tensors_without_numbers_in_memory_have_none(
    sketcher: Sketcher, tensor: torch.Tensor
) -> None:
    assert sketcher.numbers(tensor) is None
    assert sketcher.text(tensor) == b""


def test_elements_that_are_not_finite_are_told(sketcher: Sketcher) -> None:
    text = sketcher.text(torch.tensor([1.0, math.nan]))
    stats, _, rest = text.partition(b',"sketch":"')
    assert stats == b'{"nonfinite":1}'
    assert any(map(math.isnan, decode(rest[:-1].decode())))
    assert sketcher.text(torch.tensor([3.0, 4.0])).startswith(b'{"norm":5.0},"sketch":"')


def test_sketches_of_devices_are_read_together(sketcher: Sketcher) -> None:
    one, two = torch.ones(5), torch.randn(7)
    late = [sketcher.numbers(one), b"", torch.tensor(1.0), sketcher.numbers(two)]
    read = read_sketches(late)
    assert read[0] == sketcher.text(one)
    assert read[3] == sketcher.text(two)
    assert read[1:3] == late[1:3]


def test_no_random_number_is_drawn_and_nothing_is_kept(sketcher: Sketcher) -> None:
    before = torch.get_rng_state()
    x = torch.randn(8, requires_grad=True)
    torch.set_rng_state(before)
    y = x * 2
    sketcher.numbers(y)
    assert torch.equal(torch.get_rng_state(), before)
    assert y._version == 0
    assert y.grad_fn is not None
