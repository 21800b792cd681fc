"""Schedulers that are stepped too early, or never."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, Moment, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.words import counted

_CONFIRMED = 2


class SchedulerBeforeOptimizer(StepRule, code="TC209"):
    """scheduler-before-optimizer: scheduler.step() comes before optimizer.step().

    What it checks:
        The first steps of an optimizer come before those of its scheduler.

    Why it matters:
        The first value of the schedule is never used, and every later value comes one step too
        soon. A warm-up that starts at a small rate is shortened.

    Fires on:
        - The first two iterations with backward(), scheduler.step(), optimizer.step() in this
          order.

    Stays quiet on:
        - The usual order.
        - A scheduler that steps for every batch of an accumulation window, or once per epoch.
        - Steps that GradScaler skips.
        - Schedulers that are moved forward before training.

    Fix:
        Call scheduler.step() after optimizer.step().

    Source:
        https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "The scheduler steps before its optimizer"
    title_of_several = "The scheduler of {optimizer} steps before it"
    likely_cause = "scheduler.step(){where} is called between backward() and optimizer.step()."
    fix = "Call scheduler.step() after optimizer.step()."
    fix_of_several = "Call step() of the scheduler after step() of {optimizer}."
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(calls=frozenset({Families.SCALER_STEP, Families.SCHEDULER_STEP}))
    )
    _windows: dict[str, _Window] = fresh(dict)
    _early: dict[str, Streak] = fresh(dict)  # steps in a row, first step
    _settled: set[str] = fresh(set)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._settled |= self.ledger.holders.keys()  # the first steps are over
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            for key, holder in self.ledger.holders.items():
                if key in self._settled:
                    continue
                window = self._windows.setdefault(key, _Window())
                if not moment.cleared.isdisjoint(holder.ids):
                    self._windows[key] = window = _Window()
                if moment.family == Families.BACKWARD and moment.reached & holder.ids:
                    window.backwards += 1
            owner = str(moment.call.owner)
            self.triggered += moment.family == Families.SCHEDULER_STEP
            if owner in self._windows and owner not in self._settled:
                found += self._follow(owner, moment, facts)
        return found

    def _follow(self, owner: str, moment: Moment, facts: StepFacts) -> list[Violation]:
        window = self._windows[owner]
        if moment.family == Families.SCHEDULER_STEP:
            if window.backwards == 1:
                window.early = moment.call
            elif not window.backwards:
                self._settled.add(owner)  # the usual order, or another deliberate one
            return []
        if moment.family not in (Families.OPTIMIZER_STEP, Families.SCALER_STEP):
            return []
        self._windows[owner] = _Window()
        if window.early is None or window.backwards != 1:
            if window.backwards:
                self._settled.add(owner)
            return []
        streak = extend(self._early, owner, facts.event.step)
        if streak.count < _CONFIRMED:
            return []
        self._settled.add(owner)
        label = self.ledger.holders[owner].label
        name = window.early.api.split(".")[-2]
        return self.proven(
            facts,
            step=streak.first,
            subject=Subject(api=Families.SCHEDULER_STEP),
            symptom=Symptom.WRONG_ORDER,
            message=f"{name}.step() comes before the step of {label}, from the first one on",
            expected=f"{name}.step() after the step of {label}",
            observed=f"backward(), {name}.step(), step of {label}",
            evidence=(window.early, moment.call),
            optimizer=self.ledger.one_of_several(owner),
        )


@dataclass(slots=True)
class _Window:
    """State since the last step of an optimizer, taken or skipped."""

    backwards: int = 0
    early: CallEvent | None = None


# Built beside another scheduler and stepped only in the last epochs
_BY_DESIGN = "torch.optim.swa_utils."
_SURE = 10  # times as many epochs: reported while the run goes on
_AS_MANY = (
    2  # at most this many times fewer batches than another loader: not a probe or an evaluation
)


class SchedulerNeverStepped(StepRule, code="TC211"):
    """scheduler-never-stepped: a scheduler is made but scheduler.step() is never called.

    What it checks:
        A scheduler that was built for an optimizer is stepped before several epochs are over.

    Why it matters:
        The learning rate keeps its first value, which is often tiny for a warm-up.

    Fires on:
        - Three whole passes over a DataLoader, over each of those with about as many batches, by an
          optimizer that steps and whose schedulers were never stepped. It is reported at the end of
          the run, as the first epochs may intentionally use one rate, or after ten times as many
          passes.

    Stays quiet on:
        - Schedulers stepped per batch, per epoch or at the end of three epochs.
        - Schedulers whose rates are set in another way, e.g. by ignite.
        - Iterators that are left before their end, e.g. by next(iter(loader)).
        - Parts of a composed scheduler.
        - Training without a scheduler or without a DataLoader.
        - Steps that are not recorded.

    Fix:
        Call scheduler.step() after each step or epoch, whichever its schedule counts.

    Options:
        - epochs: number of whole epochs without a step.

    Source:
        https://pytorch.org/docs/stable/optim.html#how-to-adjust-learning-rate
    """

    title = "A scheduler is built but never stepped"
    title_of_several = "The scheduler of {optimizer} is never stepped"
    likely_cause = "scheduler.step() is missing from the loop: {observed}{where}."
    fix = "Call scheduler.step() after each epoch or step, whichever the schedule counts."
    fix_of_several = (
        "Call step() of the scheduler of {optimizer} after each epoch or step, whichever its "
        "schedule counts."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | Needs(
            calls=frozenset({Families.SCHEDULER_STEP, Families.SCHEDULER_CREATED}),
            kinds=frozenset({"batch"}),
        )
    )
    epochs: int = 3
    _made: dict[str, CallEvent] = fresh(dict)
    _before: dict[str, tuple[Counter[str], Counter[str]]] = fresh(dict)  # passes, batches
    _first_step: dict[str, int | None] = fresh(dict)
    _waiting: dict[str, tuple[int, Violation]] = fresh(dict)  # by optimizer: epochs, violation
    _rates: dict[str, object] = fresh(dict)  # by optimizer, while its scheduler step is awaited

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._made.clear()
            self._waiting.clear()
            return []
        found: list[Violation] = []
        for moment in facts.moments:
            owner = str(moment.call.owner)
            if moment.family == Families.SCHEDULER_CREATED and _BY_DESIGN not in moment.call.api:
                self._made[owner] = moment.call
                self._before.pop(owner, None)  # another phase of training may start late
                self._first_step.pop(owner, None)
                self._rates.pop(owner, None)
            elif moment.family == Families.SCHEDULER_STEP:
                self._stop_waiting(owner)
            elif moment.family == Families.OPTIMIZER_STEP and owner in self._made:
                rate = facts.event.lr.get(owner)
                if self._rates.setdefault(owner, rate) != rate:
                    self._stop_waiting(owner)  # the rate is set in another way
                if owner not in self.ledger.holders or owner not in self._made:
                    continue
                epochs = self._epochs_of(owner)
                if epochs:
                    self._first_step.setdefault(owner, facts.event.step)
                if epochs < self.epochs:
                    continue
                if self._waiting.get(owner, (0,))[0] != epochs:
                    made = self._made[owner]
                    name = made.api.split(".")[-2]
                    label = self.ledger.holders[owner].label
                    passes = counted(epochs, "epoch")
                    self._waiting[owner] = (
                        epochs,
                        self.proof(
                            facts,
                            step=self._first_step.get(owner),
                            subject=Subject(api=Families.SCHEDULER_STEP),
                            symptom=Symptom.SCHEDULE,
                            message=f"{name}, built for {label}, is never stepped in {passes}",
                            expected=f"{name}.step() once per step or once per epoch",
                            observed=f"no step of {name} in {passes}",
                            evidence=(made, moment.call),
                            optimizer=self.ledger.one_of_several(owner),
                        ),
                    )
                if epochs < _SURE * self.epochs:
                    continue
                self.triggered += 1
                del self._made[owner]
                found.append(self._waiting.pop(owner)[1])
        return found

    def _stop_waiting(self, owner: str) -> None:
        self.triggered += self._made.pop(owner, None) is not None
        self._waiting.pop(owner, None)

    def finish(self) -> list[Violation]:
        return [violation for _, violation in self._waiting.values()]

    def _epochs_of(self, owner: str) -> int:
        """Whole passes over each loader that feeds training since the optimizer's first step.

        One of several loaders may be short and restart many times within an epoch of another.
        """
        passes = self.ledger.passes
        now = (passes.ended, passes.batches)
        before = self._before.setdefault(owner, (now[0].copy(), now[1].copy()))
        batches = now[1] - before[1]
        most = max(batches.values(), default=0)
        feeding = [loader for loader, count in batches.items() if count * _AS_MANY >= most]
        return min((now[0][one] - before[0][one] for one in feeding), default=0)
