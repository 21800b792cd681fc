"""Batches of an evaluation differ, but their losses are equal to the last bit."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from traincheck.readings import recorded
from traincheck.readings.losses import given, loss_needs, number
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import BatchEvent, CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.torch_api import TARGETED, Families
from traincheck.schema.values import TensorSummary, Value, is_tensor, tensor_summary, tensors_in

_IN_A_ROW = 3  # batches of one evaluation
_TABLE = 2  # dims of a tensor that holds samples; counts of samples and labels have one
_LOOKS = 64  # latest records of training
_MOST = 16  # compared losses of one batch
_ALIKE = 1e-4  # relative; rows whose sums differ by less count as the same row
_FULL = ("float32", "float64")  # in half precision losses can be equal by chance


class EvaluationLossConstant(EventRule, code="TC717", aliases=("evaluation-loss-fixed",)):
    """evaluation-loss-constant: evaluation has the same loss for each of its batches.

    What it checks:
        The losses of an evaluation differ from batch to batch, like the batches.

    Why it matters:
        A loss that is equal to the last bit comes from the same samples. The loop evaluates a
        variable left over from the training loop, not the batches that it fetches. The validation
        loss is that of one training batch, and selects the wrong model.

    Fires on:
        - Three different consecutive batches of one evaluation, each followed by the same losses of
          a model's outputs, while the losses of training differ.

    Stays quiet on:
        - Losses of zero.
        - The same batch again.
        - Outputs whose rows are equal, e.g. of a head initialized with zeros.
        - Outputs at a limit, e.g. of a clamp, and whole numbers.
        - Targets of one value.
        - Losses that are not computed from the model's outputs.
        - Batches with another loss that differs.
        - Half precision.
        - Steps that are not scanned: losses of more than 65536 numbers are recorded in some steps
          only.

    Fix:
        Pass the batch of the evaluation loop to the model and the loss.

    Source:
        https://karpathy.github.io/2019/04/25/recipe/ (look at what goes into the network)
    """

    title = "The loss is the same for each batch of the evaluation"
    likely_cause = (
        "The evaluated batch may not be the fetched one, e.g. as the loop uses a variable of "
        "the training loop."
    )
    fix = "Pass the variables of the evaluation loop to the model and the loss."
    needs = loss_needs(*TARGETED) | Needs(
        calls=frozenset({Families.MODULE}), kinds=frozenset({"batch"}), stats=frozenset({"batch"})
    )
    _window: _Window | None = None
    _row: list[_Window] = fresh(list)  # different batches with equal losses
    _trained: dict[str, set[float]] = fresh(dict)  # two training losses, by function
    # Of training outputs
    _extremes: deque[tuple[float, float]] = fresh(lambda: deque(maxlen=_LOOKS))

    def judge(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, BatchEvent):
            found, self._window = self._close(), _Window(event)
            return found
        if isinstance(event, CallEvent) and event.exception is None:
            window = self._window
            if event.api in TARGETED:
                if event.grad_enabled:
                    value, low_high = (
                        recorded.value_of(event.result),
                        _extremes_of(given(event, "input")),
                    )
                    values = self._trained.setdefault(event.api, set())
                    if value is not None and len(values) < 2:  # noqa: PLR2004
                        values.add(value)
                    if low_high is not None:
                        self._extremes.append(low_high)
                    return self._end()
                if window is not None:
                    # Add a loss of an evaluation; if it is partly unknown, the batch is
                    # not compared.
                    result, value = tensor_summary(event.result), recorded.value_of(event.result)
                    outputs, target = given(event, "input"), _extremes_of(given(event, "target"))
                    is_known = (
                        event.stage == EVAL_STAGE
                        and result is not None
                        and result.dtype in _FULL
                        and _extremes_of(outputs) is not None
                        and target is not None
                        and target[0] < target[1]
                        and len(window.losses) < _MOST
                    )
                    if not is_known or outputs is None or value is None or not math.isfinite(value):
                        window.is_plain = False
                        return []
                    window.losses.append(_Loss(event.api, value, math.prod(outputs.shape), outputs))
                    window.calls.append(event)
            elif window is not None and event.root and not event.grad_enabled:
                window.sizes.update(_sizes(event.result))
            return []
        return self._end() if isinstance(event, StepEvent) else []

    def finish(self) -> list[Violation]:
        return self._end()

    def _end(self) -> list[Violation]:
        """End the current evaluation, if any."""
        found, self._window = self._close(), None
        self._row.clear()
        return found

    def _close(self) -> list[Violation]:
        """Finish a batch and check whether it continues the row."""
        window, row = self._window, self._row
        if self.is_over or window is None or not window.losses or not window.is_plain:
            row.clear()
            return []
        self.triggered += 1
        if any(w.losses != window.losses or not _differ(w.batch, window.batch) for w in row):
            row.clear()
        row.append(window)
        telling = [i for i, loss in enumerate(window.losses) if self._is_telling(loss, window)]
        if not telling:
            row.clear()
        if len(row) < _IN_A_ROW:
            return []
        self.is_over = True
        place = telling[0]
        call, loss = row[0].calls[place], row[0].losses[place]
        return self.found(
            call,
            subject=Subject(api=call.api),
            symptom=Symptom.REPEATED_DATA,
            message=f"the loss is the same for different batches of {row[-1].batch.loader}",
            expected="losses that differ from batch to batch, as in training",
            observed=f"a loss of {loss.value!r} for {len(row)} different consecutive batches",
            evidence=(call, row[-1].calls[place]),
        )

    def _is_telling(self, loss: _Loss, window: _Window) -> bool:
        """Whether the loss is of model outputs that would differ for other samples."""
        low, high = recorded.extremes(loss.outputs) or (0.0, 0.0)
        least, most = recorded.row_sums(loss.outputs)
        sums = low if least is None else least, high if most is None else most
        spread = _ALIKE * max(map(abs, (low, high, *sums)))
        return (
            sums[1] - sums[0] > spread
            and high - low > spread
            and loss.value != 0
            and loss.size in window.sizes
            and len(self._trained.get(loss.api, ())) > 1
            and not (low == int(low) and high == int(high))
            and not any(map(self._is_limit, (low, high)))
        )

    def _is_limit(self, extreme: float) -> bool:
        """Whether training outputs had this extreme too, e.g. the limit of a clamp or sigmoid."""
        return sum(extreme in low_high for low_high in self._extremes) > 1


class _Loss(NamedTuple):
    """A loss of an evaluation. size: of its input, the outputs of the model."""

    api: str
    value: float
    size: int
    outputs: TensorSummary


@dataclass(slots=True)
class _Window:
    """Calls after a batch. sizes: of model outputs. is_plain: whether each loss is known."""

    batch: BatchEvent
    losses: list[_Loss] = field(default_factory=list)
    calls: list[CallEvent] = field(default_factory=list)
    sizes: set[int] = field(default_factory=set)
    is_plain: bool = True


def _sizes(result: Value) -> Iterator[int]:
    """The number of elements of each tensor in a result."""
    if is_tensor(result):
        yield math.prod(result["shape"])
    elif isinstance(result, (list, dict)):
        inner = result.get("dict") if isinstance(result, dict) else result
        values = inner.values() if isinstance(inner, dict) else inner or ()
        yield from (size for value in values for size in _sizes(value))


def _extremes_of(tensor: TensorSummary | None) -> tuple[float, float] | None:
    low, high = number(tensor, "min"), number(tensor, "max")
    return None if low is None or high is None else (low, high)


def _differ(one: BatchEvent, other: BatchEvent) -> bool:
    """Whether a tensor of samples differs between two batches of one pass over a loader."""
    if (one.loader, one.epoch) != (other.loader, other.epoch):
        return False
    others = tensors_in(other.leaves)
    for path, leaf in tensors_in(one.leaves).items():
        beside, low_high = others.get(path), _extremes_of(leaf)
        if beside is None or low_high is None or len(leaf.shape) < _TABLE:
            continue
        are_known = low_high[0] < low_high[1] and leaf.fingerprint and beside.fingerprint
        if low_high != _extremes_of(beside) or (
            are_known and leaf.fingerprint != beside.fingerprint
        ):
            return True
    return False
