"""Sequence layers of one model disagree about the batch dim."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from traincheck.rules.base.model_rule import MODELS, model_of
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import MULTI_HEAD_MODULE, RECURRENT
from traincheck.schema.values import tensor_summary

_LAYERS = RECURRENT | {MULTI_HEAD_MODULE}
_NDIM = 3
_ENOUGH = 3  # steps; two sizes may be equal by chance in one or two


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
