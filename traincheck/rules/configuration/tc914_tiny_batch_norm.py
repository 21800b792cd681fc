"""Batch norm statistics of a handful of samples."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.rules.base.model_rule import about
from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.values import tensor_summary

_API = "torch.nn.functional.batch_norm"
_POSITIONS = 64
_IN_A_ROW = 3


class TinyBatchNorm(BuiltInRule, code="TC914", severity="info"):
    """tiny-batch-norm: batch norm computes statistics of a handful of samples.

    What it checks:
        Batch norms in training mode receive at least 8 samples at a time.

    Why it matters:
        Mean and variance of a few samples are noise. Training is unstable, and evaluation differs
        from it.

    Fires on:
        - BatchNorm over batches of 4 in training mode, three times in a row.

    Stays quiet on:
        - Evaluation mode.
        - Other norms.
        - Inputs with many positions (images of 8 x 8 and more count each position).
        - A last, smaller batch.

    Fix:
        Use larger batches, SyncBatchNorm over ranks, or GroupNorm.

    Source:
        https://arxiv.org/abs/1803.08494

    Options:
        samples: smallest sufficient number of samples.
    """

    title = "Batch norm receives very small batches"
    likely_cause = "The batch on one device is small."
    fix = "Use larger batches, SyncBatchNorm, or GroupNorm."
    needs = Needs(calls=frozenset({_API}))

    def __init__(self, samples: int = 8) -> None:
        super().__init__()
        self._samples = samples
        self._small: dict[str, int] = {}

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, CallEvent) or event.args.get("training") is not True:
            return ()
        tensor = tensor_summary(event.args.get("input"))
        if tensor is None or not tensor.shape or event.module is None:
            return ()
        self.triggered += 1
        positions = 1
        for size in tensor.shape[2:]:
            positions *= size
        if tensor.shape[0] >= self._samples or positions >= _POSITIONS:
            self._small.pop(event.module, None)
            return ()
        self._small[event.module] = self._small.get(event.module, 0) + 1
        if self._small[event.module] != _IN_A_ROW:
            return ()
        return [
            about(
                self.info,
                event,
                [event.module],
                expected=f"{self._samples} samples or more",
                observed=f"statistics of {tensor.shape[0]} samples",
            )
        ]
