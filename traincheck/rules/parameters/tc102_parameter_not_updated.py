"""An optimizer step leaves a parameter unchanged. Compares values, not calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeGuard

from traincheck.readings.distributed.rank_steps import STUCK
from traincheck.readings.optimizers import Holder
from traincheck.readings.step_changes import FadedGradients
from traincheck.readings.step_facts import Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.rules.shared.numbers import NORMS
from traincheck.schema.claims import Needs
from traincheck.schema.events import StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import paired_weights

# Rounding can leave one parameter unchanged occasionally, but rarely all of an optimizer twice.
_STUCK_OPTIMIZER_STEPS = 2
_SPENT = (
    0.01  # fraction of the highest rate: below it a schedule ends and float32 rounds updates away
)
_LOST = 1e-12  # norm of a gradient: Adam divides by its square root and 1e-8
_FAINT = 1.2e-7  # resolution of float32 at 1: a schedule may start below it


class ParameterNotUpdated(StepRule, code="TC102", severity="error"):
    """parameter-not-updated: a parameter does not change although it should.

    What it checks:
        An optimizer step changes each parameter that the optimizer holds, if the parameter requires
        grad, its gradient is not zero and its learning rate is above zero.

    Why it matters:
        The step is lost: a kernel writes to a copy, the update is below the resolution of the
        dtype, or the optimizer does nothing.

    Fires on:
        - A parameter that is unchanged in 3 such steps in a row.
        - All parameters of an optimizer unchanged in 2 such steps in a row.

    Stays quiet on:
        - A learning rate of zero, or near zero at one end of its schedule.
        - Steps that GradScaler skips.
        - Gradients that are zero or negligible.
        - Converged float32 parameters: they have moved before, and their gradients, or all of their
          optimizer, are now below a thousandth of the largest. The remaining updates are rounded
          away.
        - Frozen parameters.
        - A bias beside a weight that changes: in front of a normalization its gradient is rounding
          noise.
        - A float32 scale beside a bias that changes: small steps are rounded away at one.
        - Closures, which may stop when converged.
        - Steps that are not recorded.
        - Scans that cannot decide whether the parameter changed.

    Fix:
        Print the size of the update beside the size of the parameter. Keep parameters in float32 if
        the update is lost to rounding. Check that the parameter is contiguous, and what the
        optimizer's step really does.

    Source:
        https://github.com/pytorch/pytorch/issues/118115, https://elanapearl.github.io/blog/2025/the-bug-that-taught-me-pytorch/
    """

    title = "The optimizer step does not change {variables}"
    title_of_several = "The step of {optimizer} does not change {variables}"
    likely_cause = (
        "From step {step} on, optimizer.step(){where} loses the update of {variables}: it may "
        "be rounded away in a low-precision dtype, written to a copy, or not be done by this "
        "optimizer."
    )
    fix = (
        "Keep the parameters in float32, check that they are contiguous, and check what step() "
        "of {optimizer} does."
    )
    needs = NORMS | Needs(states=frozenset({"parameter@step"}), kinds=frozenset({"mark"}))
    _parameters: dict[int, Streak] = fresh(dict)
    _optimizers: dict[str, Streak] = fresh(dict)
    _rates: Mapping[str, Sequence[float]] = fresh(dict)  # at the end of the previous step
    # Learning rate of an optimizer's group so far
    _highest: dict[tuple[str, int], float] = fresh(dict)
    _moved: set[int] = fresh(set)
    _gradients = fresh(FadedGradients)  # by parameter and by optimizer

    def judge(self, facts: StepFacts) -> list[Violation]:
        found: list[Violation] = []
        if facts.is_gap:
            self._parameters.clear()
            self._optimizers.clear()
        elif facts.is_complete:
            found = self._compare(facts)
        self._rates = facts.event.lr
        return found

    def _compare(self, facts: StepFacts) -> list[Violation]:
        last: dict[str, Moment] = {}
        due: dict[str, set[int]] = {}
        for moment in facts.updates():
            owner = moment.call.owner
            if owner is None or owner not in self.ledger.holders or moment.call.has_closure:
                continue
            last[owner] = moment
            due.setdefault(owner, set()).update(moment.applied)
        found: list[Violation] = []
        for owner, identities in due.items():
            holder = self.ledger.holders[owner]
            groups = self._moving_groups(holder, facts)
            moving = {i for i in identities - facts.uncertain if holder.groups[i] in groups}
            awaited = {i for i in moving if self._is_trained(i)}
            awaited -= self._converged(awaited, holder, facts)
            if awaited:
                self.triggered += 1
                moment = last[owner]
                step = facts.event.step
                stuck = awaited - facts.changed
                stuck -= self._cancelled(stuck, facts)
                if facts.changed.isdisjoint(holder.names):
                    if facts.event.counters.get("scaler_step", 0):
                        continue
                    whole = extend(self._optimizers, holder.event.id, step)
                else:
                    whole = Streak(None)
                    self._optimizers.pop(holder.event.id, None)
                for identity in awaited - stuck:
                    self._parameters.pop(identity, None)
                proven = []
                for identity in sorted(stuck, key=self.ledger.name):
                    streak = extend(self._parameters, identity, step)
                    if streak.count >= STUCK:
                        proven.append((identity, streak, STUCK))
                    elif whole.count >= _STUCK_OPTIMIZER_STEPS:
                        proven.append((identity, whole, _STUCK_OPTIMIZER_STEPS))
                shares = self._shares(stuck, awaited) if proven else ""
                found += [self._violation(*proof, shares, moment, facts.event) for proof in proven]
        return found

    def _is_trained(self, identity: int) -> bool:
        parameter = self.ledger.parameters.get(identity)
        return parameter is not None and parameter.requires_grad and not parameter.is_empty

    def _converged(self, awaited: set[int], holder: Holder, facts: StepFacts) -> set[int]:
        """Parameters that no longer move: their gradients have faded, or never arrived."""
        self._moved |= awaited & facts.changed
        norms = {i: norm for i in awaited if (norm := facts.norms.get(i))}
        for identity, norm in norms.items():
            self._gradients.enter(identity, norm)
        if norms:
            self._gradients.enter(holder.event.id, max(norms.values()))
        still = {
            i
            for i in (awaited & self._moved) - facts.changed
            for key in (i, holder.event.id)
            if self._gradients.is_faded(key, self.ledger.parameters[i].dtype)
        }
        still |= {i for i, norm in norms.items() if norm < _LOST} - facts.changed
        for identity in still:
            self._parameters.pop(identity, None)
        return still

    def _moving_groups(self, holder: Holder, facts: StepFacts) -> set[int]:
        """Groups whose learning rate is above zero at both ends of the step.

        The rate may have been raised after the update, or have been zero at the update.
        """
        now = facts.event.lr.get(holder.event.id, ())
        before = self._rates.get(holder.event.id, ())
        moving = set()
        for index, group in enumerate(holder.event.groups):
            first = before[index] if index < len(before) else group.hyper.get("lr")
            last = now[index] if index < len(now) else None
            if _is_positive(first) and _is_positive(last):
                key = holder.event.id, index
                highest = self._highest[key] = max(self._highest.get(key, 0.0), first, last)
                lowest = min(first, last)
                if lowest > highest * _SPENT and (lowest > _FAINT or first == last):
                    moving.add(index)
        return moving

    def _shares(self, stuck: set[int], awaited: set[int]) -> str:
        """How many of the parameters that should change do not, by dtype and layout."""
        counts: dict[str, list[int]] = {}
        for identity in awaited:
            parameter = self.ledger.parameters[identity]
            is_strided = not self.ledger.strided.isdisjoint(parameter.names)
            kind = f"{parameter.dtype}{' not contiguous' if is_strided else ''}".strip()
            count = counts.setdefault(kind, [0, 0])
            count[0] += identity in stuck
            count[1] += 1
        counted = [f"{some} of {whole} {kind}" for kind, (some, whole) in sorted(counts.items())]
        return f"{', '.join(counted)} parameters unchanged"

    def _cancelled(self, stuck: set[int], facts: StepFacts) -> set[int]:
        """Biases and normalization scales that may legitimately stay unchanged.

        A bias beside a weight that changes: a normalization that follows subtracts it again.
        A scale of a normalization whose bias changes: it starts at one, so a small step is lost.
        In half precision such a scale never changes, which the rule must still report.
        """
        books = self.ledger.parameters
        moved = {name for i in facts.changed if i in books for name in books[i].names}
        return {
            identity
            for identity in stuck
            for module, _, kind in (name.rpartition(".") for name in books[identity].names)
            if not moved.isdisjoint(paired_weights(f"{module}.{kind}"))
            or (kind == "weight" and f"{module}.bias" in moved and books[identity].is_fine_scale)
        }

    def _violation(
        self,
        identity: int,
        streak: Streak,
        confirmed: int,
        shares: str,
        moment: Moment,
        event: StepEvent,
    ) -> Violation:
        name, owner = self.ledger.name(identity), str(moment.call.owner)
        label = self.ledger.holders[owner].label
        return self.violation(
            event,
            step=streak.at(confirmed, event.step),
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.NOT_UPDATED,
            message=f"the step of {label} does not change {name}, although gradient and learning "
            "rate are nonzero",
            expected=f"{name} differs after the step",
            observed=f"unchanged in {streak.count} steps in a row; of {label}: {shares}",
            evidence=(moment.call, event),
            optimizer=self.ledger.one_of_several(owner),
        )


def _is_positive(rate: object) -> TypeGuard[float]:
    """Whether the rate is a number above zero. A rate in a device tensor is not a number."""
    return isinstance(rate, (int, float)) and rate > 0
