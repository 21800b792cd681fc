"""Detect and record whether a tracked tensor changed since the last scan.

tracker.py finds the tensors. In the exact view, every scan takes an exact fingerprint. The
selective view only asks "did it change". A probe of three slices proves most changes. If the probe
is equal, the exact fingerprint decides. If there is no earlier exact fingerprint, the result is
"unknown" (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson
import torch

from traincheck.collect.templates import (
    FINGERPRINT,
    STATS,
)
from traincheck.collect.tensors.fingerprint import fingerprint, hash64, hex128, holds_zeros
from traincheck.collect.tensors.reading import LOW, as_plain, has_memory, requires_grad
from traincheck.collect.tensors.sums import norms_of
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.deferred_scan import DeferredScan, DeferredScans
from traincheck.collect.tracking.state_records import UNKNOWN, StateWriter, template
from traincheck.collect.tracking.tracked_tensor import PARAMETER, TrackedTensor, kind_of
from traincheck.handlers import give_back
from traincheck.schema.observations.gradients import WrittenGradients

_CLEARED = ("cleared", None, False)
_COUNTED = ("content", None, True), ("set", False, True)  # usual, with numbers
_TENSOR = torch.Tensor


class ChangeDetector:
    """Compares tensors with their last scan and records the differences.

    Args:
        exact: whether every scan takes the exact fingerprint.

    Attributes:
        compares_ranks: whether scans of parameters do, because other ranks have the same
        parameters.
        pending: scans of tensors on devices, for `resolve`.
        unchanged: ids of variables that scans found unchanged, since it was cleared.
        uncleared: names of gradients on devices that are unchanged, and not zero, after the span
        ``kept_after``; 0: none.
    """

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self.write = StateWriter(exact=exact).write
        self.compares_ranks = False
        self.pending = DeferredScans()
        self.unchanged: set[int] = set()
        self.kept_after, self.uncleared = 0, list[str]()
        self._is_glance = False

    def baseline(self, variable: TrackedTensor, tensor: torch.Tensor) -> None:
        """Remember the content of ``tensor`` without recording anything."""
        odd = not variable.fits(tensor)
        variable.digest = fingerprint(tensor) if odd else variable.exact_digest(tensor)
        if odd or (self.compares_ranks and variable.role == PARAMETER):
            variable.exact_only = True
        elif not self.exact:
            variable.probe = variable.probed(tensor)
        if variable.is_gradient:
            variable.zero = variable.digest == variable.zero_digest

    def start(
        self,
        em: Emitter,
        variable: TrackedTensor,
        tensor: torch.Tensor,
        change: str,
        after: int | None = None,
    ) -> None:
        """Begin to track a tensor."""
        self.baseline(variable, tensor)
        self.write(em, variable, change, variable.digest, after)

    def baseline_all(self, found: Iterable[tuple[TrackedTensor, torch.Tensor]]) -> None:
        """`baseline` for many, without waiting for devices: `resolve` waits."""
        try:
            for variable, tensor in found:
                try:
                    if not is_on_device(tensor):
                        self.baseline(variable, tensor)
                        continue
                    variable.fits(tensor)
                    variable.exact_only = True
                    look = DeferredScan(variable=variable, after=None, is_told=False)
                    self.pending.add(look, tensor)
                except RuntimeError as error:  # inside torch.func some have no memory
                    give_back(error)
        finally:
            self.pending.begin()

    def scan_all(  # noqa: C901, PLR0912, PLR0915  # each call on the way costs a third of a look
        self, em: Emitter, found: Iterable[tuple[TrackedTensor, torch.Tensor | None]], after: int
    ) -> None:
        """Record which of many tensors differ from the last scan; None: no gradient.

        Nearly all have the same address and layout, and a different or equal content, or are
        gradients that appear nonzero or vanish. Their records are made here, with one time for all.
        """
        exact, still, waiting = self.exact, self.unchanged, self.pending.variables
        lines: list[bytes] = []
        first, when, span = em.seq, em.now(), b"%d" % after
        seq = first
        try:
            for variable, tensor in found:
                if tensor is None:
                    if variable.identity:
                        variable.identity = 0
                        if waiting and self.pending.clear(variable, after):
                            continue
                        variable.digest = variable.probe = variable.zero = None
                        cleared = variable.lines.get(_CLEARED) or template(variable, *_CLEARED)
                        lines.append(cleared % (seq, when, span))
                        seq += 1
                    continue
                usual, is_gradient, stats = variable.usual, variable.is_gradient, variable.stats
                if (
                    (exact or not variable.exact_only)
                    and (kind := variable.kind) is not None
                    and kind_of(tensor) == kind
                    and tensor.is_contiguous()
                    and not (is_gradient and type(tensor) is not _TENSOR)
                    and ((address := tensor.data_ptr()) > LOW or has_memory(tensor))
                ):
                    is_new = is_gradient and not variable.identity
                    if exact:
                        digest = f"xxh3-128:{hex128(variable.view(address), variable.seed)}"
                        is_other = digest != (variable.zero_digest if is_new else variable.digest)
                    else:
                        if address != variable.address:
                            variable.locate(address)
                        probed = variable.seed
                        for part in variable.parts:  # `probe`, inlined
                            probed = hash64(part, probed)
                        is_other = probed != (variable.zero_probe if is_new else variable.probe)
                    if is_other:
                        if stats and not exact:
                            usual = variable.lines.get(_COUNTED[is_gradient])
                        if usual is not None and is_new is is_gradient:
                            if is_new:
                                variable.identity, variable.zero = id(tensor), False
                            if exact:
                                variable.digest = digest
                                mark = FINGERPRINT % digest.encode()
                                mark = mark + STATS % stats if stats else mark
                                lines.append(usual % (seq, when, mark, span))
                            else:
                                variable.probe, variable.digest = probed, None
                                if stats:
                                    lines.append(usual % (seq, when, STATS % stats, span))
                                else:
                                    lines.append(usual % (seq, when, span))
                            seq += 1
                            continue
                    elif (exact or variable.is_small) and (
                        variable.identity == id(tensor)
                        if is_gradient
                        else tensor.requires_grad is variable.requires_grad
                    ):
                        still.add(id(variable))
                        continue
                if lines:
                    em.append(b"".join(lines), first, len(lines))
                    lines = []
                (self._scan_gradient if is_gradient else self.scan)(em, variable, tensor, after)
                first = seq = em.seq
                when = em.now()
        finally:
            if lines:
                em.append(b"".join(lines), first, len(lines))
            self.pending.begin()

    def scan_before_backward(
        self, em: Emitter, found: list[tuple[TrackedTensor, torch.Tensor | None]], after: int
    ) -> None:
        """`scan_all` for gradients before a backward pass: those that changed since the last one.

        A program that copies gradients to the fp32 masters of its weights need not clear any.
        """
        before = [(v, g, v.identity, v.probe, v.digest) for v, g in found if g is not None]
        self._is_glance = True
        try:
            self.scan_all(em, found, after)
        finally:
            self._is_glance = False
        written = [
            (variable.name, gradient)
            for variable, gradient, identity, probe, digest in before
            if _is_written(variable, identity, probe, digest)
        ]
        if written:
            near = [(name, gradient) for name, gradient in written if gradient.is_cpu]
            norms = zip([name for name, _ in near], norms_of([gradient for _, gradient in near]))
            _record_written(em, after, {**{name: b"" for name, _ in written}, **dict(norms)})

    def is_unchanged(self, variable: TrackedTensor, tensor: torch.Tensor) -> bool:
        """Whether a tensor that is not a gradient is just as it was: a look records nothing."""
        is_exact = self.exact or variable.exact_only
        if (
            not (is_exact or variable.is_small)
            or variable.kind is None
            or kind_of(tensor) != variable.kind
            or tensor.requires_grad is not variable.requires_grad
            or not tensor.is_contiguous()
            or not has_memory(tensor)
        ):
            return False
        if is_exact:
            is_same = variable.exact_digest(tensor) == variable.digest
        else:
            is_same = variable.probed(tensor) == variable.probe
        if is_same:
            self.unchanged.add(id(variable))
        return is_same

    def scan(self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int) -> None:
        """Record the tensor when it differs from the last look."""
        if not variable.fits(tensor):
            self._scan_nonstandard(em, variable, tensor, after)
            return
        if self.exact or variable.exact_only:
            digest = variable.exact_digest(tensor)
            if digest != variable.digest:
                self._changed(em, variable, tensor, digest, after)
            else:
                self._unchanged(em, variable, tensor, after)
            return
        found = variable.probed(tensor)
        if found == variable.probe:
            self._scan_closely(em, variable, tensor, after)
            return
        variable.probe = found  # it differs; no exact fingerprint is taken, except for zeros
        is_zero = variable.is_gradient and found == variable.zero_probe
        exact = variable.exact_digest(tensor) if is_zero else None
        self._changed(em, variable, tensor, exact, after)

    def _scan_closely(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int
    ) -> None:
        """The probe is equal: if it did not read everything, the exact fingerprint decides."""
        digest = None if variable.is_small else variable.exact_digest(tensor)
        if digest is None:
            self._unchanged(em, variable, tensor, after)
        elif variable.digest is None:
            variable.digest, variable.exact_only = digest, True
            self.write(em, variable, UNKNOWN, digest, after)
        elif digest != variable.digest:
            variable.exact_only = True
            self._changed(em, variable, tensor, digest, after)
        else:
            self._unchanged(em, variable, tensor, after)

    def _unchanged(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int
    ) -> None:
        self.unchanged.add(id(variable))
        if not variable.is_gradient and requires_grad(tensor) is not variable.requires_grad:
            self.flags(em, variable, tensor, after)

    def _scan_nonstandard(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int
    ) -> None:
        if is_on_device(tensor):
            self.pending.add(DeferredScan(variable=variable, after=after), tensor)
            return
        digest = fingerprint(tensor)
        if digest is None:  # its memory is given back for now: nothing is known of it
            self.unchanged.add(id(variable))
            return
        variable.exact_only = True
        if digest != variable.digest:
            self._changed(em, variable, tensor, digest, after)
        else:
            self._unchanged(em, variable, tensor, after)

    def _changed(
        self,
        em: Emitter,
        variable: TrackedTensor,
        tensor: torch.Tensor,
        digest: str | None,
        after: int | None,
    ) -> None:
        variable.digest = digest
        if variable.is_gradient:
            variable.zero = (
                digest == variable.zero_digest if variable.zero_digest else holds_zeros(tensor)
            )
        self.write(em, variable, "content", digest, after)

    def record_why_unchanged(
        self, em: Emitter, gradient: TrackedTensor, tensor: torch.Tensor | None, after: int
    ) -> None:
        """Record why an update had no effect: a gradient taken away by hand, or one of zeros.

        Zeros may have a sign, which their fingerprint shows and their norm does not. A gradient
        that was different when backward ended was lost on the way: that explains nothing.
        """
        if tensor is None:
            self.scan_all(em, [(gradient, None)], after)
        elif gradient.zero is False and not is_on_device(tensor) and holds_zeros(tensor):
            if gradient.digest not in (None, fingerprint(tensor)):
                return
            if gradient.digest is None and gradient.probe != gradient.probed(tensor):
                return
            gradient.zero = True
            self.write(em, gradient, "content", gradient.digest, after)

    def flags(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int | None
    ) -> None:
        """Record that a variable now requires grad, or no longer does."""
        variable.requires_grad = requires_grad(tensor)
        self.write(em, variable, "flags", variable.digest, after)

    # -- gradients: they come and go

    def _scan_gradient(
        self, em: Emitter, variable: TrackedTensor, gradient: torch.Tensor, after: int
    ) -> None:
        if is_on_device(gradient):
            variable.fits(gradient)
            is_new = variable.identity != id(gradient)
            look = DeferredScan(
                variable=variable, after=after, is_new=is_new, is_glance=self._is_glance
            )
            if self.pending.add(look, gradient):
                variable.identity = id(gradient)
        elif not variable.identity:
            variable.identity = id(gradient)
            self._appeared(em, variable, gradient, after)
        else:
            if variable.identity != id(gradient):  # another object, never scanned before
                variable.identity, variable.digest, variable.probe = id(gradient), None, None
            self.scan(em, variable, gradient, after)

    def _appeared(
        self, em: Emitter, variable: TrackedTensor, gradient: torch.Tensor, after: int
    ) -> None:
        if not variable.fits(gradient):
            variable.digest = fingerprint(gradient)
        elif self.exact or variable.exact_only:
            variable.digest = variable.exact_digest(gradient)
        else:
            variable.probe = found = variable.probed(gradient)
            if found != variable.zero_probe:
                variable.digest, variable.zero = None, False
                self.write(em, variable, "set", None, after)
                return
            variable.digest = variable.exact_digest(gradient)
        variable.zero = (
            variable.digest == variable.zero_digest
            if variable.zero_digest
            else holds_zeros(gradient)
        )
        self.write(em, variable, "set", variable.digest, after)

    # -- devices: digests are computed on the device, and read once a step

    def resolve(self, em: Emitter) -> None:
        """Record the results of the scans of tensors on devices, read with one copy."""
        written: dict[int, dict[str, bytes]] = {}
        for look, digest, is_zero, stats in self.pending.read():
            variable = look.variable
            if digest is None:
                variable.digest = variable.probe = variable.zero = None
                self.write(em, variable, "cleared", None, look.after)
                continue
            known = None if look.is_new else variable.digest
            variable.digest = digest
            if variable.is_gradient:
                variable.zero = is_zero
            if look.is_told and digest != known:
                variable.stats = stats
                is_set = variable.is_gradient and known is None
                self.write(em, variable, "set" if is_set else "content", digest, look.after)
                if look.is_glance and look.after is not None and not (is_set or is_zero):
                    written.setdefault(look.after, {})[variable.name] = stats
            elif look.after == self.kept_after and not is_zero:
                self.uncleared.append(variable.name)
        for after, norms in written.items():
            _record_written(em, after, norms)


def _is_written(
    variable: TrackedTensor, identity: int, probe: int | None, digest: str | None
) -> bool:
    """Whether a nonzero gradient on the CPU has changed. The other arguments: its last scan."""
    if not variable.identity or variable.zero is not False:
        return False
    is_other = digest is not None and variable.digest != digest and variable.probe == probe
    return variable.identity != identity or variable.probe != probe or is_other


def _record_written(em: Emitter, after: int, norms: Mapping[str, bytes]) -> None:
    """Record gradients that were written. norms: of each, serialized; b"" if it has none."""
    names = sorted(norms)
    known = [orjson.loads(norms[name]).get("norm") for name in names if norms[name]]
    is_whole = len(known) == len(names) and None not in known
    write(em, WrittenGradients(after, tuple(names), tuple(known) if is_whole else ()))


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether reading the tensor now would wait for a device."""
    return not as_plain(tensor).is_cpu
