"""The fingerprints of all variables, as their last scans found them."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.collect.tracking.tracked_tensor import BUFFER, GRADIENT, PARAMETER
from traincheck.collect.tracking.tracker import Tracker


def known_contents(tracker: Tracker) -> Iterator[tuple[str, str, str | None]]:
    """Role, name and fingerprint of each variable; None if it is not known.

    Variables of models that are gone stay: the garbage collector decides when a model is freed, and
    two runs of one program may differ in that. The name of a state of an optimizer begins with that
    of the optimizer.
    """
    for root in list(tracker.roots.values()):
        for parameter, gradient in root.parameters.variables.values():
            yield PARAMETER, parameter.name, parameter.digest
            yield GRADIENT, gradient.name, gradient.digest if gradient.identity else None
        for buffer in root.buffers.variables.values():
            yield BUFFER, buffer.name, buffer.digest
    for owner, states in tracker.scans.optimizer_states.items():
        for name, state in states.items():
            yield state.role, f"{owner}:{name}", state.digest
