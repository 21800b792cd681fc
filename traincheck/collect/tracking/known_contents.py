"""The fingerprints of all variables, as their last scans found them."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.collect.tracking.tracked_tensor import BUFFER, GRADIENT, PARAMETER
from traincheck.collect.tracking.tracker import Tracker


def known_contents(tracker: Tracker) -> Iterator[tuple[str, str, str | None]]:
    """Role, name and fingerprint of each variable that has a tensor; None if it is not known.

    The name of a state of an optimizer begins with that of the optimizer.
    """
    for root in tracker.live_roots():
        for holder, key, parameter, gradient in root.parameters.values():
            if holder.get(key) is not None:
                yield PARAMETER, parameter.name, parameter.digest
                yield GRADIENT, gradient.name, gradient.digest if gradient.identity else None
        for holder, key, buffer in root.buffers.values():
            if holder.get(key) is not None:
                yield BUFFER, buffer.name, buffer.digest
    for owner, states in tracker.scans.optimizer_states.items():
        for name, state in states.items():
            yield state.role, f"{owner}:{name}", state.digest
