"""How a look at a tracked tensor tells whether it changed, and the record of it.

Which tensors there are is tracker.py's business.

In the exact view every look takes an exact fingerprint. The selective view only asks "did it
change": a probe of three slices proves most changes, and where it is equal the exact fingerprint
decides; where there is nothing exact to compare that with, the answer is "unknown", not a guess
(docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic_ns
from typing import Any

import orjson
import torch

from traincheck.collect.templates import (
    AFTER,
    CHANGE,
    CHANGE_WITH_SUMMARY,
    FINGERPRINT,
    NOT_ZERO,
    STATE_HEAD,
    STATS,
    STORAGE,
    ZERO,
)
from traincheck.collect.tensors.fingerprint import (
    LOW,
    fingerprint,
    has_memory,
    hash64,
    hex128,
    holds_zeros,
)
from traincheck.collect.tensors.summarize import escaped
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.trace_writer.marks import write
from traincheck.collect.tracking.deferred_scan import DeferredScan, DeferredScans
from traincheck.collect.tracking.tracked_tensor import NO_LINES, PARAMETER, TrackedTensor, kind_of
from traincheck.handlers import give_back
from traincheck.schema.observations.gradients import WrittenGradients

UNKNOWN = "unknown"
_REPEATED = frozenset({"content", "set", "cleared", UNKNOWN})  # the variable itself is as it was
_ABSENT = frozenset({"gone", "cleared"})
_CLEARED = ("cleared", None, False)
_COUNTED = ("content", None, True), ("set", False, True)  # usual, with numbers
_ZERO = {None: b"", True: ZERO, False: NOT_ZERO}
_TENSOR = torch.Tensor


class ChangeDetector:
    """Compares tensors with what was last seen of them and records what differs.

    Args:
        exact: whether every look takes the exact fingerprint.

    Attributes:
        compares_ranks: whether those at parameters do, as other ranks have the same parameters.
        pending: looks at tensors on devices, for `resolve`.
        still: ids of variables that looks found as they were, since it was cleared.
        kept: names of gradients on devices that are as they were, and not zero, after the span
            ``kept_after``; 0 is none.
    """

    def __init__(self, *, exact: bool) -> None:
        self.exact = exact
        self._usual = ("content", None, exact), ("set", False, exact)
        self.compares_ranks = False
        self.pending = DeferredScans()
        self.still: set[int] = set()
        self.kept_after, self.kept = 0, list[str]()
        self._is_glance = False

    def baseline(self, variable: TrackedTensor, tensor: torch.Tensor) -> None:
        """Remember what ``tensor`` holds without recording anything."""
        odd = not variable.fits(tensor)
        variable.digest = fingerprint(tensor) if odd else variable.exact_digest(tensor)
        if odd or (self.compares_ranks and variable.role == PARAMETER):
            variable.exact_only = True
        elif not self.exact:
            variable.probe = variable.probed(tensor)
        if variable.is_gradient:
            variable.zero = variable.digest == variable.zero_digest

    def first(
        self,
        em: Emitter,
        variable: TrackedTensor,
        tensor: torch.Tensor,
        change: str,
        after: int | None = None,
    ) -> None:
        """Begin to follow a tensor."""
        self.baseline(variable, tensor)
        self.write(em, variable, change, variable.digest, after)

    def baseline_all(self, found: Iterable[tuple[TrackedTensor, torch.Tensor]]) -> None:
        """As `baseline` of many, without waiting for devices: `resolve` does."""
        try:
            for variable, tensor in found:
                try:
                    self._rebase(variable, tensor)
                except RuntimeError as error:  # inside torch.func some have no memory
                    give_back(error)
        finally:
            self.pending.begin()

    def _rebase(self, variable: TrackedTensor, tensor: torch.Tensor) -> None:
        if not is_on_device(tensor):
            self.baseline(variable, tensor)
            return
        variable.fits(tensor)
        variable.exact_only = True
        self.pending.add(DeferredScan(variable=variable, after=None, is_told=False), tensor)

    def look_all(  # noqa: C901, PLR0912, PLR0915  # each call on the way costs a third of a look
        self, em: Emitter, found: Iterable[tuple[TrackedTensor, torch.Tensor | None]], after: int
    ) -> None:
        """Record which of many differ from the last look; None for gradients that are not there.

        Nearly all lie where and as they did and hold something else, or the same, or are gradients
        that appear and are not zero, or vanish: the records of these are made here, with one time
        for all.
        """
        exact, still, waiting = self.exact, self.still, self.pending.variables
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
                        cleared = variable.lines.get(_CLEARED) or _template(variable, *_CLEARED)
                        lines.append(cleared % (seq, when, span))
                        seq += 1
                    continue
                usual, is_gradient, stats = variable.usual, variable.is_gradient, variable.stats
                if (
                    (exact or not variable.exact_only)
                    and kind_of(tensor) == variable.kind
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
                            told = STATS % stats if stats else b""
                            if exact:
                                variable.digest = digest
                                mark = FINGERPRINT % digest.encode() + told
                                lines.append(usual % (seq, when, mark, span))
                            else:
                                variable.probe, variable.digest = probed, None
                                more = (told, span) if told else (span,)
                                lines.append(usual % (seq, when, *more))
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
                    em.put(lines, first)
                    lines = []
                (self._look_gradient if is_gradient else self.look)(em, variable, tensor, after)
                first = seq = em.seq
                when = em.now()
        finally:
            if lines:
                em.put(lines, first)
            self.pending.begin()

    def glance(
        self, em: Emitter, found: list[tuple[TrackedTensor, torch.Tensor | None]], after: int
    ) -> None:
        """`look_all` at gradients before a backward pass: which are not as the last one left them.

        A program that copies gradients to the fp32 masters of its weights need not clear any.
        """
        before = [(v.identity, v.probe, v.digest) for v, _ in found]
        self._is_glance = True
        try:
            self.look_all(em, found, after)
        finally:
            self._is_glance = False
        _tell_written(
            em, after, [v.name for (v, _), known in zip(found, before) if _is_written(v, *known)]
        )

    def holds(self, variable: TrackedTensor, tensor: torch.Tensor) -> bool:
        """Whether a tensor that is not a gradient is just as it was: a look records nothing."""
        is_exact = self.exact or variable.exact_only
        if (
            not (is_exact or variable.is_small)
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
            self.still.add(id(variable))
        return is_same

    def look(self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int) -> None:
        """Record the tensor when it differs from the last look."""
        if not variable.fits(tensor):
            self._look_odd(em, variable, tensor, after)
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
            self._look_closer(em, variable, tensor, after)
            return
        variable.probe = found  # it differs; what it is exactly is not taken, but for zeros
        is_zero = variable.is_gradient and found == variable.zero_probe
        exact = variable.exact_digest(tensor) if is_zero else None
        self._changed(em, variable, tensor, exact, after)

    def _look_closer(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int
    ) -> None:
        """A probe found nothing: if it did not read all, the exact fingerprint decides."""
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
        self.still.add(id(variable))
        if tensor.requires_grad is not variable.requires_grad and not variable.is_gradient:
            self.flags(em, variable, tensor, after)

    def _look_odd(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int
    ) -> None:
        if is_on_device(tensor):
            self.pending.add(DeferredScan(variable=variable, after=after), tensor)
            return
        digest = fingerprint(tensor)
        if digest is None:  # its memory is given back for now: nothing is known of it
            self.still.add(id(variable))
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

    def explain(
        self, em: Emitter, gradient: TrackedTensor, tensor: torch.Tensor | None, after: int
    ) -> None:
        """Record why an update had no effect: a gradient taken away by hand, or one of zeros.

        Zeros may have a sign, which their fingerprint tells and their norm does not. What was
        another gradient when backward ended was lost on the way: that explains nothing.
        """
        if tensor is None:
            self.look_all(em, [(gradient, None)], after)
        elif gradient.zero is False and tensor.is_cpu and holds_zeros(tensor):
            if gradient.digest not in (None, fingerprint(tensor)):
                return
            if gradient.digest is None and gradient.probe != gradient.probed(tensor):
                return
            gradient.zero = True
            self.write(em, gradient, "content", gradient.digest, after)

    def flags(
        self, em: Emitter, variable: TrackedTensor, tensor: torch.Tensor, after: int | None
    ) -> None:
        """Record that a variable requires grad now, or no longer."""
        variable.requires_grad = tensor.requires_grad
        self.write(em, variable, "flags", variable.digest, after)

    # -- gradients: they come and go

    def _look_gradient(
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
            if variable.identity != id(gradient):  # another object: nothing of it was seen before
                variable.identity, variable.digest, variable.probe = id(gradient), None, None
            self.look(em, variable, gradient, after)

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

    # -- devices: digests are made where the tensor is, and read once a step

    def resolve(self, em: Emitter) -> None:
        """Record what the looks at tensors on devices found: one copy for all of them."""
        written: dict[int, list[str]] = {}
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
                    written.setdefault(look.after, []).append(variable.name)
            elif look.after == self.kept_after and not is_zero:
                self.kept.append(variable.name)
        for after, names in written.items():
            _tell_written(em, after, names)

    # -- records

    def write(
        self,
        em: Emitter,
        variable: TrackedTensor,
        change: str,
        digest: str | None,
        after: int | None = None,
    ) -> None:
        """Record a state event."""
        stats = variable.stats
        if after is None or change not in _REPEATED or type(stats) is not bytes:
            self._write_new(em, variable, change, digest, after)
            return
        # Nearly all records of a run: one template filled in place of four, and no call on the way
        mark = b"" if digest is None else FINGERPRINT % digest.encode()
        if stats and change != "cleared":
            variable.stats = b""
            mark += STATS % stats
        key = (change, variable.zero, bool(mark))
        line = variable.lines.get(key)
        if line is None:
            line = _template(variable, *key)
            if key == self._usual[variable.is_gradient]:
                variable.usual = line
        span = b"%d" % after
        seq = em.seq
        head = (seq, em.now(), mark) if mark else (seq, em.now())
        em.line(line % (*head, span), seq)

    def _write_new(
        self,
        em: Emitter,
        variable: TrackedTensor,
        change: str,
        digest: str | None,
        after: int | None,
    ) -> None:
        if change in _REPEATED:
            fixed = variable.fixed or _fixed(variable)
        else:
            variable.lines, variable.usual = NO_LINES, None
            fixed = _fixed(variable)
            if variable.storage:
                fixed += STORAGE % variable.storage
        span = b"" if after is None else AFTER % after
        if change in _ABSENT:
            em.state(monotonic_ns(), CHANGE % (fixed, change.encode(), span))
            return
        mark = b"" if digest is None else FINGERPRINT % digest.encode()
        stats = STATS % variable.stats if type(variable.stats) is bytes else b""
        body = CHANGE_WITH_SUMMARY % (
            fixed, change.encode(), variable.head, mark, _ZERO[variable.zero],
            stats if variable.stats else b"", span,
        )  # fmt: skip
        variable.stats = b""
        em.state(monotonic_ns(), body)


def _is_written(
    variable: TrackedTensor, identity: int, probe: int | None, digest: str | None
) -> bool:
    """Whether a gradient on the CPU, not zero, is another than it was. The rest: what was known."""
    if not variable.identity or variable.zero is not False:
        return False
    is_other = digest is not None and variable.digest != digest and variable.probe == probe
    return variable.identity != identity or variable.probe != probe or is_other


def _tell_written(em: Emitter, after: int, names: list[str]) -> None:
    if names:
        write(em, WrittenGradients(after, tuple(sorted(names))))


def _template(variable: TrackedTensor, change: str, zero: bool | None, is_marked: bool) -> bytes:
    """A record of a change, but for its number, time, place in the run, digest, stats and span."""
    fixed = variable.fixed or _fixed(variable)
    line = STATE_HEAD + escaped(fixed) + b',"change":"%b"' % change.encode()
    if change != "cleared":
        mark = b"%b" if is_marked else b""
        line += b',"summary":' + escaped(variable.head) + mark + _ZERO[zero] + b"}"
    return variable.keep_line((change, zero, is_marked), line + b',"after":%b}')


def is_on_device(tensor: torch.Tensor) -> bool:
    """Whether to look at the tensor now is to wait for a device."""
    return not tensor.is_cpu


def _fixed(variable: TrackedTensor) -> bytes:
    """The fields of a variable that stay the same from look to look, serialized once."""
    fields: dict[str, Any] = {"name": variable.name, "role": variable.role}
    if variable.requires_grad:
        fields["requires_grad"] = True
    if not variable.is_gradient:
        fields["identity"] = variable.identity
    if variable.module_class is not None:
        fields["module_class"] = variable.module_class
    if variable.owner is not None:
        fields["owner"] = variable.owner
    variable.fixed = orjson.dumps(fields)[1:-1]
    return variable.fixed
