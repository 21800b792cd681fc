"""No change is missed, and nothing but content, shape and dtype counts."""

from __future__ import annotations

import random

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from traincheck.collect.tensors import fingerprint as module
from traincheck.collect.tensors.device_fingerprint import finish, read, start
from traincheck.collect.tensors.fingerprint import (
    PROBE_SLICE,
    PROBED,
    fingerprint,
    is_plain_cpu,
    row_fingerprints,
    seed_of,
    seed_of_parts,
    zeros_digest,
    zeros_probe,
)
from traincheck.collect.tracking.tracked_tensor import TrackedTensor

FLOAT8 = [
    f"float8_{kind}"
    for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    if hasattr(torch, f"float8_{kind}")
]
DTYPES = [
    "float32", "float64", "float16", "bfloat16", *FLOAT8,
    "int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "complex128",
]  # fmt: skip


def sliced(tensor):
    """Every second element of a storage; torch 2.4 has no ``stack`` for float8."""
    pairs = tensor.new_empty((*tensor.shape, 2))
    pairs[..., 0], pairs[..., 1] = tensor, tensor
    return pairs[..., 0]


LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "sliced": sliced,
    "channels_last": lambda t: t.to(memory_format=torch.channels_last),
    "reversed_storage": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}
SHAPE = (4, 3, 2, 3)
KINDS = ("bit", "rows", "sign", "fill")


def mix(tensor):
    """The algorithm of devices, run where the tensor is."""
    return finish(read([start([tensor])])[0], seed_of(tensor))


def probe(tensor):
    """The digest of three slices of a plain tensor."""
    return module.probe(module.slices(tensor.data_ptr(), tensor.nbytes), seed_of(tensor))


def raw(tensor):
    """The bytes of a contiguous tensor, shared with it."""
    return tensor.view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)


def make(dtype, generator):
    """Random content; random bits, so that rare values are met too."""
    torch_dtype = getattr(torch, dtype)
    if dtype == "bool":
        return torch.randint(0, 2, SHAPE, generator=generator).bool()
    size = torch.empty((), dtype=torch_dtype).element_size()
    count = torch.Size(SHAPE).numel() * size
    bits = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8)
    return bits.view(torch_dtype).view(SHAPE)


def mutate(tensor, kind, rng):
    """A copy that differs in the given manner; None when it would be the same."""
    made = tensor.clone()
    data = raw(made).flatten()
    before = data.clone()
    size = tensor.element_size()
    if kind == "bit":
        at = rng.randrange(data.numel())
        data[at] ^= 1 if tensor.dtype is torch.bool else 1 << rng.randrange(8)
    elif kind == "rows":
        one, other = rng.sample(range(tensor.shape[0]), 2)
        rows = data.view(tensor.shape[0], -1)
        rows[[one, other]] = rows[[other, one]]
    elif kind == "sign":  # the highest bit of one element, little endian
        data[rng.randrange(tensor.numel()) * size + size - 1] ^= (
            1 if tensor.dtype is torch.bool else 0x80
        )
    else:
        value = rng.choice([0, 1]) if tensor.dtype is torch.bool else rng.randrange(256)
        data.fill_(value)
    return None if torch.equal(before, data) else made


def cases(count, seed):
    """``count`` pairs of tensors that differ, over dtypes, layouts and kinds of change."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    combinations = [(d, y, k) for d in DTYPES for y in LAYOUTS for k in KINDS]
    bases = {}
    made = 0
    while made < count:
        dtype, layout, kind = combinations[made % len(combinations)]
        key = dtype, made // (20 * len(combinations))
        base = bases.get(key)
        if base is None:
            base = bases[key] = make(dtype, generator)
        changed = mutate(base, kind, rng)
        if changed is None:
            continue
        made += 1
        yield dtype, layout, kind, LAYOUTS[layout](base), LAYOUTS[layout](changed)


@pytest.mark.parametrize(
    ("digest", "count"), [(fingerprint, 10_000), (mix, 10_000)], ids=["cpu", "device"]
)
def test_no_change_is_missed(digest, count):
    seen = 0
    for dtype, layout, kind, one, other in cases(count, seed=7):
        assert digest(one) != digest(other), (dtype, layout, kind)
        seen += 1
    assert seen == count


@pytest.mark.parametrize("digest", [fingerprint, mix], ids=["cpu", "device"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layout_and_identity_do_not_count(dtype, digest):
    base = make(dtype, torch.Generator().manual_seed(1))
    expected = digest(base)
    assert expected is not None
    for name, lay in LAYOUTS.items():
        assert digest(lay(base)) == expected, name
        assert digest(lay(base.clone())) == expected, name
    assert digest(torch.nn.Parameter(base, requires_grad=False)) == expected


@pytest.mark.parametrize("digest", [fingerprint, mix], ids=["cpu", "device"])
def test_shape_and_dtype_count(digest):
    base = torch.arange(12, dtype=torch.float32)
    same_bits = [
        base,
        base.view(3, 4),
        base.view(4, 3),
        base.view(12, 1),
        base.view(torch.int32),
        base.view(torch.complex64),
        base.view(torch.bfloat16),
        base.view(torch.uint8),
    ]
    assert len({digest(tensor) for tensor in same_bits}) == len(same_bits)
    empty = [torch.empty(shape) for shape in ((0,), (0, 3), (3, 0))]
    empty.append(torch.empty(0, dtype=torch.int64))
    assert len({digest(tensor) for tensor in empty}) == len(empty)
    assert digest(torch.empty(0, 3)) == digest(torch.empty(0, 3))


@pytest.mark.parametrize("digest", [fingerprint, mix], ids=["cpu", "device"])
def test_one_number(digest):
    values = [torch.tensor(v) for v in (0.0, -0.0, 1.0, float("nan"), float("inf"))]
    values += [torch.tensor(0), torch.tensor(False), torch.tensor([0.0])]
    assert len({digest(value) for value in values}) == len(values)
    assert digest(torch.tensor(1.0)) == digest(torch.tensor([1.0, 2.0])[0])


@pytest.mark.parametrize("digest", [fingerprint, mix], ids=["cpu", "device"])
def test_constants_and_multiples_differ(digest):
    """What sums and XORs are blind to."""
    ones = torch.ones(64)
    values = [torch.zeros(64), ones, -ones, 2 * ones, torch.eye(8).flatten()]
    values.append(torch.cat([torch.zeros(32), torch.ones(32)]))
    values.append(torch.cat([torch.ones(32), torch.zeros(32)]))
    assert len({digest(value) for value in values}) == len(values)


@pytest.mark.parametrize("digest", [fingerprint, mix], ids=["cpu", "device"])
def test_views_of_unusual_kinds(digest):
    row = torch.arange(5.0)
    expanded = row.expand(3, 5)
    assert digest(expanded) == digest(expanded.contiguous())
    assert digest(expanded) != digest(row)
    values = torch.complex(torch.arange(6.0), torch.arange(6.0) + 1)
    conjugate = values.conj()
    assert conjugate.is_conj()
    assert digest(conjugate) == digest(conjugate.resolve_conj())
    assert digest(conjugate) != digest(values)
    negative = conjugate.imag
    assert negative.is_neg()
    assert digest(negative) == digest(negative.resolve_neg())
    assert digest(negative) != digest(values.imag)


def test_sparse_tensors():
    indices, values = torch.tensor([[0, 2, 2], [1, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
    coo = torch.sparse_coo_tensor(indices, values, (3, 3), check_invariants=True)
    found = {fingerprint(coo)}
    twin = torch.sparse_coo_tensor(indices.clone(), values.clone(), (3, 3), check_invariants=True)
    assert fingerprint(twin) in found
    shuffled = torch.sparse_coo_tensor(
        indices[:, [2, 0, 1]], values[[2, 0, 1]], (3, 3), check_invariants=True
    )
    assert fingerprint(shuffled) in found  # the order of its entries is no content
    assert not shuffled.is_coalesced()
    for changed in (values * 2, values.flip(0)):
        found.add(
            fingerprint(torch.sparse_coo_tensor(indices, changed, (3, 3), check_invariants=True))
        )
    found.add(
        fingerprint(torch.sparse_coo_tensor(indices.flip(0), values, (3, 3), check_invariants=True))
    )
    assert len(found) == 4
    assert None not in found


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("to", ["to_sparse_csr", "to_sparse_csc"])
def test_compressed_sparse_tensors(to):
    dense = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 3.0]])
    found = [
        fingerprint(getattr(t, to)()) for t in (dense, dense.clone(), 2 * dense, dense.flip(0))
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 3
    assert None not in found


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    def nested(*rows):
        return torch.nested.nested_tensor(list(rows), layout=layout)

    ones, zeros = torch.ones(2, 3), torch.zeros(3, 3)
    found = [
        fingerprint(tensor)
        for tensor in (
            nested(ones, zeros),
            nested(ones.clone(), zeros.clone()),
            nested(zeros, ones),
            nested(torch.ones(3, 3), torch.zeros(2, 3)),
            nested(torch.cat([ones, zeros])[:1], torch.cat([ones, zeros])[1:]),  # other sizes
        )
    ]
    assert found[0] == found[1]
    assert len(set(found)) == 4
    assert None not in found


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_tensors_in_the_layout_of_a_library():
    values = torch.randn(4, 5)
    found = {fingerprint(t.to_mkldnn()) for t in (values, values.clone(), values.flip(0))}
    assert len(found) == 2
    assert None not in found


def test_what_stands_for_others_has_no_fingerprint():
    """Inside vmap a tensor is one of many, and has no separate memory."""
    found = []

    def look(row):
        found.extend(map(fingerprint, (row, row[::2], row.conj())))
        return row

    torch.func.vmap(look)(torch.zeros(3, 4, dtype=torch.complex64))
    assert found == [None, None, None]


def test_no_data_no_fingerprint():
    assert fingerprint(torch.empty(3, device="meta")) is None
    with FakeTensorMode():
        fake = torch.empty(3)
    assert fingerprint(fake) is None


class Sharded(torch.Tensor):
    """As DTensor does: this rank's part is in ``_local_tensor``."""


def test_of_a_distributed_tensor_this_ranks_part_counts():
    def sharded(local):
        made = torch.zeros(4, 2).as_subclass(Sharded)
        made._local_tensor = local
        return made

    one, same, other = (
        fingerprint(sharded(t)) for t in (torch.ones(2), torch.ones(2), torch.zeros(2))
    )
    assert one == same != other


def test_the_tensor_stays_as_it_was():
    leaf = torch.randn(6, 5, requires_grad=True)
    loss = (leaf.t() * 2).sum()
    sparse = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,), check_invariants=True)
    tensors = [leaf, leaf.t(), torch.randn(8).bfloat16(), torch.randn(3, dtype=torch.cfloat).conj()]
    before = [(t.clone(), t._version, t.stride(), t.is_conj()) for t in tensors]
    state, mode = torch.get_rng_state(), torch.is_grad_enabled()
    for tensor in (*tensors, sparse):
        fingerprint(tensor)
    for tensor in tensors:
        mix(tensor)
    probe(leaf)
    for tensor, (content, version, stride, conj) in zip(tensors, before):
        assert torch.equal(tensor, content)
        assert (tensor._version, tensor.stride(), tensor.is_conj()) == (version, stride, conj)
    assert not sparse.is_coalesced()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() is mode
    loss.backward()
    assert torch.equal(leaf.grad, torch.full((6, 5), 2.0))


def test_the_algorithm_is_named():
    tensor = torch.arange(1000.0)
    assert fingerprint(tensor).startswith("xxh3-128:")
    assert mix(tensor).startswith("mix-128:")


def test_each_of_several_parts_has_a_dtype_and_a_shape():
    """Without them the words of two sizes could be those of one."""
    whole = torch.zeros(4)
    parts = [torch.zeros(4), torch.zeros(2, 2), torch.zeros(4).int(), torch.zeros(5).bool()]
    seeds = {seed_of_parts(whole, [torch.zeros(3), part]) for part in parts}
    assert len(seeds) == len(parts)
    assert seed_of_parts(whole, [whole]) == seed_of(whole)


class Wrapped(torch.Tensor):
    """Says what its elements are like, and has none."""

    @staticmethod
    def __new__(cls, like):
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(func)


def test_a_wrapper_that_does_not_tell_its_parts_has_no_fingerprint():
    assert fingerprint(Wrapped(torch.ones(3))) is None


# -- probe


def test_a_differing_probe_proves_a_change():
    rng = random.Random(3)
    for size in (1, 60, 190, 193, 400, 5000):
        base = torch.randn(size, generator=torch.Generator().manual_seed(size))
        seen, missed = 0, 0
        for _ in range(200):
            other = base.clone()
            raw(other)[rng.randrange(base.nbytes)] ^= 1 << rng.randrange(8)
            if probe(other) != probe(base):
                assert fingerprint(other) != fingerprint(base)
                seen += 1
            else:
                missed += 1
        assert seen
        assert probe(base.clone()) == probe(base)
        assert (missed == 0) == (base.nbytes <= PROBED), "a small tensor is read whole"


@pytest.mark.parametrize("where", ["head", "middle", "tail"])
def test_a_probe_reads_head_middle_and_tail(where):
    base = torch.zeros(10_000)
    at = {"head": 0, "middle": 5_000, "tail": 9_999}[where]
    other = base.clone()
    other[at] = 1
    assert probe(other) != probe(base)
    beside = base.clone()
    beside[PROBE_SLICE] = 1  # the twin: between the slices, where a probe is blind
    assert probe(beside) == probe(base)
    assert fingerprint(beside) != fingerprint(base)


def test_a_probe_knows_shape_and_dtype():
    base = torch.zeros(1024)
    views = [base, base.view(32, 32), base.view(torch.int32), base.view(torch.bfloat16)]
    assert len({probe(view) for view in views}) == len(views)


# -- others


def test_plain_means_bits_in_logical_order():
    plain = torch.randn(4, 4)
    assert is_plain_cpu(plain)
    unusual = [
        plain.t(),
        plain[:, ::2],
        plain.to_sparse(),
        torch.empty(3, device="meta"),
        torch.randn(3, dtype=torch.cfloat).conj(),
    ]
    assert not any(is_plain_cpu(tensor) for tensor in unusual)


def test_equal_rows_have_equal_fingerprints():
    batch = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
    one, two, three = row_fingerprints(batch, 10)
    assert one == three != two
    assert row_fingerprints(batch.flip(0), 2) == [three, two]
    assert row_fingerprints(torch.empty(0, 2), 10) == []
    assert len(set(row_fingerprints(torch.empty(3, 0), 2))) == 1, "rows without elements are alike"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 4), (192,), (193,), ((1 << 20) + 7,)], ids=str)
def test_zeros_are_known_without_a_tensor(dtype, shape):
    zeros = torch.zeros(shape, dtype=dtype)
    size, seed = zeros.nbytes, seed_of(zeros)
    assert zeros_digest(size, seed) == fingerprint(zeros)
    assert zeros_probe(size, seed) == probe(zeros)
    if zeros.numel():
        assert fingerprint(torch.ones(shape, dtype=dtype)) != zeros_digest(size, seed)


def test_variables_of_one_shape_share_what_is_known_of_it():
    """Else thousands of small parameters fill the garbage collector's lists."""
    one, other = (TrackedTensor(name, "gradient", None) for name in ("a", "b"))
    tensors = torch.ones(3, 4), torch.ones(3, 4)
    for variable, tensor in zip((one, other), tensors, strict=True):
        assert variable.fits(tensor)
    assert one.kind is other.kind
    assert one.zero_digest == fingerprint(torch.zeros(3, 4))
    assert other.fits(torch.ones(3, 4, dtype=torch.float64))
    assert (one.dtype, other.dtype) == (torch.float32, torch.float64)
    assert one.exact_digest(tensors[0]) == fingerprint(tensors[1])
