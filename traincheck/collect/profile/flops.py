"""FLOPs of a node of the autograd graph, from the shapes that it knows. No tensor is read.

A multiplication and an addition are two. Products of matrices, convolutions, attention and
recurrent layers count; elementwise functions, norms, reductions and copies count as 0. A causal
mask does not halve attention. The backward pass costs one more product for each operand that needs
a gradient; that of attention computes the scores again, so five products for the two of the forward
pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import torch

from traincheck.collect.tensors.reading import as_plain, tensors_in

Shape: TypeAlias = "tuple[int, ...]"


class Flops(NamedTuple):
    """Of one node."""

    forward: int
    backward: int


def flops(node: Any) -> Flops | None:
    """The FLOPs of a node; None if there is no formula and they are not zero."""
    kind = type(node).__name__
    formula = _FORMULAS.get(kind.rstrip("0123456789"))
    if formula is not None:
        return formula(node)
    if kind.rstrip("0123456789") in _NOT_COUNTED:
        return None
    return Flops(0, 0)


def _edge(node: Any, index: int) -> Shape | None:
    """The shape of an operand that needs a gradient; None for others."""
    edges = node.next_functions
    if index >= len(edges) or edges[index][0] is None:
        return None
    source, output = edges[index]
    return tuple(source._input_metadata[output].shape)


def _out(node: Any, index: int = 0) -> Shape:
    return tuple(node._input_metadata[index].shape)


def _needed(node: Any, *indices: int) -> int:
    """How many of these operands need a gradient."""
    edges = node.next_functions
    return sum(index < len(edges) and edges[index][0] is not None for index in indices)


def _saved(node: Any, name: str) -> Shape | None:
    """The shape of a saved tensor, if no hook has packed it."""
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    data = raw.data
    return None if data is None else tuple(data.shape)


def _product(first: int, second: int, names: tuple[str, str]) -> Callable[[Any], Flops | None]:
    """Of a product of two matrices, or of batches of them. first, second: places of operands."""

    def formula(node: Any) -> Flops | None:
        left = _edge(node, first) or _sizes(node, names[0])
        right = _edge(node, second) or _sizes(node, names[1])
        inner = left[-1] if left else right[-2] if right and len(right) > 1 else None
        if inner is None:
            return None
        each = 2 * prod(_out(node)) * inner
        return Flops(each, each * _needed(node, first, second))

    return formula


def _sizes(node: Any, name: str) -> Shape | None:
    sizes = getattr(node, f"_saved_{name}_sym_sizes", None)
    return tuple(map(int, sizes)) if sizes is not None else _saved(node, name)


def _vector(first: int, second: int, names: tuple[str, str]) -> Callable[[Any], Flops | None]:
    """Of a product with a vector: all elements of the larger operand are used once."""

    def formula(node: Any) -> Flops | None:
        left = _edge(node, first) or _saved(node, names[0])
        right = _edge(node, second) or _saved(node, names[1])
        inner = left[-1] if left else right[-1] if right else None
        if inner is None:
            return None
        each = 2 * inner * prod(_out(node))
        return Flops(each, each * _needed(node, first, second))

    return formula


def _convolution(node: Any) -> Flops | None:
    weight = _edge(node, 1) or _saved(node, "weight")
    if weight is None:
        return None
    if not node._saved_transposed:
        each = 2 * prod(_out(node)) * prod(weight[1:])
    else:
        given = _edge(node, 0) or _saved(node, "input")
        if given is None:
            return None
        each = 2 * prod(given) * prod(weight[1:])
    return Flops(each, each * _needed(node, 0, 1))


def _attention(node: Any) -> Flops | None:
    """Scores and values: two products of the size queries x keys."""
    query, key, value = (_edge(node, i) or _saved(node, n) for i, n in enumerate(_QKV))
    out = _out(node)
    query = query or ((*out[:-1], key[-1]) if key else None)
    keys = key or value
    if query is None or keys is None:
        return None
    size, length, heads = query[-1], keys[-2], prod(query[:-2])
    width = value[-1] if value else out[-1]
    scores, values = 2 * heads * query[-2] * length * size, 2 * heads * query[-2] * length * width
    needs = 3 * scores + 2 * values if _needed(node, 0, 1, 2) else 0
    return Flops(scores + values, needs)


_QKV = ("query", "key", "value")


def _recurrent_layer(node: Any) -> Flops | None:
    """One direction of one layer: both matrices once for each token."""
    inner, state = (
        (_edge(node, 1) or _saved(node, "weight0")),
        (_edge(node, 2) or _saved(node, "weight1")),
    )
    if inner is None or state is None:
        return None
    tokens = prod(_out(node)[:-1])
    each = 2 * tokens * (prod(inner) + prod(state))
    needs = _needed(node, 0) * 2 * tokens * prod(inner) + 2 * tokens * prod(state)
    return Flops(each, needs + each * min(1, _needed(node, 1, 2)))


def _recurrent_cudnn(node: Any) -> Flops | None:
    """All layers and directions in one node; its weights are matrices and biases."""
    weights = [
        tuple(source._input_metadata[output].shape)
        for source, output in node.next_functions[1:]
        if source is not None
    ]
    matrices = [shape for shape in weights if len(shape) > 1]
    if not matrices:
        return None
    each = 2 * prod(_out(node)[:-1]) * sum(map(prod, matrices))
    return Flops(each, 2 * each)


def _trilinear(node: Any) -> Flops | None:
    """`torch.bilinear`: for each row and output, a matrix between two vectors."""
    weight = _edge(node, 1) or _saved(node, "i2")
    if weight is None:
        return None
    weight = weight[-3:]
    rows = prod(_out(node)) // weight[0]
    each = 2 * rows * prod(weight) + 2 * rows * weight[0] * weight[2]
    return Flops(each, each * _needed(node, 0, 1, 2))


_FORMULAS: dict[str, Callable[[Any], Flops | None]] = {
    "AddmmBackward": _product(1, 2, ("mat1", "mat2")),
    "MmBackward": _product(0, 1, ("self", "mat2")),
    "BmmBackward": _product(0, 1, ("self", "mat2")),
    "BaddbmmBackward": _product(1, 2, ("batch1", "batch2")),
    "MvBackward": _vector(0, 1, ("self", "vec")),
    "AddmvBackward": _vector(1, 2, ("mat", "vec")),
    "DotBackward": _vector(0, 1, ("self", "tensor")),
    "ConvolutionBackward": _convolution,
    "ScaledDotProductFlashAttentionForCpuBackward": _attention,
    "ScaledDotProductFlashAttentionBackward": _attention,
    "ScaledDotProductEfficientAttentionBackward": _attention,
    "ScaledDotProductCudnnAttentionBackward": _attention,
    "ScaledDotProductFusedAttentionOverrideableBackward": _attention,
    "MkldnnRnnLayerBackward": _recurrent_layer,
    "CudnnRnnBackward": _recurrent_cudnn,
    "MiopenRnnBackward": _recurrent_cudnn,
    "TrilinearBackward": _trilinear,
}


def _linear(node: Any) -> Flops | None:
    """A fused linear layer: input and weight, whose last dims are multiplied."""
    given, weight = _edge(node, 0) or _saved(node, "input"), _edge(node, 1)
    weight = weight or _saved(node, "weight")
    inner = given[-1] if given else weight[-1] if weight else None
    if inner is None:
        return None
    each = 2 * prod(_out(node)) * inner
    return Flops(each, each * _needed(node, 0, 1))


_FORMULAS["LinearBackward"] = _FORMULAS["MkldnnLinearBackward"] = _linear


def untaped(
    module: torch.nn.Module, inputs: Sequence[tuple[Sequence[int], str]] | None,
    outputs: Sequence[torch.Tensor],
) -> int | None:  # fmt: skip
    """Forward FLOPs of a call that made no node, from its shapes; None if there is no formula.

    inputs: shapes and dtypes.
    """
    made = as_plain(outputs[0]).numel()
    if isinstance(module, torch.nn.Linear):
        return 2 * made * module.in_features
    if isinstance(module, torch.nn.modules.conv._ConvTransposeNd):
        return 2 * prod(inputs[0][0]) * prod(module.weight.shape[1:]) if inputs else None
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return 2 * made * prod(module.weight.shape[1:])
    if isinstance(module, torch.nn.RNNBase):
        tokens = prod(outputs[0].shape[:-1])
        return 2 * tokens * sum(p.numel() for p in map(as_plain, tensors_in(module)) if p.dim() > 1)
    has_matrix = any(p.dim() > 1 for p in map(as_plain, tensors_in(module)))
    return None if has_matrix and not isinstance(module, torch.nn.Embedding) else 0


# Nodes that compute much and have no formula.
_NOT_COUNTED = frozenset(
    f"{name}Backward"
    for name in (
        "Addbmm", "CdistForward", "CdistBackward", "Cholesky", "CholeskyInverse", "CholeskySolve",
        "CtcLoss", "EuclideanDist", "FftC2C", "FftC2R", "FftR2C", "GeqrfBackward", "GridSampler2D",
        "GridSampler3D", "GroupedMm", "LinalgCholeskyEx", "LinalgEig", "LinalgEigh",
        "LinalgInvEx", "LinalgLstsq", "LinalgLu", "LinalgLuFactorEx", "LinalgLuSolve",
        "LinalgMatrixExp", "LinalgQr", "LinalgSolveEx", "LinalgSolveTriangular", "LinalgSvd",
        "Lstm", "LstmMps", "PdistForward", "ScaledGroupedMm", "ScaledMm", "SlowConvDilated2D",
        "SlowConvDilated3D", "SparseAddmm", "SparseMm", "SparseSparseMatmul",
        "ThnnFusedGruCell", "ThnnFusedLstmCell", "TriangularSolve",
    )
)  # fmt: skip
