"""The loaders that feed training, derived from the calls after their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from traincheck.readings.losses import number
from traincheck.readings.provider import RunState, RunStates
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary

DATA_LOADER = "torch.utils.data.DataLoader"
BATCHES = Needs(calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch", "step"}))
STREAM = "torch.utils.data.dataloader._InfiniteConstantSampler"  # of an IterableDataset

Loader = tuple[int, str]  # rank and label


class TrainingLoaders(RunState):
    """Loaders whose batches are followed by backward(), in one rank or in many."""

    reads = Needs(calls=frozenset({Families.BACKWARD}), kinds=frozenset({"batch"}))

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._known: set[Loader] = set()

    def observe(self, event: Event) -> None:
        if isinstance(event, BatchEvent):
            self._last[event.rank] = event.loader
        elif isinstance(event, CallEvent) and (event.family or event.api) == Families.BACKWARD:
            last = self._last.get(event.rank)
            if last is not None:
                self._known.add((event.rank, last))

    def __contains__(self, loader: object) -> bool:
        return loader in self._known


class LoaderRule(BuiltInRule):
    """A rule about the loaders that feed training."""

    uses: ClassVar[Sequence[type[RunState]]] = (TrainingLoaders,)

    def bind(self, run_states: RunStates) -> None:
        self.training = run_states.of(TrainingLoaders)


def content_of(event: BatchEvent) -> tuple[str, ...]:
    """Fingerprints of the tensors of a batch; empty if any tensor has none."""
    found = [
        leaf.get("fingerprint") if isinstance(leaf, dict) else None
        for leaf in event.leaves.values()
    ]
    return tuple(map(str, found)) if found and all(found) else ()


def identified(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Fingerprints of the tensors that have one and that hold more than one distinct value."""
    for name, value in values.items():
        tensor = tensor_summary(value)
        if tensor is None or not tensor.fingerprint:
            continue
        low, high = number(tensor, "min"), number(tensor, "max")
        if low is None or low != high:
            yield name, tensor.fingerprint
