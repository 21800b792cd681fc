"""Records of changes of tracked tensors, with their sketches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from traincheck.collect.tensors.fingerprint import fingerprint
from traincheck.collect.tensors.reading import as_plain
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.tensors.summarize import escaped
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.collect.tracking.tracked_tensor import NO_LINES, TrackedTensor

UNKNOWN = "unknown"
_REPEATED = frozenset({"content", "set", "cleared", UNKNOWN})  # the variable itself is as it was
_ABSENT = frozenset({"gone", "cleared"})
_ZERO = {None: b"", True: ZERO, False: NOT_ZERO}


class StateWriter:
    """Writes state events. exact: whether every record has an exact fingerprint."""

    def __init__(self, *, exact: bool) -> None:
        self._usual = ("content", None, exact), ("set", False, exact)

    def write(
        self,
        em: Emitter,
        variable: TrackedTensor,
        change: str,
        digest: str | None,
        after: int | None = None,
    ) -> None:
        """Record that a variable changed. after: the span after which it was found."""
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
            line = template(variable, *key)
            if key == self._usual[variable.is_gradient]:
                variable.usual = line
        span = b"%d" % after
        seq = em.seq
        head = (seq, em.now(), mark) if mark else (seq, em.now())
        em.append(line % (*head, span), seq)

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


def template(variable: TrackedTensor, change: str, zero: bool | None, is_marked: bool) -> bytes:
    """A record of a change, but for its number, time, place in the run, digest, stats and span."""
    fixed = variable.fixed or _fixed(variable)
    line = STATE_HEAD + escaped(fixed) + b',"change":"%b"' % change.encode()
    if change != "cleared":
        mark = b"%b" if is_marked else b""
        line += b',"summary":' + escaped(variable.head) + mark + _ZERO[zero] + b"}"
    return variable.keep_line((change, zero, is_marked), line + b',"after":%b}\n')


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


class StateSketches:
    """Puts sketches into the next records of variables."""

    def __init__(self, sketcher: Sketcher) -> None:
        self._sketcher = sketcher

    def of_new(self, variable: TrackedTensor, tensor: torch.Tensor) -> None:
        """A variable is found: its record follows. Waits for its device."""
        if _is_free(variable):
            variable.stats = self._sketcher.text(tensor)

    @contextmanager
    def of(self, found: Sequence[tuple[TrackedTensor, torch.Tensor | None]]) -> Iterator[None]:
        """Within the block these variables are scanned: sketch those that have changed."""
        for variable, tensor in found:
            if tensor is not None and not _is_unchanged(variable, tensor) and _is_free(variable):
                if as_plain(tensor).is_cpu:
                    variable.stats = self._sketcher.text(tensor)
                elif (late := self._sketcher.numbers(tensor)) is not None:
                    variable.stats = late
        try:
            yield
        finally:
            for variable, _ in found:
                variable.stats = b""


def _is_free(variable: TrackedTensor) -> bool:
    return type(variable.stats) is bytes and not variable.stats


def _is_unchanged(variable: TrackedTensor, tensor: torch.Tensor) -> bool:
    """Whether a tensor on the CPU is as it was at the last scan: it leaves no record."""
    if not as_plain(tensor).is_cpu or variable.digest is None:
        return False
    return fingerprint(tensor) == variable.digest
