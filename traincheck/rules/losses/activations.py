"""Activations whose results cannot be what the loss needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from traincheck.readings.losses import CROSS_ENTROPY, as_loss, given, loss_needs, number
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import EventRule, Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.activations import ACTIVATIONS, kind_of
from traincheck.rules.shared.losses import loss_violation
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import SOFTMAXES, losses
from traincheck.schema.values import TensorSummary, tensor_summary
from traincheck.schema.words import joined

_MATRIX = 2


class SoftmaxOverOneElement(StepRule, code="TC333", aliases=("softmax-over-one",)):
    """softmax-over-one-element: softmax over one element, so parameters before it cannot learn.

    What it checks:
        Softmax is not taken over a dim of size 1 if parameters that produce one number, e.g. a
        layer with one output, get only zero gradients from it.

    Why it matters:
        The softmax of one number is 1, and its derivative is zero. Attention that scores each
        position then weighs all positions equally, and a classifier with one output always predicts
        1. The rest of the model learns around it, so the loss falls.

    Fires on:
        - Five optimizer steps in a row with such a softmax in which parameters with a dim of size 1
          have a gradient that is all zero. For a matrix of one column, all gradients must be zero.

    Stays quiet on:
        - A softmax over one position, key or expert whose scores come from other parameters.
        - Single steps.
        - Softmax without gradients.

    Fix:
        Take the softmax over the dim of positions (or classes): for scores of shape (batch, time,
        1) that is dim=1. For one output use sigmoid.

    Options:
        - steps: number of steps in a row.

    Source:
        https://github.com/DEEP-PolyU/KEQA_WSDM19/issues/2
    """

    title = "A softmax is taken over one element, so it is always 1"
    likely_cause = "{observed}: the dim may be the wrong one, or there is one output."
    fix = "Take the softmax over the dim of positions or classes. For one output use sigmoid."
    needs: Needs = DISCOVERY | GRADIENTS | Needs(calls=SOFTMAXES)
    steps: int = 5
    _call: CallEvent | None = None  # the first call; some steps may not record calls
    _idle: dict[str, set[int]] = fresh(dict)  # by optimizer, in all its steps in a row
    _streaks: dict[str, Streak] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        self._call = self._call or next(filter(_is_over_one, facts.softmaxes), None)
        if self._call is None or self.is_over:
            return []
        if not facts.is_complete:
            self._streaks.clear()
            return []
        for moment in facts.updates():
            self.triggered += 1
            owner = str(moment.call.owner)
            idle = set(self._without_gradient(moment, self._call))
            if owner in self._streaks:
                idle &= self._idle[owner]
            if not idle:
                self._streaks.pop(owner, None)
                continue
            self._idle[owner] = idle
            streak = extend(self._streaks, owner, facts.event.step)
            if streak.count == self.steps:
                self.is_over = True
                call = self._call
                function, shape = call.api.rpartition(".")[2], list(_shape(call))
                given = f"{function} over dim {call.args.get('dim')} of {shape}"
                return self.proven(
                    facts,
                    step=streak.first,
                    subject=Subject(api=call.api, module=call.module),
                    symptom=Symptom.LOSS_INPUT,
                    message=f"{given} is 1 everywhere; the gradient of "
                    f"{joined(self.ledger.names(idle))} is always zero",
                    expected="a softmax over several elements",
                    observed=f"{given} is 1 everywhere",
                    evidence=(call,),
                )
        return []

    def _without_gradient(self, moment: Moment, call: CallEvent) -> Iterable[int]:
        idle = moment.present - moment.applied
        if len(_shape(call)) == _MATRIX and moment.applied:
            return  # one key, one expert or one position is intended
        for identity in idle:
            parameter = self.ledger.parameters.get(identity)
            if parameter is not None and 1 in parameter.shape:
                yield identity


def _shape(call: CallEvent) -> tuple[int, ...]:
    given = tensor_summary(call.args.get("input"))
    return () if given is None else given.shape


def _is_over_one(call: CallEvent) -> bool:
    """Whether all results are 1 although a sample has more than one element."""
    given, dim = tensor_summary(call.args.get("input")), call.args.get("dim")
    if given is None or not given.requires_grad or not isinstance(dim, int):
        return False
    size = len(given.shape)
    if not -size <= dim < size or given.shape[dim] != 1 or size < _MATRIX:
        return False
    return size == _MATRIX or any(length > 1 for length in given.shape[1:])


_REGRESSIONS = tuple(sorted(losses("value")))
_LIMITS = {"sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0), "relu": (0.0, None), "softplus": (0.0, None)}
_SHORT_LOGITS = {
    "relu": "and logits must not be cut off at 0",
    "sigmoid": "and logits between 0 and 1 hardly separate classes",
    "tanh": "and logits between -1 and 1 hardly separate classes",
}
_PROOF = 3  # losses
_FAR = 0.25  # beyond the limits, as a fraction of the range: more than a few outliers
_BELOW = 0.1  # the same below an output without an upper limit, by the range of the targets
_MOST = 256  # activations of one step

Extremes = tuple[float, float]


class TargetOutsideActivationRange(EventRule, code="TC336", aliases=("output-out-of-reach",)):
    """target-outside-activation-range: the last activation cannot reach the targets of the loss.

    What it checks:
        The targets of a regression are within the range of the activation whose result is the input
        of the loss. The input of cross_entropy is not the result of a ReLU, sigmoid or tanh.

    Why it matters:
        A sigmoid never exceeds 1, and a ReLU is never below 0. For targets beyond, the output
        saturates at its limit, where it has no gradient. The loss falls only by the part that can
        be reached. Logits from a ReLU cannot be negative: a class with a score of zero no longer
        learns. With logits from a sigmoid, the loss of ten classes never falls below 1.46.

    Fires on:
        - Three losses of training (mse_loss, l1_loss, smooth_l1_loss, huber_loss) whose input has
          exactly the extremes of the result of a sigmoid, tanh, relu or softplus in the same step.
          The targets exceed the range of the activation by a quarter of it. Example: images
          normalized by mean and deviation, or to -1 and 1, after a sigmoid.
        - Three losses of cross_entropy whose input has the extremes of a ReLU, a sigmoid or a tanh.

    Stays quiet on:
        - Targets slightly beyond the range: outliers, noise.
        - Outputs that are scaled or shifted afterwards, e.g. logits that a tanh bounds.
        - Steps in which the statistics of activations were not recorded.
        - Losses without gradients.

    Fix:
        Remove the last activation, or use one that fits: tanh for -1 to 1, sigmoid for 0 to 1. Or
        scale the targets to its range.

    Source:
        https://github.com/AntixK/PyTorch-VAE/issues/48
    """

    title = "The last activation cannot reach the targets of {subject}"
    likely_cause = "{observed}: the activation does not fit the targets, or is not needed."
    fix = "Remove the last activation, use one that fits, or rescale the targets."
    needs = ACTIVATIONS | loss_needs(CROSS_ENTROPY, *_REGRESSIONS)
    _results: dict[Extremes, str] = fresh(dict)  # kind of activation by extremes
    _first: dict[tuple[str, str], CallEvent] = fresh(dict)
    _counts: Counter[tuple[str, str]] = fresh(Counter)  # by loss and kind of activation

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StepEvent):
            self._results.clear()
        elif isinstance(event, CallEvent) and event.grad_enabled:
            call = as_loss(event, (CROSS_ENTROPY, *_REGRESSIONS))
            if call is not None:
                output, result = given(call, "input"), tensor_summary(call.result)
                extremes = _extremes(output)
                kind = self._results.get(extremes) if extremes is not None else None
                if kind is None or (result is not None and not result.requires_grad):
                    return []
                self.triggered += 1
                observed = _beyond(call, kind)
                if observed is None:
                    return []
                place = call.api, kind
                first = self._first.setdefault(place, call)
                self._counts[place] += 1
                if self._counts[place] != _PROOF:
                    return []
                return [
                    loss_violation(
                        self.code,
                        first,
                        f"{call.api.rpartition('.')[2]} is given the result of {kind}, {observed}",
                        expected="an output that can reach all targets",
                        observed=f"the output comes from {kind}, {observed}",
                    )
                ]
            kind = kind_of(event.api)
            if kind in _LIMITS and len(self._results) < _MOST:
                extremes = _extremes(tensor_summary(event.result))
                if extremes is not None:
                    self._results[extremes] = kind
        return []


def _extremes(tensor: TensorSummary | None) -> Extremes | None:
    """The extremes of a tensor that requires grad and has more than one element."""
    low, high = number(tensor, "min"), number(tensor, "max")
    if tensor is None or low is None or high is None or low == high or not tensor.requires_grad:
        return None
    return low, high


def _beyond(call: CallEvent, kind: str) -> str | None:
    """A text that shows how the targets exceed the range of an activation."""
    if call.api == CROSS_ENTROPY:
        return _SHORT_LOGITS.get(kind)
    target = given(call, "target")
    low, high = number(target, "min"), number(target, "max")
    if low is None or high is None:
        return None
    bottom, top = _LIMITS[kind]
    if top is None:
        is_beyond = low < bottom - _BELOW * (high - low)
    else:
        slack = _FAR * (top - bottom)
        is_beyond = low < bottom - slack or high > top + slack
    return f"and targets range from {low:.3g} to {high:.3g}" if is_beyond else None
