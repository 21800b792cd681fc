"""What is digested on devices: each tensor as if it were alone. The CPU is one of them here."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from traincheck.collect.tensors.device_fingerprint import finish, read, start

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]
DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64,
    torch.complex128, torch.int64, torch.int16, torch.uint8, torch.bool,
]  # fmt: skip
VIEWS = {"aten::detach", "aten::view", "aten::slice", "aten::as_strided", "detach"}


def digest(tensor, **how):
    return read([start([tensor], **how)])[0][0]


def made(dtype, count, generator):
    if dtype is torch.bool:
        return torch.randint(0, 2, (count,), generator=generator).bool()
    bits = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return bits.view(dtype)


def mixture(seed, device="cpu"):
    """Tensors of all kinds, among them some without elements, with one, and from within others."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    found = []
    for dtype in rng.sample(DTYPES, len(DTYPES)):
        for count in (0, 1, rng.randrange(2, 30), 24 * rng.randrange(1, 9)):
            tensor = made(dtype, count + 3, generator).to(device)[rng.randrange(3) :][:count]
            found.append(tensor.view(2, -1, 3).transpose(0, 2) if count % 24 == 0 else tensor)
            if dtype.is_complex:
                found += [tensor.conj(), tensor.conj().imag]
    found += [torch.tensor(rng.random(), device=device), torch.zeros(9, device=device)[4]]
    found += [torch.arange(5.0, device=device).expand(3, 5), torch.ones(5, 1, device=device)[:, 0]]
    rng.shuffle(found)
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 21])
def test_neither_the_others_nor_chunks_count(chunk, device):
    for seed in range(4):
        tensors = mixture(seed, device)
        alone = [digest(tensor) for tensor in tensors]
        assert read([start(tensors, chunk=chunk)])[0] == alone
        some = tensors[::3]
        assert read([start(some, chunk=chunk), start([]), start(tensors)]) == [
            alone[::3], [], alone,
        ]  # fmt: skip
        assert [digest(tensor.clone(), chunk=chunk) for tensor in tensors] == alone


def test_words_that_move_over_the_border_of_a_chunk_are_seen():
    tensor = torch.arange(64)
    for one, other in ((7, 8), (0, 63), (15, 16), (3, 11)):
        moved = tensor.clone()
        moved[[one, other]] = tensor[[other, one]]
        assert digest(moved, chunk=8) != digest(tensor, chunk=8)
    blocks = tensor.view(8, 8)[[1, 0, *range(2, 8)]].flatten()
    assert digest(blocks, chunk=8) != digest(tensor, chunk=8)


def test_words_that_move_to_another_tensor_are_seen():
    one, other = torch.arange(5), torch.arange(5) + 10
    found = read([start([one, other]), start([other, one])])
    assert found[0] == found[1][::-1]
    assert found[0][0] != found[0][1]


@pytest.mark.parametrize("device", DEVICES)
def test_at_any_address(device):
    memory = torch.randint(0, 256, (64,), dtype=torch.uint8).to(device)
    for first in range(9):
        for size in range(1, 20):
            part = memory[first : first + size]
            assert digest(part) == digest(part.clone())
            assert read([start([memory, part, memory])])[0][1] == digest(part.clone())


@pytest.mark.parametrize(
    ("tensor", "is_zero"),
    [
        (torch.zeros(1000), True),
        (torch.zeros(3, dtype=torch.bfloat16), True),
        (torch.zeros(3, dtype=torch.bool), True),
        (torch.empty(0, 3), True),
        (-torch.zeros(1000), False),  # a sign is no zero
        (torch.zeros(9).index_fill(0, torch.tensor([8]), 1e-45), False),
        (torch.tensor(2.0), False),
        (torch.tensor([False] * 11 + [True]), False),
    ],
)
def test_zeros_are_told(tensor, is_zero):
    assert digest(tensor)[2] is is_zero
    for chunk in (2, 1 << 21):
        (found,) = read([start([torch.ones(3), tensor, torch.zeros(5)], chunk=chunk)])
        assert [zero for *_, zero in found] == [False, is_zero, True]


def operations(tensors, chunk=1 << 21):
    """Names of what torch runs to begin, but for views."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        start(tensors, chunk=chunk)
    return sorted(
        event.name
        for event in found.events()
        if event.name.startswith("aten::") and event.name not in VIEWS
    )


def test_many_tensors_take_no_more_operations_than_some():
    def parts(count):
        return [torch.ones(3 + i % 5, dtype=torch.bfloat16) for i in range(count)]

    some, many = operations(parts(10)), operations(parts(100))
    assert some == many
    assert len(many) < 100
    assert len(operations(parts(1))) < len(some)


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("deterministic")
def test_nothing_of_it_is_nondeterministic(device):
    tensors = mixture(1, device)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = read([start(tensors), start(tensors, chunk=16)])
    assert found[0] == found[1]


class Watching(TorchDispatchMode):
    """A mode of the program, which sees all that it runs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Listening(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(func)


def test_modes_of_the_program_do_not_matter():
    tensors = [torch.arange(9.0), torch.randn(5, requires_grad=True)]
    expected = read([start(tensors)])[0]
    state = torch.get_rng_state()
    with torch.device("meta"), Watching() as watching, Listening():
        assert read([start(tensors)])[0] == expected
    assert not watching.seen
    with torch.autocast("cpu"), torch.enable_grad():
        batch = start(tensors)
        assert not any(rows.requires_grad for _, rows in batch.chunks)
        assert read([batch])[0] == expected
    torch.set_default_dtype(torch.float16)
    try:
        assert read([start(tensors)])[0] == expected
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        batch, made_here = start(tensors), tensors[0] + 0
    assert read([batch])[0] == expected
    assert digest(made_here) == expected[0]
    assert torch.equal(torch.get_rng_state(), state)


def test_transforms_that_the_program_is_in_do_not_matter():
    tensor, begun = torch.arange(9.0), []

    def look(x):
        begun.append(start([tensor, tensor]))
        return x.pow(2).sum()

    torch.func.grad(look)(torch.ones(3))
    torch.func.vmap(look)(torch.ones(2, 3))
    assert read(begun) == 2 * [[digest(tensor)] * 2]


def test_what_is_read_is_what_was_there():
    tensors = [torch.arange(9.0), torch.arange(16).view(4, 4).t()]
    expected = read([start(tensors)])
    begun = start(tensors)
    for tensor in tensors:
        tensor.zero_()
    assert read([begun]) == expected


def test_all_parts_and_the_seed_count():
    one, other = digest(torch.ones(2)), digest(torch.zeros(2))
    found = {finish(parts, 0) for parts in ([one], [other], [one, other], [other, one], [])}
    assert len(found) == 5
    assert finish([one], 1) not in found


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_to_begin_waits_for_no_device():
    tensors = mixture(1, "cuda")
    expected = read([start([tensor.cpu() for tensor in tensors])])
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [start(tensors), start(tensors, chunk=16)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert read(batches) == 2 * expected
    assert read([start([tensors[0], tensors[1].cpu()])])[0] == expected[0][:2]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_work_on_another_stream_is_waited_for():
    tensor = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(50):
            tensor.mul_(2).mul_(0.5)
        tensor.add_(1)
        begun = start([tensor])
    assert read([begun])[0][0] == digest(torch.full((1 << 22,), 2.0))
