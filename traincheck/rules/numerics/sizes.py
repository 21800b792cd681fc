"""Activations and initial weights of a size with which nothing can be learned."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from traincheck.readings import recorded
from traincheck.readings.losses import bounds
from traincheck.readings.resumptions import brings_back
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.shared.activations import ACTIVATIONS, ActivationRule, Look, Place, Streak
from traincheck.rules.shared.numbers import MATRIX, History, is_kernel
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_ENOUGH = 2  # records that make a history
_CONFIRMED = 2  # steps


class ExplodingActivation(ActivationRule, code="TC707"):
    """exploding-activation: outputs of an activation leave the range of their history.

    What it checks:
        The largest output of each activation stays near that of the first steps.

    Why it matters:
        The model diverges: the loss jumps, gradients explode, and NaN follows.

    Fires on:
        - A largest output above 10000 and more than 1000 times the median of the earlier records,
          at two consecutive scanned steps. Scanned are the first four steps, then every tenth.

    Stays quiet on:
        - Large outputs from the start.
        - Single outliers.
        - Activations with limits.
        - Evaluation.

    Fix:
        Lower the learning rate or warm it up, and normalize inputs and layers.

    Options:
        ratio: factor over the median of the history.
        floor: outputs up to this are never too large.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The outputs of {subject} explode"
    likely_cause = "{observed}. The learning rate may be too high for this model."
    fix = "Lower the learning rate or warm it up, and normalize inputs and layers."
    needs: Needs = ACTIVATIONS

    def __init__(self, ratio: float = 1000.0, floor: float = 10000.0) -> None:
        super().__init__()
        self.ratio = ratio
        self.floor = floor
        self._histories: dict[Place, History] = {}
        self._streaks: dict[Place, Streak] = {}

    def judge(self, look: Look) -> Sequence[Violation]:
        known = bounds(look.summary)
        if known is None:
            return ()
        largest = max(map(abs, known))
        history = self._histories.setdefault(look.place, History(16))
        usual = history.median if len(history) >= _ENOUGH else largest
        if largest <= self.floor or largest <= self.ratio * usual:
            history.add(largest)
            self._streaks.pop(look.place, None)
            return ()
        streak = self._streaks.setdefault(look.place, Streak())
        streak.add(look)
        if streak.is_reported or streak.steps < _CONFIRMED:
            return ()
        streak.is_reported = True
        return self.found(
            look.event,
            step=streak.first,
            stage="train",
            subject=look.place.subject,
            symptom=Symptom.GRADIENT_SIZE,
            message=f"the outputs of {look.place.label} leave the range of their history",
            expected="the largest output stays near its history",
            observed=f"{look.place.label}: up to {largest:.3g}, usually {usual:.3g}",
        )


_FEWEST = 2  # weights: for a single one, a constant start is as good as any
_MOST_OF_ALL = 0.5  # share of the weights that are constant
_USUAL_GAIN = 1.5  # of one layer followed by an activation
_NORMALIZING = "Norm"  # in the class name of a module that normalizes the scale


class PoorInitialization(BuiltInRule, code="TC708"):
    """poor-initialization: weights start constant, or so large that the signal explodes.

    What it checks:
        When training starts, the elements of each linear and convolutional weight differ from each
        other, and their scale matches the number of inputs.

    Why it matters:
        Units with equal initial weights get the same gradient and stay equal forever. Weights that
        are too large give a loss of hundreds at the first step, saturate activations, and kill
        units.

    Fires on:
        - More than half of the weights of a model, at least two, with all elements equal.
        - Two or more weights with a gain above 5 (root mean square times root of the inputs) in a
          model without normalization. Together they exceed 50 times the gain that preserves the
          signal.

    Stays quiet on:
        - Biases of zero and scales of one.
        - Single layers initialized with zeros (LoRA, the last layer of a residual branch, a head).
        - Embeddings.
        - Models of one layer.
        - Weights that are loaded afterwards.
        - Large weights in models with normalization.

    Fix:
        Use the default initialization of torch, or torch.nn.init.kaiming_normal_ for layers with
        ReLU and xavier_uniform_ for tanh.

    Options:
        gain: gain of one weight above which it is large.
        product: product of all large gains, relative to gains that preserve the signal.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The initial values of {variables} prevent learning"
    likely_cause = "{observed} when training starts."
    fix = (
        "Use the default initialization of torch, or torch.nn.init.kaiming_normal_ "
        "(xavier_uniform_ with tanh)."
    )
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint"}),
        stats=frozenset({"parameter"}),
    )
    gain: float = 5.0
    product: float = 50.0
    _models: dict[str, dict[str, _Weight]] = fresh(lambda: defaultdict(dict))
    _normalized: set[str] = fresh(set)
    _changed: dict[str, int | None] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if self.is_over:
            return ()
        if isinstance(event, StateEvent):
            self._state(event)
        elif isinstance(event, CheckpointEvent):
            if event.op == "load_state_dict" and brings_back(event):
                self._models.clear()  # the recorded weights are not the trained ones
        elif isinstance(event, CallEvent):
            self.is_over = True
            for name, after in self._changed.items():
                if after != event.span:  # not by this step: the recorded weight is not trained
                    self._models[_root(name)].pop(name, None)
            return [v for weights in self._models.values() for v in self._judge(weights, event)]
        return ()

    def _state(self, event: StateEvent) -> None:
        root = event.name.partition(".")[0]
        if _NORMALIZING in (event.module_class or "").rpartition(".")[2]:
            self._normalized.add(root)
        known = self._models[root]
        if event.change not in ("new", "replaced"):
            if event.change != "flags":
                self._changed[event.name] = event.after
            return
        summary = event.summary
        norm = recorded.norm(summary)
        if summary is None or norm is None or not is_kernel(event.module_class):
            return
        if len(summary.shape) < MATRIX or 0 in summary.shape:
            return
        elements = math.prod(summary.shape)
        rms = norm / math.sqrt(elements)
        low, high = recorded.extremes(summary) or (None, None)
        known[event.name] = _Weight(
            event=event,
            value=low if low is not None and low == high and elements > 1 else None,
            gain=rms * math.sqrt(math.prod(summary.shape[1:])),
        )

    def _judge(self, weights: Mapping[str, _Weight], step: CallEvent) -> list[Violation]:
        if len(weights) < _FEWEST:
            return []
        self.triggered += 1
        constant = {name: w for name, w in weights.items() if w.value is not None}
        trained = [name for name, w in constant.items() if w.event.requires_grad]
        if trained and len(constant) > max(1, _MOST_OF_ALL * len(weights)):
            values = sorted({f"{w.value:.4g}" for w in constant.values()})
            observed = f"{joined(sorted(trained))} contain only {', '.join(values[:3])}"
            return [self._violation(trained, constant, observed, step)]
        large = {name: w for name, w in weights.items() if w.gain > self.gain}
        if len(large) < _FEWEST or self._normalized & {_root(name) for name in large}:
            return []
        product = math.prod(w.gain / _USUAL_GAIN for w in large.values())
        if product <= self.product:
            return []
        largest = max(large, key=lambda name: large[name].gain)
        observed = (
            f"{joined(sorted(large))} multiply the signal, {largest} by {large[largest].gain:.3g}"
        )
        return [self._violation(sorted(large), large, observed, step)]

    def _violation(
        self,
        names: Sequence[str],
        weights: Mapping[str, _Weight],
        observed: str,
        step: CallEvent,
    ) -> Violation:
        return self.violation(
            step,
            stage="init",
            subject=Subject(variable=names[0]),
            symptom=Symptom.INITIALIZATION,
            message=f"the initial weights prevent learning: {observed}",
            expected="weights that differ, with a scale that matches the number of inputs",
            observed=observed,
            evidence=(weights[names[0]].event,),
        )


@dataclass(slots=True)
class _Weight:
    """A weight when first recorded. value: of all elements, None if they differ."""

    event: StateEvent
    value: float | None
    gain: float


def _root(name: str) -> str:
    return name.partition(".")[0]
