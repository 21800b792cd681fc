"""Ranks average gradients of models that never were equal. Compares content only."""

from __future__ import annotations

from traincheck.facts.distributed.rank_steps import REPLICAS
from traincheck.facts.distributed.ranks import RunStep
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.base.step_rule import RankRule
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_PROOF = 2  # some programs broadcast weights after their first step


class RanksInitializedDifferently(
    RankRule, code="TC414", severity="error", aliases=("ranks-start-apart",)
):
    """ranks-initialized-differently: ranks exchange gradients of different weights.

    What it checks:
        If every rank reduces the gradient of a parameter by hand between backward and the update,
        the parameter has the same bits on all ranks. Either it was equal when first recorded, or it
        is equal after one of the first two such steps.

    Why it matters:
        Each rank adds the average of all gradients to different weights. The gradients belong to
        other models than the one they change. The loss falls slowly, and the ranks stay as far
        apart as they began.

    Fires on:
        - A model that every rank initializes separately, without a broadcast before training.

    Stays quiet on:
        - DistributedDataParallel, which broadcasts when it is built.
        - Weights that are broadcast before the second step.
        - Weights that are averaged after the update.
        - Collectives of some ranks only (tensor parallelism).
        - Weights whose gradients are not reduced.

    Fix:
        Broadcast parameters and buffers from rank 0 before the first step, or seed all ranks alike
        before building the model.

    Source:
        https://horovod.readthedocs.io/en/stable/pytorch.html,
        https://docs.pytorch.org/docs/stable/notes/ddp.html
    """

    title = "Ranks average gradients of {variables}, which never had equal values"
    likely_cause = (
        "Every rank started with its own values of {variables}. They were not made equal "
        "before step {step}."
    )
    fix = (
        "Call torch.distributed.broadcast(parameter.data, src=0) for all parameters and "
        "buffers before the first step, or use DistributedDataParallel, which does this."
    )
    needs = REPLICAS | Needs(calls=frozenset({Families.BACKWARD}))
    scope = "run"

    def __init__(self) -> None:
        super().__init__()
        self._settled: set[str] = set()  # reported, or equal once
        self._apart: dict[str, Streak] = {}  # steps after which they differed

    def judge(self, step: RunStep) -> list[Violation]:
        if not step.is_complete or any(r.is_sharded or r.is_local for r in step.ranks.values()):
            return []
        reduced = step.reduced_gradients()
        self.triggered += bool(reduced)
        self._settled |= step.agree
        found = []
        for name in sorted(reduced & step.different.keys() - self._settled):
            if step.began_equal(name) is not False:
                continue
            streak = extend(self._apart, name, step.step)
            if streak.count >= _PROOF:
                self._settled.add(name)
                found.append(self._violation(name, streak.first, step))
        return found

    def _violation(self, name: str, first: int | None, step: RunStep) -> Violation:
        rank = max(step.pages)
        looks = [facts.begun[name] for facts in step.ranks.values()]
        return Violation(
            check_id=self.code,
            step=first,
            rank=rank,
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.RANKS_DIFFER,
            message=f"all ranks reduce the gradient of {name}, but its initial values differ",
            expected="the same content on every rank before the first step",
            observed=f"rank {rank} and rank {step.first_rank} started with different values",
            evidence=(
                looks[0],
                looks[-1],
                next(c for c in step.pages[rank].collectives if c.variable == name),
            ),
        )
