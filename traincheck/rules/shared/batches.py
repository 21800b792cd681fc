"""Rules that check each tensor of each batch. The only threshold is a number of batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from traincheck.rules.base.model_rule import about
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, Event
from traincheck.schema.findings import Subject, Violation
from traincheck.schema.values import TensorSummary, tensor_summary

BATCHES = Needs(kinds=frozenset({"batch"}), stats=frozenset({"batch"}))
_IN_A_ROW = 3  # consecutive batches of a loader: a single one may be an exception
_DIMS, _COLOURS, _SMALLEST = 4, frozenset({1, 3, 4}), 8


class BatchLeafRule(BuiltInRule):
    """Reports a tensor of a batch when several consecutive batches show the same fault."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], int] = {}
        self._is_odd = False

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, BatchEvent):
            return ()
        found: list[Violation] = []
        for path, value in event.leaves.items():
            tensor = tensor_summary(value)
            if tensor is not None and (event.loader, path) not in self.reported:
                self._is_odd = False
                found += self.judge(event, path, tensor)
                if not self._is_odd:
                    self._seen.pop((event.loader, path), None)
        return found

    @abstractmethod
    def judge(self, event: BatchEvent, path: str, tensor: TensorSummary) -> Sequence[Violation]:
        """Return the violations of a tensor of a batch; see `again`."""

    def again(
        self, event: BatchEvent, path: str, *, expected: str, observed: str
    ) -> Sequence[Violation]:
        """Count a faulty tensor; return a violation if the preceding batches had it too."""
        self._is_odd = True
        key = (event.loader, path)
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] < _IN_A_ROW:
            return ()
        self.reported.add(key)
        where = f"{event.loader} {path}"
        violation = about(self.info, event, [where], expected=expected, observed=observed)
        return [replace(violation, subject=Subject(variable=where))]


def is_image(tensor: TensorSummary) -> bool:
    """Whether the tensor may be a batch of floating-point images."""
    return tensor.dtype.startswith(("float", "bfloat")) and may_be_images(tensor)


def may_be_images(tensor: TensorSummary) -> bool:
    """Whether the tensor has the shape of a batch of images."""
    shape = tensor.shape
    return (
        len(shape) == _DIMS
        and bool(_COLOURS & {shape[1], shape[3]})
        and min(shape[2], max(shape[1], shape[3])) >= _SMALLEST
    )
