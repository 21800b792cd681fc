"""Sequence layers that read the batch dim as the time dim."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from traincheck.readings.losses import OVER_CLASSES, as_loss, given
from traincheck.rules.base.model_rule import MODELS, model_of
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import HUBER, MULTI_HEAD, MULTI_HEAD_MODULE, RECURRENT, losses
from traincheck.schema.values import TensorSummary, tensor_summary

_OF_VALUES = losses("probability", "value") - {HUBER}
_LOSSES = OVER_CLASSES | _OF_VALUES
_MOST_READS = 4096  # before a loss: a program may have no loss
_ENOUGH = 3  # losses, or steps; two sizes may be equal by chance in a batch or two


class BatchFirstMismatch(EventRule, code="TC323", aliases=("batch-read-as-sequence",)):
    """batch-first-mismatch: a layer reads the batch dim as the time dim.

    What it checks:
        Recurrent layers and attention do not read along the dim whose size is the number of samples
        of the loss.

    Why it matters:
        nn.LSTM, nn.GRU, nn.MultiheadAttention and nn.TransformerEncoderLayer expect (time, batch,
        features) by default. Given (batch, time, features) without batch_first=True they run
        without an error. Each sample then sees other samples of its batch instead of its earlier
        steps. The loss falls because the training batch leaks into every output.

    Fires on:
        - Three losses with one output for each sample. Before each, every such layer reads a
          sequence as long as the number of samples. The number of sequences is another one, and
          more than one.

    Stays quiet on:
        - Layers made with batch_first=True.
        - Data that is stored with time first.
        - Losses over every position.
        - Sequences as long as the batch is large.
        - A single sequence with a label for every element.
        - Models in which any layer reads another dim.
        - Evaluation.

    Fix:
        Make the layer with batch_first=True, or transpose its input.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html
    """

    title = "{subject} reads the samples of a batch as one sequence"
    likely_cause = (
        "The layer was made without batch_first=True but receives (batch, time, "
        "features): {observed}."
    )
    fix = "Make the layer with batch_first=True, or pass it (time, batch, features)."
    needs = Needs(
        calls=_LOSSES | RECURRENT | {MULTI_HEAD, MULTI_HEAD_MODULE}, kinds=frozenset({"step"})
    )
    _reads: list[_Read] = fresh(list)
    _found: list[tuple[_Read, CallEvent]] = fresh(list)  # one of each loss

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            self._reads.clear()
        if self.is_over or not isinstance(event, CallEvent) or not event.grad_enabled:
            return []
        if event.api in _LOSSES:
            reads, self._reads = self._reads, []
            call = as_loss(event, _LOSSES)
            if call is None or not reads:
                return []
            self.triggered += 1
            samples = [_samples(call, read.columns) for read in reads]
            if any(read.length == read.columns for read in reads):
                return []  # time and batch cannot be distinguished
            if not all(n == read.length and read.columns > 1 for n, read in zip(samples, reads)):
                self.is_over = True
                return []
            self._found.append((reads[0], call))
            if len(self._found) < _ENOUGH:
                return []
            self.is_over = True
            return [self._violation(*self._found[0])]
        if (
            event.api == MULTI_HEAD_MODULE
            and self._reads
            and self._reads[-1].call.api == MULTI_HEAD
        ):
            self._reads[-1] = replace(self._reads[-1], call=event)
        read = _read(event)
        if read is not None and len(self._reads) < _MOST_READS:
            self._reads.append(read)
        return []

    def _violation(self, read: _Read, loss: CallEvent) -> Violation:
        layer = read.call
        label = layer.module or layer.api.removeprefix("torch.nn.modules.").removesuffix(".forward")
        violation = loss_violation(
            self.code,
            layer,
            f"{label} reads the {read.length} samples of a batch as one sequence",
            expected=f"{read.length} sequences of {read.columns} steps, one for each sample of the "
            "loss",
            observed=f"{read.columns} sequences of {read.length} steps, and a loss over "
            f"{read.length} samples",
        )
        return replace(
            violation, subject=Subject(api=layer.api, module=layer.module), evidence=(layer, loss)
        )


@dataclass(frozen=True, slots=True)
class _Read:
    """One call of a layer that reads ``length`` steps of ``columns`` sequences.

    For attention: first the call of the function, then the call of the module around it.
    """

    length: int
    columns: int
    call: CallEvent


def _read(event: CallEvent) -> _Read | None:
    if event.api == MULTI_HEAD:  # receives time first, whatever batch_first of its module is
        query = given(event, "query")
        if query is not None and len(query.shape) == 3:  # noqa: PLR2004
            return _Read(query.shape[0], query.shape[1], event)
    if event.api in RECURRENT:
        sequence, last = tensor_summary(event.args.get("0")), _last_state(event.result)
        if sequence is not None and last is not None and len(sequence.shape) == 3:  # noqa: PLR2004
            first, second, _ = sequence.shape
            columns = last.shape[1]
            if columns in (first, second):
                return _Read(first if columns == second else second, columns, event)
    return None


def _last_state(result: Any) -> TensorSummary | None:
    """The (layers, batch, features) state, whatever batch_first is: it shows the batch dim."""
    if not isinstance(result, list) or len(result) != 2:  # noqa: PLR2004
        return None
    state = result[1][0] if isinstance(result[1], list) and result[1] else result[1]
    found = tensor_summary(state)
    return found if found is not None and len(found.shape) == 3 else None  # noqa: PLR2004


def _samples(call: CallEvent, columns: int) -> int | None:
    """The number of samples of a loss; None if it has more than one output for each sample."""
    outputs, target = given(call, "input"), given(call, "target")
    if outputs is None or target is None:
        return None
    rows, *rest = outputs.shape or (1,)
    if call.api in OVER_CLASSES:
        return rows if len(rest) == 1 and target.shape[:1] == (rows,) else None
    return rows if len(rest) <= 1 and prod(rest) != columns else None


_LAYERS = RECURRENT | {MULTI_HEAD_MODULE}
_NDIM = 3


class BatchDimsMixed(EventRule, code="TC326"):
    """batch-dims-mixed: one layer reads as time the dim that another layer reads as the batch.

    What it checks:
        In a model with batch_first=True on some recurrent or attention layers only, all these
        layers read the same number of sequences.

    Why it matters:
        A layer left without batch_first=True in such a model runs without an error. Each sample
        attends to, or remembers, the other samples of the batch. The loss falls because the
        training batch leaks into every output.

    Fires on:
        - Three steps in which a layer without batch_first reads a sequence as long as the batch of
          all layers with batch_first. It reads several sequences, and their number is not the batch
          size.

    Stays quiet on:
        - Inputs that are transposed for the layers that expect time first.
        - Models whose layers all have the same setting, e.g. for axial attention (TC323 checks
          those).
        - Sequences as long as the batch is large.
        - Evaluation.

    Fix:
        Make all layers with batch_first=True, or transpose the input of layers without it.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html
    """

    title = "{subject}, unlike other layers, reads the samples of a batch as one sequence"
    likely_cause = (
        "{subject} was made without batch_first=True, unlike other layers of the model, but "
        "receives (batch, time, features)."
    )
    fix = "Make {subject} with batch_first=True, or pass it (time, batch, features)."
    needs = MODELS | Needs(calls=_LAYERS, kinds=frozenset({"step"}))
    _flags: dict[str, bool] = fresh(dict)
    _steps: defaultdict[str, _Step] = fresh(lambda: defaultdict(_Step))
    _found: defaultdict[str, int] = fresh(lambda: defaultdict(int))  # layer -> steps

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            steps, self._steps = self._steps, defaultdict(_Step)
            return [found for step in steps.values() for found in self._conclude(step)]
        if isinstance(event, CallEvent):
            is_first = self._flags.get(event.module or "")
            given = tensor_summary(event.args.get("0") or event.args.get("query"))
            if event.api not in _LAYERS or not event.grad_enabled or event.stage != "train":
                return []
            if is_first is None or given is None or len(given.shape) != _NDIM:
                return []
            step = self._steps[str(event.module).partition(".")[0]]
            if is_first:
                step.batches.add(given.shape[0])
            else:
                step.others.append((given.shape[0], given.shape[1], event))
        elif (model := model_of(event)) is not None:
            flags = {path: facts.get("batch_first") for path, facts in model.modules.items()}
            self._flags |= {path: flag for path, flag in flags.items() if isinstance(flag, bool)}
        return []

    def _conclude(self, step: _Step) -> list[Violation]:
        if len(step.batches) != 1 or not step.others:
            return []
        self.triggered += 1
        (batch,) = step.batches
        found = []
        for path in {str(call.module) for _, _, call in step.others} - self.reported:
            dims = [(one, other, c) for one, other, c in step.others if c.module == path]
            if not all(one == batch and other not in (1, batch) for one, other, _ in dims):
                continue
            self._found[path] += 1
            if self._found[path] == _ENOUGH:
                self.reported.add(path)
                _, columns, call = dims[0]
                found += self.found(
                    call,
                    subject=Subject(api=call.api, module=call.module),
                    symptom=Symptom.LOSS_INPUT,
                    message=f"{call.module} reads the {batch} samples of a batch as one sequence",
                    expected=f"{batch} sequences of {columns} steps, as other layers of the model "
                    "read them",
                    observed=f"{columns} sequences of {batch} steps",
                )
        return found


@dataclass(slots=True)
class _Step:
    """One step of a model. batches: sizes with batch_first. others: first two dims of the rest."""

    batches: set[int] = field(default_factory=set)
    others: list[tuple[int, int, CallEvent]] = field(default_factory=list)
