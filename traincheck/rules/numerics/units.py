"""Units and filters that pass nothing on: dead, or saturated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod

from traincheck.readings import recorded
from traincheck.readings.small_samples import FEWEST_UNITS, may_be_chance
from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.activations import ACTIVATIONS, ActivationRule, Look, Place, Streak
from traincheck.rules.shared.numbers import MATRIX, is_kernel
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_SAMPLES = 32  # with fewer, a record is no evidence
_SAMPLES_OF_ALL = 128  # over all records
_RARE = 0.1  # share of active outputs of the other units: below it, these may be just as rare
_LEAKING = 0.95  # share of units, if the other side has a slope
_LEAKING_KINDS = frozenset({"leakyrelu", "prelu", "rrelu"})
_HARD = frozenset({"relu", "relu6", "threshold"})


class DeadUnits(ActivationRule, code="TC705"):
    """dead-units: most units of an activation are zero for every sample.

    What it checks:
        Most units of each ReLU or similar activation (module or function) are active for some
        sample of the batch. Steps are scanned: the first four, then every tenth.

    Why it matters:
        A unit that is zero for all samples has no gradient and cannot recover. A layer of such
        units blocks the signal, and the model learns only with the remaining units.

    Fires on:
        - 70 % of the units zero over whole batches at three consecutive scanned steps, while the
          others are often active.
        - All units zero at three consecutive scanned steps.
        - With a slope on the other side (LeakyReLU, PReLU, RReLU) or a smooth function (GELU, SiLU,
          ELU ...): 95 % of the units.

    Stays quiet on:
        - Sparse activations: many units that are rarely active are not dead.
        - So few units that chance may turn as many off, e.g. 3 of 4 in the bottleneck of a
          squeeze-and-excitation block.
        - Batches of fewer than 32 samples (positions of images count).
        - Scores of rows against the same rows, in attention over the nodes of a graph: a softmax of
          LeakyReLU depends on their differences.
        - Evaluation.

    Fix:
        Lower the learning rate, and use the default initialization and biases that are not
        negative. LeakyReLU or GELU lets units recover.

    Options:
        share: share of dead units, in [0, 1].
        looks: consecutive scanned steps.

    Source:
        https://arxiv.org/abs/1903.06733,
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Most units of {subject} are dead"
    likely_cause = (
        "{observed}. Possible causes are a step with too high a learning rate, an "
        "initialization with large weights or negative biases, and inputs that are not "
        "normalized."
    )
    fix = (
        "Lower the learning rate, use the default initialization, and normalize the inputs. "
        "LeakyReLU or GELU lets units recover."
    )
    needs: Needs = ACTIVATIONS

    def __init__(self, share: float = 0.7, looks: int = 3) -> None:
        super().__init__()
        self.share = share
        self.looks = looks
        self._streaks: dict[Place, Streak] = {}

    def judge(self, look: Look) -> Sequence[Violation]:
        dead = recorded.dead(look.summary)
        if dead is None or look.samples < _SAMPLES:
            return ()
        if look.kind in _LEAKING_KINDS and look.units == look.samples:
            return ()
        if may_be_chance(dead, look.units) or not self._is_bad(look, dead):
            self._streaks.pop(look.place, None)
            return ()
        streak = self._streaks.setdefault(look.place, Streak())
        streak.add(look)
        if streak.is_reported or streak.steps < self.looks or streak.samples < _SAMPLES_OF_ALL:
            return ()
        streak.is_reported = True
        off = "zero" if look.kind in _HARD else "off"
        seen = f"{dead:.0%} of the units are {off} for all {look.samples} samples of a batch"
        return [
            self.violation(
                look.event,
                step=streak.first,
                stage="train",
                subject=look.place.subject,
                symptom=Symptom.DEAD_UNITS,
                message=f"most units of {look.place.label} are {off} for every sample",
                expected="most units are active for some sample of a batch",
                observed=f"{look.place.label}: {seen}, at {streak.steps} steps",
            )
        ]

    def _is_bad(self, look: Look, dead: float) -> bool:
        if look.kind not in _HARD:
            return dead >= _LEAKING
        if dead == 1.0:
            return True
        zeros = recorded.zeros(look.summary)
        on = 0.0 if zeros is None else (1 - zeros) / (1 - dead)
        return dead >= self.share and on >= _RARE


_ELEMENTS = 256  # with fewer, a record is no evidence
_KINDS = frozenset({"tanh", "sigmoid"})


class SaturatedActivation(ActivationRule, code="TC706"):
    """saturated-activation: nearly all outputs of a hidden tanh or sigmoid are at a limit.

    What it checks:
        At the scanned steps (the first four, then every tenth), the outputs of a hidden tanh or
        sigmoid are between its limits.

    Why it matters:
        At its limits a tanh or sigmoid is flat. Hardly any gradient passes, and the layers before
        it do not learn.

    Fires on:
        - 95 % of the outputs within 0.5 % of a limit, at three consecutive scanned steps from the
          start of the run.

    Stays quiet on:
        - The output of a model (probabilities become certain, pixels black and white).
        - Gates that close as training continues.
        - Functions that are made to clip (hardtanh).
        - Fewer than 256 outputs, or 10 units.
        - Evaluation.

    Fix:
        Normalize the inputs. Use an initialization that preserves the scale
        (torch.nn.init.xavier_uniform_), or a ReLU.

    Options:
        share: share of outputs at a limit, in [0, 1].
        looks: consecutive scanned steps.

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "The activation {subject} is saturated"
    likely_cause = (
        "{observed}. Its inputs are far too large, e.g. as they are not normalized, or the "
        "initial weights are large."
    )
    fix = "Normalize the inputs and use an initialization that preserves the scale, or a ReLU."
    needs: Needs = ACTIVATIONS

    def __init__(self, share: float = 0.95, looks: int = 3) -> None:
        super().__init__()
        self.share = share
        self.looks = looks
        self._streaks: dict[Place, Streak] = {}

    def judge(self, look: Look) -> Sequence[Violation]:
        share = recorded.saturated(look.summary)
        if share is None or look.kind not in _KINDS or look.is_output:
            return ()
        if prod(look.summary.shape) < _ELEMENTS or look.units < FEWEST_UNITS:
            return ()
        streak = self._streaks.setdefault(look.place, Streak())
        if streak.is_reported:
            return ()
        if share < self.share:
            streak.is_reported = True  # it was good once: later saturation may be intended
            return ()
        streak.add(look)
        if streak.steps < self.looks:
            return ()
        streak.is_reported = True
        seen = f"{share:.0%} of its outputs at a limit, at {streak.steps} steps"
        return [
            self.violation(
                look.event,
                step=streak.first,
                stage="train",
                subject=look.place.subject,
                symptom=Symptom.DEAD_UNITS,
                message=f"{look.place.label} is at its limits, where its gradient vanishes",
                expected="outputs of a hidden activation are between its limits",
                observed=f"{look.place.label}: {seen}",
            )
        ]


class DeadFilters(BuiltInRule, code="TC714", severity="info"):
    """dead-filters: some filters of a layer are zero and others are not.

    What it checks:
        When a layer is first recorded, none of its filters (rows of a linear layer) has a norm
        below 1e-6.

    Why it matters:
        Such a filter computes nothing, and before a ReLU it never will. Pruning does this on
        purpose. A broken initialization or a mismatched checkpoint does it by accident.

    Fires on:
        - A weight of a linear, convolutional or transposed convolutional layer in which some rows
          or filters are zero, but not all.

    Stays quiet on:
        - Layers initialized with zeros only (LoRA, the last layer of a residual branch).
        - Embeddings, whose padding row is zero, and output layers that share their weight.
        - Layers of one filter.

    Fix:
        Initialize the filters that are named, or remove them if they were pruned.

    Options:
        share: share of zero filters above which the rule fires, in [0, 1].

    Source:
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Some filters of {variables} are zero"
    likely_cause = "{observed}: they may have been pruned, or never initialized."
    fix = "Initialize these filters, or remove them if they were pruned."
    needs = Needs(states=frozenset({"parameter@new"}), stats=frozenset({"parameter"}))

    def __init__(self, share: float = 0.0) -> None:
        super().__init__()
        self.share = share
        self._found: dict[int, Violation] = {}  # by identity of the weight
        self._embedded: set[int] = set()

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StateEvent) or event.change not in ("new", "replaced"):
            return ()
        if "Embedding" in (event.module_class or "").rpartition(".")[2]:
            self._embedded.add(event.identity)  # also of a weight that an output layer shares
        dead = recorded.dead(event)
        if dead is None or event.summary is None or not is_kernel(event.module_class):
            return ()
        if len(event.summary.shape) < MATRIX or event.summary.shape[0] <= 1:
            return ()
        self.triggered += 1
        if dead <= self.share or dead >= 1:
            return ()
        count = math.floor(dead * event.summary.shape[0] + 0.5)
        observed = f"{count} of {event.summary.shape[0]} filters of {event.name} are zero"
        self._found[event.identity] = self.violation(
            event,
            subject=Subject(variable=event.name),
            symptom=Symptom.INITIALIZATION,
            message=observed,
            expected="filters that are not zero",
            observed=observed,
        )
        return ()

    def finish(self) -> Sequence[Violation]:
        """Report now that all names of each weight are known."""
        return [v for identity, v in self._found.items() if identity not in self._embedded]
