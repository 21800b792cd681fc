"""What an optimizer keeps of each parameter, so that looks need not search for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traincheck.collect.tracking.tracked_tensor import TrackedTensor
from traincheck.handlers import give_back


@dataclass(slots=True)
class StateIndex:
    """Which tensors an optimizer keeps, in the order of its state; no reference to any of them.

    While ids of the parameters and sizes of the entries are the same, so are the names.
    """

    names: int
    held: list[int]
    sizes: list[int]
    tensors: list[list[tuple[str, TrackedTensor]]]

    def fits(self, states: Mapping[Any, Any], names: int) -> bool:
        # `map` over whole dicts stays in C: a tenth of the time of a look at each entry
        try:
            return (
                names == self.names
                and list(map(id, states)) == self.held
                and list(map(len, states.values())) == self.sizes
            )
        except TypeError as error:  # an optimizer that keeps something of its own among the entries
            give_back(error)
            return False
