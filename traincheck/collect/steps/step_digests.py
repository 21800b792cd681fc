"""One digest for each phase of a step, of the names and fingerprints that were recorded of it.

Names are sorted, and each digest is a hash over all of them in order. So moved and swapped contents
change it, which a sum or XOR of fingerprints would not show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import orjson
import xxhash

from traincheck.schema.marks import PHASES


class StepDigests:
    """Collects the names and fingerprints of one step."""

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
