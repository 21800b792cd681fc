"""Parts of a model that were replaced after an optimizer was built, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from traincheck.readings.optimizers import Holder
from traincheck.readings.training_state import TrainingState
from traincheck.schema.places import short
from traincheck.schema.words import joined


class Replaced:
    """Compares the parameters of optimizers with those of the same names in a model.

    Args:
        ledger: the present parameters and optimizers.
    """

    def __init__(self, ledger: TrainingState) -> None:
        self._ledger = ledger

    def title(self, orphans: Sequence[int], holders: Sequence[Holder]) -> str:
        """``Net.head was replaced at train.py:9, after the optimizer was built``.

        Empty unless one optimizer holds an old parameter for each name, and others of this model.
        """
        for holder in holders:
            old = {name for i, name in holder.names.items() if i not in self._ledger.parameters}
            is_part = not holder.ids.isdisjoint(self._ledger.parameters)
            if is_part and old.issuperset(map(self._ledger.name, orphans)):
                parts = sorted({self._ledger.name(one).rpartition(".")[0] for one in orphans})
                were = "was" if len(parts) == 1 else "were"
                at = self._lines(orphans, holder)
                return f"{joined(parts)} {were} replaced{at}, after the optimizer was built"
        return ""

    def _lines(self, orphans: Iterable[int], holder: Holder) -> str:
        """The line that initialized the new ones, if it is one and ran after the optimizer."""
        calls = [self._ledger.born.get(one) for one in orphans]
        lines = {short(one.where) for one in calls if one and one.time_ns > holder.made.time_ns}
        return f" at {lines.pop()}" if len(lines) == 1 and "" not in lines else ""
