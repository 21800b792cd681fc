"""The graph of a loss: its nodes, hooks on them, and the terms that it is made of.

A term is the first node whose inputs are not scalars: a loss function, a mean, a sum. Only names
and sizes are read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container
from math import prod
from typing import Any, NamedTuple

import torch

from traincheck.handlers import give_back

# The base of nodes that programs define. Older torch does not have the sizes of inputs.
CUSTOM: type = getattr(torch._C, "_FunctionBase", object)
IS_TOLD = hasattr(CUSTOM, "_input_metadata")
_kinds: dict[type, str] = {}  # of the nodes of torch, one for each function
_WHOLE = frozenset({int})  # not the symbols that stand for sizes

Sizes = tuple[int, ...]


# Reading a saved tensor runs the hooks that packed it, which may compute a whole layer again.
class Input(NamedTuple):
    """An input of a node: an output of another node. sizes: None if not known."""

    node: Any
    output: int
    sizes: Sizes | None


def node_of(tensor: torch.Tensor) -> Any:
    """Its node in the graph. None also for a view that torch refuses to place in one."""
    try:
        return tensor.grad_fn
    except RuntimeError as error:  # it was made without gradients, and its base was written to
        give_back(error)
        return None


def kind(node: Any) -> str | None:
    """The part of its name before ``Backward``; None for a node that a program defined."""
    cls = type(node)
    found = _kinds.get(cls)
    if found is None and not issubclass(cls, CUSTOM):
        found = _kinds[cls] = cls.__name__.partition("Backward")[0]
    return found


def inputs(node: Any) -> list[Input | None]:
    """The inputs of a node by position; None for inputs that are not differentiated."""
    return [
        None if source is None else Input(source, index, _sizes(source, index))
        for source, index in node.next_functions
    ]


def signed(number: int) -> int:
    """Graphs store -1 as the largest number of 64 bits."""
    return number - 2**64 if number >= 2**63 else number


def _sizes(node: Any, index: int) -> Sizes | None:
    """Sizes of an output of a node; None if they are not whole numbers."""
    try:
        sizes = tuple(node._input_metadata[index].shape)
    except Exception as error:  # nested tensors have no sizes, undefined outputs have nothing
        give_back(error)
        return None
    return sizes if _WHOLE.issuperset(map(type, sizes)) else None


_MOST_NODES = 128
_MOST_BELOW = 12  # nodes below a term among which the loss function is searched

# By the part of their names before ``Backward``.
ADDITIONS = frozenset({"Add", "Sub", "Rsub"})
_LINEAR = ADDITIONS | {
    "Alias", "Clone", "Expand", "Neg", "ReshapeAlias", "Select", "Squeeze", "ToCopy", "Unsqueeze",
    "UnsafeView", "View",
}  # fmt: skip
_PRODUCTS = frozenset({"Mul", "Div"})
# A factor that is such a function of a mean is no weight of a sample.
_CURVED = frozenset({"Exp", "Expm1", "Sigmoid", "Softplus", "Tanh"})
_OTHER = frozenset({
    "Abs", "Clamp", "ClampMax", "ClampMin", "Log", "Log1P", "LogSigmoid", "Maximum", "Minimum",
    "Pow", "Reciprocal", "Relu", "Sqrt", "Where",
})  # fmt: skip
_FOLLOWED = _LINEAR | _PRODUCTS | _CURVED | _OTHER
REDUCTIONS = frozenset({"Mean", "Sum"})
_JOINING = frozenset({"Stack", "Cat"})
_OVER_CLASSES = "NllLoss"
_LEAF = "AccumulateGrad"


class Key(NamedTuple):
    """The identity of a node without the node: its number in its thread, and its name."""

    number: int
    name: str


class ScalarGraph:
    """The scalar nodes behind a root.

    Args:
        root: the output to begin at.
        ends: nodes that are terms although their inputs are scalars: results of loss functions.

    Attributes:
        terms: the outputs at which the scalar part ends, by the identity of their nodes.
        nodes: identities of the scalar nodes on the way.
        weighted: terms that are multiplied by a curved function of themselves.
        is_whole: whether all of it was read.
    """

    def __init__(self, root: Input, ends: Container[Key] = ()) -> None:
        self.terms: dict[Key, Input] = {}
        self.nodes: set[Key] = set()
        self.weighted: set[Key] = set()
        self.is_whole = True
        self._ends = ends
        self._known: dict[tuple[Key, int], dict[Key, bool]] = {}
        self._follow(root)

    def _follow(self, here: Input) -> dict[Key, bool]:
        """The terms behind an output, and whether a curved function is on the way."""
        key = key_of(here.node)
        known = self._known.get((key, here.output))
        if known is not None:
            return known
        if len(self._known) >= _MOST_NODES:
            self.is_whole = False
            return {}
        found: dict[Key, bool] = {}
        self._known[key, here.output] = found
        if key.name == _LEAF:  # a parameter, such as a learned weight
            return found
        sources = () if key in self._ends else _sources(here)
        if not sources:
            self.terms[key] = here
            found[key] = False
            return found
        self.nodes.add(key)
        parts = [self._follow(each) for each in sources]
        if key.name in _PRODUCTS and len(parts) > 1:
            common = parts[0].keys() & parts[1].keys()
            self.weighted |= {term for term in common if parts[0][term] or parts[1][term]}
        is_curved = key.name in _CURVED
        for part in parts:
            for term, was_curved in part.items():
                found[term] = found.get(term, False) or was_curved or is_curved
        return found


def key_of(node: Any) -> Key:
    """The identity of a node."""
    return Key(node._sequence_nr(), kind(node) or type(node).__name__)


def elements(term: Input) -> int:
    """Number of elements, or of labels, that a term was reduced from; 0 if not known."""
    given = [each for each in inputs(term.node) if each is not None]
    for _ in range(_MOST_BELOW):
        if len(given) != 1 or not _is_scalar(given[0]):
            break
        term = given[0]
        given = [each for each in inputs(term.node) if each is not None]
    if not given or given[0].sizes is None:
        return 0
    sizes = given[0].sizes
    name = kind(term.node) or ""
    if name.startswith(_OVER_CLASSES) and len(sizes) > 1:
        return prod(sizes) // max(1, sizes[1])
    return prod(sizes)


def below(term: Input) -> list[Key]:
    """The term, and nodes near below it, the nearest first."""
    found, to_do = [key_of(term.node)], [term]
    while to_do and len(found) < _MOST_BELOW:
        for each in inputs(to_do.pop(0).node):
            if each is not None:
                found.append(key_of(each.node))
                to_do.append(each)
    return found


def _sources(here: Input) -> list[Input]:
    """The scalar inputs of a scalar operation; none if it is a term."""
    name = kind(here.node) or ""
    given = [each for each in inputs(here.node) if each is not None]
    if name in REDUCTIONS and len(given) == 1 and kind(given[0].node) in _JOINING:
        given = [each for each in inputs(given[0].node) if each is not None]
        return given if all(map(_is_scalar, given)) else []
    return given if name in _FOLLOWED and all(map(_is_scalar, given)) else []


def _is_scalar(given: Input) -> bool:
    return given.sizes is not None and prod(given.sizes) == 1


# ``register_prehook`` makes a handle, and handles are numbered in order: those that the program
# makes later would have other numbers.
def before_node(node: Any, hook: Callable[[Any], None], output: int = 0) -> None:
    """Call ``hook`` with the gradient of an output of ``node``, before the node computes.

    The gradient is None if none arrives at this output.
    """
    carrier: Any = torch.empty(0, device="cpu")
    if output:  # the number is that of the tensor
        with torch.enable_grad():
            carrier = torch.empty(output + 1, device="cpu").requires_grad_().unbind()[output]
    carrier._backward_hooks = OrderedDict({id(hook): hook})
    node._register_hook_dict(carrier)
