"""One rank steps more or less often than the others. Counts calls, does not compare content."""

from __future__ import annotations

from collections import Counter

from traincheck.readings.distributed.rank_steps import REPLICAS, SYNC
from traincheck.readings.distributed.ranks import RunStep
from traincheck.rules.base.step_rule import RankRule
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import counted


class RanksStepUnequally(RankRule, code="TC402", severity="error"):
    """ranks-step-unequally: ranks of one model do not step equally often.

    What it checks:
        In every step of a model in DistributedDataParallel, all ranks make the same number of
        optimizer steps and of forwards with gradient exchange.

    Why it matters:
        The exchange pairs the calls of ranks in order. A rank that skips a step goes on with older
        parameters and contributes gradients of another batch.

    Fires on:
        - A rank that skips an optimizer step or a batch alone, e.g. because its loss is not finite
          or its batch is empty.

    Stays quiet on:
        - Steps that GradScaler skips on all ranks.
        - Accumulation of unequal numbers of micro-batches under no_sync().
        - A rank that ends earlier.
        - Ranks that train separate models.

    Fix:
        Make the decision on all ranks together: reduce the condition with all_reduce before using
        it.

    Source:
        https://github.com/NVIDIA-NeMo/Automodel/pull/2468
    """

    title = "Ranks do not step equally often"
    likely_cause = (
        "A condition that depends on the rank or its data may make one rank skip "
        "optimizer.step() or a batch: {observed}."
    )
    fix = (
        "Make all ranks decide alike: all_reduce the condition and skip the step on all of "
        "them or on none."
    )
    needs = REPLICAS
    scope = "run"
    _is_lost = False

    def judge(self, step: RunStep) -> list[Violation]:
        wrapped = all(rank.wraps and not rank.is_local for rank in step.ranks.values())
        if self._is_lost or not wrapped or not step.is_complete:
            return []
        self.triggered += 1
        updates = {
            rank: Counter(call.owner or "" for call in page.updates())
            for rank, page in step.pages.items()
        }
        first = step.first_rank
        for rank, counts in updates.items():
            if counts != updates[first]:
                self._is_lost = True
                owner = next(iter(sorted((counts - updates[first]) | (updates[first] - counts))))
                label = next(
                    (c.api for p in step.pages.values() for c in p.updates() if c.owner == owner),
                    "torch.optim.Optimizer.step",
                )
                what = ("step", f" of {owner}") if owner else ("optimizer step", "")
                made = {number: found[owner] for number, found in updates.items()}
                return [self._violation(step, label, what, rank, made)]
        forwards = {
            rank: sum(call.args.get(SYNC) is True for call in page.forwards())
            for rank, page in step.pages.items()
        }
        for rank, count in forwards.items():
            if count != forwards[first]:
                self._is_lost = True
                api = next(c.api for p in step.pages.values() for c in p.updates() or p.calls)
                what = ("forward", " with an exchange of gradients")
                return [self._violation(step, api, what, rank, forwards)]
        return []

    def _violation(
        self, step: RunStep, api: str, what: tuple[str, str], rank: int, counts: dict[int, int]
    ) -> Violation:
        first = step.first_rank
        calls: list[CallEvent] = [c for p in step.pages.values() for c in p.updates()[:1]]
        observed = ", ".join(
            f"rank {r} makes {counted(counts[r], what[0])}{what[1]}" for r in (first, rank)
        )
        return Violation(
            check_id=self.code,
            step=step.step,
            rank=rank,
            stage="train",
            subject=Subject(api=api),
            symptom=Symptom.OUT_OF_STEP,
            message=f"ranks do not call {api} equally often: {observed}",
            expected="the same number of optimizer steps and backward passes on every rank",
            observed=observed,
            evidence=tuple(calls),
        )
