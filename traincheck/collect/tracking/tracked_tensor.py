"""One tracked tensor and its last known state. change_detector.py finds its changes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson
import torch

from traincheck.collect.tensors.fingerprint import (
    PROBED,
    byte_view,
    hex128,
    is_plain_cpu,
    probe,
    seed_of,
    slices,
    zeros_digest,
    zeros_probe,
)
from traincheck.collect.tensors.reading import PLAIN_TYPES, as_plain, requires_grad
from traincheck.handlers import give_back

GRADIENT = "gradient"
PARAMETER = "parameter"
BUFFER = "buffer"
_MOST_PLACES = 32
_MOST_FORMS = 4096
# The properties that must be unchanged for a scan to read the memory; one C call for all five
Kind: TypeAlias = tuple[type, bool, torch.layout, torch.dtype, torch.Size]
kind_of: Callable[[torch.Tensor], Kind] = attrgetter(
    "__class__", "is_cpu", "layout", "dtype", "shape"
)


NO_LINES: Mapping[Any, bytes] = MappingProxyType({})


class Form:
    """The common properties of plain CPU tensors of one kind. Many variables share one.

    Attributes:
        head: serialized dtype, shape and device.
        size: bytes.
        is_small: a probe reads all of it.
    """

    __slots__ = ("_zeros", "head", "is_small", "kind", "seed", "size", "view")

    def __init__(self, kind: Kind, tensor: torch.Tensor) -> None:
        self.kind = kind
        self.head = _head(tensor)
        self.size = tensor.nbytes
        self.seed, self.view = seed_of(tensor), byte_view(self.size)
        self.is_small = self.size <= PROBED
        self._zeros: tuple[str, int] | None = None

    @property
    def zeros(self) -> tuple[str, int]:
        """Digest and probe of such a tensor when all its bits are zero."""
        if self._zeros is None:
            self._zeros = zeros_digest(self.size, self.seed), zeros_probe(self.size, self.seed)
        return self._zeros


class _Forms(dict[tuple[Kind, torch.device], Form]):
    """Forms by kind and device, created on demand. Limited, because shapes may change."""

    def of(self, tensor: torch.Tensor) -> Form:
        key = kind_of(tensor), tensor.device
        form = self.get(key)
        if form is None:
            if len(self) >= _MOST_FORMS:
                self.clear()
            form = self[key] = Form(key[0], tensor)
        return form


_forms = _Forms()


def _head(tensor: torch.Tensor) -> bytes:
    fields = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": [int(size) for size in tensor.shape],
        "device": str(tensor.device),
    }
    return orjson.dumps(fields)[:-1]


class TrackedTensor:
    """One named tensor and its last scan.

    Attributes:
        digest: the last exact fingerprint; None if not known.
        exact_only: whether a probe once missed a change (written in few places, as in an
            embedding), or the tensor is not plain.
        is_small: whether a probe reads all of it.
        identity: of the object; for a gradient, its memory address, for internal use.
        ref: the object; None for a gradient.
    """

    __slots__ = (
        "address", "digest", "dtype", "exact_only", "fixed", "head", "identity", "is_gradient",
        "is_odd", "is_small", "kind", "lines", "module_class", "name", "owner", "parts", "places",
        "probe", "ref", "requires_grad", "rested", "role", "seed", "shape", "size", "stats",
        "storage", "usual", "view", "zero", "zero_digest", "zero_probe",
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
        self.ref: weakref.ref[torch.Tensor] | None = None
        self.storage = 0
        self.requires_grad = False
        self.is_odd = True
        self.kind: Kind | None = None  # None if scans cannot read the memory directly
        self.shape: torch.Size | None = None
        self.dtype: torch.dtype | None = None
        self.seed = 0
        self.size = 0
        self.view: Callable[[int], Any] = byte_view(0)
        # Address of the last probe, and views of its memory: recreated when the tensor moves
        self.address = -1
        self.parts: tuple[Any, ...] = ()
        # Of former addresses too: gradients reuse a few addresses in every step
        self.places: dict[int, tuple[Any, ...]] | None = None
        self.head = b""  # serialized dtype, shape and device
        self.fixed = b""  # serialized name, role, identity ...
        self.lines: Mapping[Any, bytes] = NO_LINES  # templates of its records, made from both
        # The most common one: changed content, or a nonzero gradient
        self.usual: bytes | None = None
        self.stats: Any = b""  # numbers for the next record; a tensor while they are on a device
        self.rested: Any = None  # of `StaggeredScan`

    def describe(self, tensor: torch.Tensor, *, is_odd: bool) -> None:
        """Store shape and dtype, which fingerprints contain. is_odd: it is not plain."""
        self.lines, self.usual = NO_LINES, None
        self.address, self.places = -1, None
        self.is_odd = is_odd
        self.zero_digest = self.zero_probe = None
        if is_odd:
            self.kind, self.shape, self.dtype = None, tensor.shape, tensor.dtype
            self.head = _head(tensor)
            return
        form = _forms.of(tensor)
        self.kind = form.kind
        self.dtype, self.shape = form.kind[3:]
        self.head, self.size, self.seed, self.view = form.head, form.size, form.seed, form.view
        self.is_small = form.is_small
        if self.is_gradient:
            self.zero_digest, self.zero_probe = form.zeros

    def lies_as_before(self, tensor: torch.Tensor) -> bool:
        """Whether the result of `describe` applies to this tensor."""
        return self.kind is not None and kind_of(tensor) == self.kind and is_plain_cpu(tensor)

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor's memory can be read directly; describes it again if it differs."""
        if self.lies_as_before(tensor):
            return True
        # a distributed tensor claims to be contiguous and on the CPU, and has no memory
        is_odd = type(tensor) not in PLAIN_TYPES or not is_plain_cpu(tensor)
        tensor = as_plain(tensor)
        is_known = is_odd and self.is_odd
        if not is_known or tensor.shape != self.shape or tensor.dtype is not self.dtype:
            self.describe(tensor, is_odd=is_odd)
        return not is_odd

    def exact_digest(self, tensor: torch.Tensor) -> str:
        """`fingerprint` of a plain tensor after `describe`, without further tests."""
        return f"xxh3-128:{hex128(self.view(tensor.data_ptr()), self.seed)}"

    def probed(self, tensor: torch.Tensor) -> int:
        """`probe` of a plain tensor after `describe`."""
        address = tensor.data_ptr()
        if address != self.address:
            self.locate(address)
        return probe(self.parts, self.seed)

    def locate(self, address: int) -> None:
        """Views of the tensor's present memory, for probes."""
        self.address = address
        places = self.places
        if places is None:
            places = self.places = {}
        known = places.get(address)
        if known is None:
            if len(places) >= _MOST_PLACES:
                places.clear()
            known = places[address] = slices(address, self.size)
        self.parts = known

    def keep_line(self, key: Any, line: bytes) -> bytes:
        """Store a template of its records under ``key``. Most variables need one or two."""
        self.lines = {**self.lines, key: line}
        return line

    def bind(self, identity: int, tensor: torch.Tensor) -> None:
        """Refer to another object from now on."""
        self.identity, self.ref = identity, weakref.ref(tensor)
        self.storage = _storage(tensor)
        self.requires_grad = requires_grad(tensor)
        self.fixed = b""
        self.lines, self.usual = NO_LINES, None


def _storage(tensor: torch.Tensor) -> int:
    try:
        return as_plain(tensor).untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError, AttributeError) as error:
        give_back(error)  # sparse, meta, wrapped: there is none
        return 0
