"""One tracked tensor and what was last seen of it. How a look tells that it changed: looker.py."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeAlias

import orjson
import torch

from traincheck.collect.fingerprint import (
    PLAIN_TYPES,
    PROBED,
    byte_view,
    fingerprint,
    hex128,
    is_plain_cpu,
    probe,
    seed_of,
    slices,
)

GRADIENT = "gradient"
PARAMETER = "parameter"
BUFFER = "buffer"
_MOST_PLACES = 32
# What must be as it was for a look to read the memory; one call into C for all five
Kind: TypeAlias = tuple[type, bool, torch.layout, torch.dtype, torch.Size]
kind_of: Callable[[torch.Tensor], Kind] = attrgetter(
    "__class__", "is_cpu", "layout", "dtype", "shape"
)


class Variable:
    """One named tensor and what was last seen of it.

    digest: exact fingerprint last seen, None when not known.
    exact_only: a probe missed a change once (written in few places, like an embedding), or the
    tensor is not plain.
    is_small: a probe reads all of it.
    identity: of the object; of a gradient, its memory address, for us only.
    """

    __slots__ = (
        "address", "digest", "dtype", "exact_only", "fixed", "head", "identity", "is_gradient",
        "is_odd", "is_small", "kind", "lines", "module_class", "name", "owner", "parts", "places",
        "probe", "requires_grad", "rested", "role", "seed", "shape", "size", "stats", "storage",
        "usual", "view", "zero", "zero_digest", "zero_probe",
    )  # fmt: skip

    def __init__(
        self, name: str, role: str, module_class: str | None, owner: str | None = None
    ) -> None:
        self.name = name
        self.role = role
        self.is_gradient = role == GRADIENT
        self.module_class = module_class
        self.owner = owner
        self.digest: str | None = None
        self.probe: int | None = None
        self.zero: bool | None = None
        self.zero_digest: str | None = None
        self.zero_probe: int | None = None
        self.exact_only = False
        self.is_small = False
        self.identity = 0
        self.storage = 0
        self.requires_grad = False
        self.is_odd = True
        self.kind: Kind | None = None  # None where looks cannot simply read the memory
        self.shape: torch.Size | None = None
        self.dtype: torch.dtype | None = None
        self.seed = 0
        self.size = 0
        self.view: Callable[[int], Any] = byte_view(0)
        # Where the tensor was last probed, and views of what lay there: made anew when it moves
        self.address = -1
        self.parts: tuple[Any, ...] = ()
        # Of former addresses too: gradients are given back some of the same few in every step
        self.places: dict[int, tuple[Any, ...]] = {}
        self.head = b""  # serialized dtype, shape and device
        self.fixed = b""  # serialized name, role, identity ...
        self.lines: dict[Any, bytes] = {}  # templates of its records, made of the two
        # The one for what nearly all looks find: other content, or a gradient that is not zero
        self.usual: bytes | None = None
        self.stats: Any = b""  # numbers for the next record; a tensor while they are on a device
        self.rested: Any = None  # of `Turns`

    def describe(self, tensor: torch.Tensor) -> None:
        """Take over shape and dtype, which fingerprints contain."""
        self.shape, self.dtype = tensor.shape, tensor.dtype
        fields = {
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "shape": [int(size) for size in tensor.shape],
            "device": str(tensor.device),
        }
        self.head = orjson.dumps(fields)[:-1]
        self.lines, self.usual = {}, None
        self.address = -1
        self.places.clear()
        # a distributed tensor says that it is contiguous and on the CPU, and has no memory
        self.is_odd = type(tensor) not in PLAIN_TYPES or not is_plain_cpu(tensor)
        self.kind = None if self.is_odd else kind_of(tensor)
        self.zero_digest = self.zero_probe = None
        if not self.is_odd:
            self.size = tensor.nbytes
            self.seed, self.view = seed_of(tensor), byte_view(self.size)
            self.is_small = self.size <= PROBED
            if self.is_gradient:
                zeros = torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
                self.zero_digest = fingerprint(zeros)
                self.zero_probe = probe(slices(zeros.data_ptr(), self.size), self.seed)

    def lies_as_before(self, tensor: torch.Tensor) -> bool:
        """Whether what `describe` found out is true of this tensor."""
        return self.kind is not None and kind_of(tensor) == self.kind and is_plain_cpu(tensor)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether the memory of this tensor can simply be read; what differs is described anew."""
        if self.lies_as_before(tensor):
            return True
        is_odd = type(tensor) not in PLAIN_TYPES or not is_plain_cpu(tensor)
        is_known = is_odd and self.is_odd
        if not is_known or tensor.shape != self.shape or tensor.dtype is not self.dtype:
            self.describe(tensor)
        return not is_odd

    def exact_digest(self, tensor: torch.Tensor) -> str:
        """`fingerprint` of a plain tensor that `describe` has seen, without looking at it anew."""
        return f"xxh3-128:{hex128(self.view(tensor.data_ptr()), self.seed)}"

    def probed(self, tensor: torch.Tensor) -> int:
        """`probe` of a plain tensor that `describe` has seen."""
        address = tensor.data_ptr()
        if address != self.address:
            self.locate(address)
        return probe(self.parts, self.seed)

    def locate(self, address: int) -> None:
        """Views of the memory where the tensor lies now, for probes."""
        self.address = address
        known = self.places.get(address)
        if known is None:
            if len(self.places) >= _MOST_PLACES:
                self.places.clear()
            known = self.places[address] = slices(address, self.size)
        self.parts = known

    def bind(self, identity: int, tensor: torch.Tensor) -> None:
        """Stand for another object from now on."""
        self.identity = identity
        self.storage = _storage(tensor)
        self.requires_grad = tensor.requires_grad
        self.fixed = b""
        self.lines, self.usual = {}, None


def _storage(tensor: torch.Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (
        RuntimeError,
        NotImplementedError,
        AttributeError,
    ):  # sparse, meta, wrapped: there is none
        return 0
