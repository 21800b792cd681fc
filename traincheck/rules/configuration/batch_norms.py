"""Batch norms with statistics of a handful of samples, or of the last batch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traincheck.rules.base.model_rule import about, model_of
from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.schema.claims import Needs, within_modules
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import Value, is_tensor, tensor_summary

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
    samples: int = 8
    _small: dict[str, int] = fresh(dict)

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
        if tensor.shape[0] >= self.samples or positions >= _POSITIONS:
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
                expected=f"{self.samples} samples or more",
                observed=f"statistics of {tensor.shape[0]} samples",
            )
        ]


_PROOF = 2  # steps that train it


class NormMomentumReversed(EventRule, code="TC923"):
    """norm-momentum-reversed: running statistics of batch norms reflect only the last batch.

    What it checks:
        The momentum of BatchNorm is far below 1, or None.

    Why it matters:
        In torch, momentum is the weight of the new batch. In TensorFlow and many papers it is the
        weight of the old statistics: 0.99 there is 0.01 here. With 0.99 the running statistics are
        those of the last batch, and evaluation depends on its samples.

    Fires on:
        - Two training steps with a BatchNorm in training mode that tracks statistics with a
          momentum of 0.9 or more. This includes norms created by a library: some ports of MobileNet
          and EfficientNet copied the number unchanged.

    Stays quiet on:
        - momentum=None, which takes the plain mean.
        - Exactly 1, which is used to set the statistics from one batch.
        - Layers that track no statistics, or are in evaluation mode.
        - Models that are not trained.

    Fix:
        Use 1 - momentum: 0.01 instead of 0.99. For a model of a library, set the momentum of its
        norms before training.

    Options:
        least: momentum from which on all values below 1 are too large.

    Source:
        https://github.com/pytorch/vision/issues/8250
    """

    title = "Running statistics of batch norms are those of the last batch"
    likely_cause = (
        "The momentum may follow the convention of TensorFlow. In torch it is the weight of "
        "the new batch."
    )
    fix = (
        "Use 1 - momentum, e.g. 0.01 instead of 0.99 from TensorFlow or a paper. For a model of a "
        "library, set the momentum of its norms before training."
    )
    needs = Needs(calls=within_modules(_API) | {Families.MODULE}, kinds=frozenset({"mark", "step"}))
    least: float = 0.9
    _made: dict[str, float] = fresh(dict)  # momentum by path, from descriptions of models
    _has_calls = False
    _called: dict[str, tuple[float, CallEvent]] = fresh(dict)  # momentum by path, in this step
    _roots: dict[str, CallEvent] = fresh(dict)  # models trained in this step
    _rows: dict[str, tuple[int, CallEvent]] = fresh(dict)  # path -> number of steps, first call

    # Recorded calls of batch norm decide, because modes and momenta can change at any time. Without
    # them, e.g. in compiled models, the description of the trained model decides.
    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            found, self._called, self._roots = self._found(), {}, {}
            is_update = event.recorded and event.counters.get("optimizer_step", 0) > 0
            return self._step(found) if is_update and not self.is_over else []
        if isinstance(event, CallEvent):
            if not event.grad_enabled or event.module is None:
                return []
            if event.api == _API:
                self.triggered += 1
                self._has_calls = True
                momentum: Value = event.args.get("momentum")
                is_tracked = is_tensor(event.args.get("running_mean"))
                if event.args.get("training") is True and is_tracked and self._is_large(momentum):
                    self._called[event.module] = momentum, event
            elif event.root and event.training:
                self._roots.setdefault(event.module, event)
            return []
        model = model_of(event)
        for path, facts in model.of_family("batch norm") if model else ():
            self.triggered += 1
            self._made.pop(path, None)
            if facts.get("track_running_stats") and self._is_large(facts.get("momentum")):
                self._made[path] = facts["momentum"]
        return []

    def _is_large(self, momentum: Value) -> bool:
        return isinstance(momentum, float) and self.least <= momentum < 1

    def _found(self) -> dict[str, tuple[float, CallEvent]]:
        """Norms trained in this step with a large momentum."""
        if self._has_calls:
            return self._called
        return {
            path: (momentum, call)
            for path, momentum in self._made.items()
            for root, call in self._roots.items()
            if path == root or path.startswith(f"{root}.")
        }

    def _step(self, found: Mapping[str, tuple[float, CallEvent]]) -> list[Violation]:
        for path, (_, call) in found.items():
            count, first = self._rows.get(path, (0, call))
            self._rows[path] = count + 1, first
        paths = [path for path in found if self._rows[path][0] >= _PROOF]
        if not paths:
            return []
        self.is_over = True
        values = sorted({f"{found[path][0]:g}" for path in paths})
        return [
            about(
                self.info,
                self._rows[paths[0]][1],
                paths,
                expected="a momentum far below 1: the weight of the new batch",
                observed=f"momentum {', '.join(values)}",
            )
        ]
