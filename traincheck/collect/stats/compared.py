"""Fingerprints and sketches of what calls are given and return, for the comparison of runs.

In the view "diff" only. Fingerprints of tensors on devices are computed there and read together
when the step ends.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias

import orjson
import torch
import xxhash

from traincheck.collect.templates import DIGESTS, FINGERPRINT, LATE_FINGERPRINT, SKETCH, STATS
from traincheck.collect.tensors.device_fingerprint import finish as finish_digest
from traincheck.collect.tensors.device_fingerprint import start as start_digests
from traincheck.collect.tensors.devices import KIND, is_capturing, read_together
from traincheck.collect.tensors.fingerprint import (
    components,
    fingerprint,
    seed_of_parts,
)
from traincheck.collect.tensors.reading import as_plain, local_of, requires_grad
from traincheck.collect.tensors.sketch import Sketcher
from traincheck.collect.tensors.sketch import finish as finish_sketch
from traincheck.collect.tensors.summarize import MAX_DEPTH, MAX_ITEMS, encode
from traincheck.collect.trace_writer.emitter import Emitter
from traincheck.schema.marks import PHASES


class StepDigests:
    """Collects the names and fingerprints of one step, for one digest of each phase of it.

    Names are sorted, and each digest is a hash over all of them in order. So moved and swapped
    contents change it, which a sum or XOR of fingerprints would not show.
    """

    def __init__(self) -> None:
        self._found: dict[str, dict[str, str]] = {phase: {} for phase in PHASES}
        self._uses: Counter[str] = Counter()

    def number(self, name: str) -> int:
        """How often ``name`` was asked for before in this step."""
        number = self._uses[name]
        self._uses[name] = number + 1
        return number

    def add(self, phase: str, name: str, fingerprint: str) -> None:
        """Something of a phase has this fingerprint, instead of an earlier one."""
        self._found[phase][name] = fingerprint

    def add_all(self, phase: str, found: Iterable[tuple[str, str | None]]) -> None:
        """`add` for many; those without a fingerprint are left out."""
        self._found[phase].update((name, text) for name, text in found if text is not None)

    def take(self) -> dict[str, str]:
        """The digests of the phases of which something is known; the next step begins."""
        taken = {
            phase: xxhash.xxh3_128_hexdigest(orjson.dumps(sorted(found.items())))
            for phase, found in self._found.items()
            if found
        }
        self.clear()
        return taken

    def clear(self) -> None:
        """Forget what was collected."""
        for found in self._found.values():
            found.clear()
        self._uses.clear()


ALL, ROOT = "all", "root"  # of `Settings.outputs`

_HALF = 1 << 32  # numbers of devices travel as float64, which holds 32 bits exactly
_FINGERPRINT = re.compile(rb'"fingerprint":"([^"]+)"')
# Whether autograd is computing gradients: then a forward is a recomputation.
_graph_task = getattr(torch._C, "_current_graph_task_id", lambda: -1)

Part: TypeAlias = tuple[str, Any]  # key within the whole, with brackets; value


class Compared:
    """Records tensors of calls and batches of one session for the comparison of runs.

    Args:
        outputs: of which modules outputs are fingerprinted: all, root, or a glob of paths.
        sketches: whether sketches are recorded too.

    Attributes:
        digests: collects what the digests of the step are made of.
        sketcher: makes sketches; None if they are not recorded.
        seeded: generators whose state is the same in each run unless a run draws otherwise: that of
            torch, and those that the program has seeded.
        has_loader: whether a loader has given batches: else inputs of models stand for them.
    """

    def __init__(self, outputs: str, *, sketches: bool) -> None:
        self.digests = StepDigests()
        self.sketcher = Sketcher() if sketches else None
        self.seeded = {"torch", KIND}
        self.has_loader = False
        self._outputs = outputs
        self._sizes: dict[str, int] = {}  # elements of each output so far in this step
        self._text = b""
        # Of tensors on devices: phase, name, seed of the fingerprint, and numbers
        self._late: list[tuple[str, str, int, torch.Tensor]] = []

    def wants(self, path: str | None, *, is_root: bool) -> bool:
        """Whether the outputs of a module are fingerprinted."""
        if self._outputs in (ALL, ROOT):
            return is_root or self._outputs == ALL
        return path is not None and fnmatchcase(path, self._outputs)

    def result(self, em: Emitter, path: str, value: Any) -> bytes:
        """`encode` of the output of a module, with fingerprints of the tensors in it."""
        phase = None if _graph_task() != -1 else "forward"
        call = f"{path}#{self.digests.number(path)}" if phase else path
        return self._told(em, phase, call, value, is_summed=phase is not None)

    def loss(self, em: Emitter, value: Any) -> bytes:
        """`encode` of what a backward pass begins with, with fingerprints."""
        return self._told(em, "loss", f"loss#{self.digests.number('loss')}", value)

    def given(self, em: Emitter, value: Any) -> bytes:
        """`encode` of an argument of a loss function, with fingerprints."""
        return self._told(em, None, "", value)

    def argument(self, em: Emitter, name: str, value: Any, text: bytes) -> bytes:
        """The text of an argument of an outermost module, with the fingerprint of a tensor."""
        if not issubclass(type(value), torch.Tensor) or not text.endswith(b"}"):
            return text
        is_batch = not (self.has_loader or requires_grad(value)) and torch.is_grad_enabled()
        number = self.digests.number(name)
        return self._tensor(em, "batch" if is_batch else None, f"{name}#{number}", value, text)

    def batch(
        self, loader: str, drawn: bytes, leaves: Sequence[tuple[str, bytes, torch.Tensor]]
    ) -> list[bytes]:
        """The texts of the leaves of a batch, with sketches.

        Args:
            loader: its name.
            drawn: what its sampler drew, serialized.
            leaves: path, text with fingerprint, and tensor of each.
        """
        self.has_loader = True
        name = f"{loader}#{self.digests.number(loader)}"
        if drawn:
            self.digests.add("batch", f"{name}.indices", drawn.decode())
        told = []
        for path, text, leaf in leaves:
            found = _FINGERPRINT.search(text)
            if found is not None:
                self.digests.add("batch", f"{name}.{path}", found[1].decode())
            is_sketched = self.sketcher is not None and b'"stats"' not in text
            more = (
                self.sketcher.text(leaf) if self.sketcher and is_sketched and leaf.is_cpu else b""
            )
            told.append(text[:-1] + STATS % more + b"}" if more else text)
        return told

    def close_step(self) -> None:
        """A recorded step is over: `take_text` gives its digests."""
        late, self._late = self._late, []
        if late and not is_capturing():  # with one copy
            rows = read_together([numbers for *_, numbers in late])
            for (phase, name, seed, _), row in zip(late, rows):
                self.digests.add(phase, name, _joined(seed, row))
        self._sizes.clear()
        taken = self.digests.take()
        self._text = DIGESTS % orjson.dumps(taken) if taken else b""

    def take_text(self) -> bytes:
        """The end of the record of the step."""
        taken, self._text = self._text, b""
        return taken

    # -- values

    def _told(
        self,
        em: Emitter,
        phase: str | None,
        name: str,
        value: Any,
        *,
        depth: int = 0,
        is_summed: bool = False,
    ) -> bytes:
        """`encode`, with fingerprints of the tensors in sequences and mappings."""
        if issubclass(type(value), torch.Tensor):
            return self._tensor(em, phase, name, value, encode(value), is_summed=is_summed)
        kind = type(value)
        is_mapping = issubclass(kind, dict)
        if depth >= MAX_DEPTH or not (is_mapping or issubclass(kind, (list, tuple))):
            return encode(value)
        items = _items(value)
        if not any(issubclass(type(item), (torch.Tensor, list, tuple, dict)) for _, item in items):
            return encode(value)
        told = [
            self._told(em, phase, f"{name}[{key}]", item, depth=depth + 1, is_summed=is_summed)
            for key, item in items
        ]
        if is_mapping:
            pairs = (orjson.dumps(key) + b":" + text for (key, _), text in zip(items, told))
            return b'{"dict":{%b}}' % b",".join(pairs)
        if len(value) > MAX_ITEMS:
            told.append(orjson.dumps(f"... {len(value) - MAX_ITEMS} more"))
        return b"[%b]" % b",".join(told)

    def _tensor(
        self,
        em: Emitter,
        phase: str | None,
        name: str,
        tensor: torch.Tensor,
        text: bytes,
        *,
        is_summed: bool = False,
    ) -> bytes:
        """The text of a tensor with its fingerprint and its sketch."""
        if b'"fingerprint":' in text:
            return text
        text, plain = text[:-1], as_plain(tensor)
        if not is_far(plain):
            found = fingerprint(tensor)
            if found is not None:
                text += FINGERPRINT % found.encode()
                if phase is not None:
                    self.digests.add(phase, name, found)
        else:
            text += self._later(em, phase, name, tensor)
        if self.sketcher is not None:
            text += self._sketch(em, name, plain, text, is_summed=is_summed)
        return text + b"}"

    def _later(self, em: Emitter, phase: str | None, name: str, tensor: torch.Tensor) -> bytes:
        """The fingerprint of a tensor on a device, which is computed there and read later."""
        parts = None if is_capturing() else components(tensor)
        if parts is None or local_of(tensor) is not None:
            return b""
        tensor = as_plain(tensor)
        started = start_digests(parts)
        words = torch.zeros(len(parts), 3, dtype=torch.int64, device=tensor.device)
        for owners, rows in started.chunks:
            before = None
            for owner, row in zip(owners, rows):  # each row also holds those before it
                words[owner] += row if before is None else row - before
                before = row
        halves = torch.stack([words & (_HALF - 1), (words >> 32) & (_HALF - 1)], dim=-1)
        numbers = halves[:, :2].reshape(-1).to(torch.float64)
        seed = seed_of_parts(tensor, parts)
        if phase is not None:
            self._late.append((phase, name, seed, numbers))
        return LATE_FINGERPRINT % em.defer(partial(_quoted, seed), numbers)

    def _sketch(
        self, em: Emitter, name: str, tensor: torch.Tensor, text: bytes, *, is_summed: bool
    ) -> bytes:
        """The end of a summary with the sketch.

        Outputs of the calls of a module in one step lie behind each other: their sketches add up to
        that of the output for the whole batch.
        """
        if self.sketcher is None:
            return b""
        offset = 0
        if is_summed:
            head, _, rest = name.partition("#")
            key = head + rest.lstrip("0123456789")
            offset = self._sizes.get(key, 0)
            self._sizes[key] = offset + tensor.numel()
        found = self.sketcher.numbers(tensor, offset)
        if found is None:
            return b""
        has_stats = b'"stats":' in text
        make, slot = (_sketch_alone, SKETCH) if has_stats else (finish_sketch, STATS)
        return slot % (em.defer(make, found) if is_far(found) else make(found.tolist()))


def is_far(tensor: torch.Tensor) -> bool:
    """Whether reading the tensor now would wait for a device."""
    return not tensor.is_cpu


def _items(value: Any) -> list[Part]:
    """The first items of a sequence or mapping, without code of a user's class."""
    if issubclass(type(value), dict):
        pairs = list(dict.items(value))[:MAX_ITEMS]
        return [(str(key), item) for key, item in pairs if type(key) in (str, int)]
    base = list if issubclass(type(value), list) else tuple
    return [(str(i), item) for i, item in enumerate(base.__getitem__(value, slice(MAX_ITEMS)))]


def _joined(seed: int, numbers: Sequence[float]) -> str:
    words = [int(low) | int(high) << 32 for low, high in _pairs(numbers)]
    return finish_digest([(one, other, False) for one, other in _pairs(words)], seed)


def _pairs(numbers: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    return zip(numbers[::2], numbers[1::2])


def _quoted(seed: int, numbers: Sequence[float]) -> bytes:
    return orjson.dumps(_joined(seed, numbers))


def _sketch_alone(numbers: Sequence[float]) -> bytes:
    """The sketch without the norm, for a summary that has other numbers."""
    return finish_sketch(numbers).rpartition(b',"sketch":')[2]
