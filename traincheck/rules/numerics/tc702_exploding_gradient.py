"""Gradients grow far beyond the history of this run. Measured before clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from traincheck.readings.optimizers import Holder
from traincheck.readings.step_facts import StepFacts
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.numerics.updaters import updaters
from traincheck.rules.shared.numbers import NORMS, History, applied_norms
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation

_ENOUGH = 4  # steps that make a history
_OVER_MOST = 10.0  # times the largest norm of the history
_WITHIN = 3  # steps, of which two must stand out: a single one may be due to its batch
_GROWTH, _GROWING = 3.0, 4  # times the previous step, for so many consecutive steps


class ExplodingGradient(StepRule, code="TC702"):
    """exploding-gradient: the norm of the gradient leaves the range of its history.

    What it checks:
        The norm of all gradients that an optimizer applies stays near the norms of the previous
        steps. It is measured right after backward(), so clipping does not hide it. A constant scale
        of the loss makes no difference.

    Why it matters:
        Updates of this size move the parameters far away, and NaN often follows. Clipping bounds
        the size, but the direction is that of the few samples that exploded.

    Fires on:
        - Two of three steps whose norm is above 100, more than 100 times the median of the previous
          steps, and more than 10 times their largest.
        - A norm that is three times that of the previous step in four consecutive steps and reaches
          more than 1000.

    Stays quiet on:
        - Single outliers.
        - Runs with large norms from the start, e.g. with a summed loss.
        - Small norms that become normal, e.g. with late rewards.
        - Unrecorded steps.
        - Gradients that are not finite (TC701).

    Fix:
        Lower the learning rate or warm it up, clip gradients, normalize inputs, and inspect the
        batch of the step that is named.

    Options:
        ratio: factor over the median of the history.
        floor: norms up to this are never too large.
        threshold: any norm above this is too large, whatever the history; 0 for none.

    Source:
        https://github.com/zylo117/Yet-Another-EfficientDet-Pytorch/issues/357,
        https://docs.aws.amazon.com/sagemaker/latest/dg/debugger-built-in-rules.html
    """

    title = "Gradients explode at step {step}"
    likely_cause = (
        "{observed}. The learning rate may be too high, the inputs may not be normalized, or "
        "a batch may contain extreme values."
    )
    fix = "Lower the learning rate or warm it up, clip gradients, and normalize the inputs."
    needs: Needs = NORMS

    def __init__(self, ratio: float = 100.0, floor: float = 100.0, threshold: float = 0.0) -> None:
        super().__init__()
        self.ratio = ratio
        self.floor = floor
        self.threshold = threshold
        self._series: dict[str, _Series] = {}

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            return []
        found: list[Violation] = []
        for holder in updaters(self.ledger, facts):
            norms = applied_norms(facts, holder)
            total = math.sqrt(sum(norm * norm for norm in norms.values()))
            if total > 0:
                self.triggered += 1
                series = self._series.setdefault(holder.label, _Series())
                series.count += 1
                step, history = facts.event.step, series.history
                usual = history.median if len(history) else total
                shown = f"norm {total:.3g}, usually {usual:.3g}"
                if self.threshold and total > self.threshold:
                    found.append(self._violation(step, holder, norms, shown, facts))
                    continue
                is_scaled = facts.event.counters.get("scaler_step", 0) > 0
                grows = total > _GROWTH * series.last > 0 and not is_scaled
                if grows and series.grown == 0:
                    series.first_growth = step
                series.grown = series.grown + 1 if grows else 0
                series.last = total
                if (
                    len(history) >= _ENOUGH
                    and total > self.floor
                    and total > self.ratio * usual
                    and total > _OVER_MOST * max(history.numbers)
                ):
                    series.flagged = [at for at in series.flagged if at[0] > series.count - _WITHIN]
                    series.flagged.append((series.count, step))
                    if len(series.flagged) > 1:
                        found.append(
                            self._violation(series.flagged[0][1], holder, norms, shown, facts)
                        )
                        continue
                    continue
                if series.grown >= _GROWING and total > 10 * self.floor:
                    found.append(self._violation(series.first_growth, holder, norms, shown, facts))
                    continue
                history.add(total)
        return found

    def _violation(
        self,
        step: int | None,
        holder: Holder,
        norms: dict[int, float],
        shown: str,
        facts: StepFacts,
    ) -> Violation:
        worst = max(norms, key=lambda identity: norms[identity])
        name = self.ledger.name(worst)
        return self.proof(
            facts,
            step=step,
            subject=Subject(variable=name),
            symptom=Symptom.GRADIENT_SIZE,
            message=(
                f"the norm of the gradients that {holder.label} applies leaves the range of its "
                f"history, above all the gradient of {name}"
            ),
            expected="a gradient norm near those of the previous steps",
            observed=shown,
        )


@dataclass(slots=True)
class _Series:
    """Norms of one optimizer.

    flagged: (number, step) of norms that stood out. grown: consecutive steps of steep growth.
    """

    history: History = field(default_factory=History)
    flagged: list[tuple[int, int | None]] = field(default_factory=list)
    last: float = 0.0
    grown: int = 0
    first_growth: int | None = None
    count: int = 0
