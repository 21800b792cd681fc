"""Each rank of a sharded model clips by a different norm. Compares the results of clipping."""

from __future__ import annotations

from traincheck.readings.distributed.rank_steps import FSDP_FORWARD
from traincheck.readings.distributed.ranks import RunStep
from traincheck.rules.base.step_rule import RankRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import tensor_summary


class ClipNormsDiffer(RankRule, code="TC412", severity="error"):
    """clip-norms-differ: ranks of a sharded model clip gradients by different norms.

    What it checks:
        In a step that trains a model in FullyShardedDataParallel, torch.nn.utils.clip_grad_norm_
        returns the same norm on every rank.

    Why it matters:
        The function sees only the shard of its rank. Each rank scales its gradients by another
        factor, so the direction of the update is wrong.

    Fires on:
        - torch.nn.utils.clip_grad_norm_(model.parameters(), ...) with FSDP.

    Stays quiet on:
        - model.clip_grad_norm_() of FSDP, which reduces the norm first.
        - DTensor parameters of fully_shard.
        - Models that are not sharded.

    Fix:
        Call model.clip_grad_norm_(max_norm) of the FullyShardedDataParallel object.

    Source:
        https://github.com/pytorch/pytorch/issues/72548,
        https://github.com/areal-project/AReaL/issues/312
    """

    title = "Ranks of a sharded model clip gradients by different norms"
    likely_cause = (
        "torch.nn.utils.clip_grad_norm_{where} sees only the shard of each rank: {observed}."
    )
    fix = "Use the clip_grad_norm_ method of the FullyShardedDataParallel model instead."
    needs = Needs(
        calls=frozenset({Families.CLIP_NORM, FSDP_FORWARD}),
        kinds=frozenset({"mark", "step"}),
    )
    scope = "run"

    def __init__(self) -> None:
        super().__init__()
        self._is_reported = False

    def judge(self, step: RunStep) -> list[Violation]:
        sharded = all(rank.is_sharded for rank in step.ranks.values())
        if self._is_reported or not sharded or not step.is_complete:
            return []
        calls = {n: page.family(Families.CLIP_NORM) for n, page in step.pages.items()}
        first = step.first_rank
        if not all(len(found) == len(calls[first]) for found in calls.values()):
            return []
        for index, call in enumerate(calls[first]):
            for rank in calls:
                mine, theirs = _norm(call), _norm(calls[rank][index])
                if mine is None or theirs is None:
                    return []
                self.triggered += rank == first
                if mine != theirs:
                    self._is_reported = True
                    return [self._violation(step, call, calls[rank][index], rank)]
        return []

    def _violation(self, step: RunStep, call: CallEvent, other: CallEvent, rank: int) -> Violation:
        observed = f"rank {step.first_rank}: {_norm(call):.6g}, rank {rank}: {_norm(other):.6g}"
        return Violation(
            check_id=self.code,
            step=step.step,
            rank=rank,
            stage="train",
            subject=Subject(api=Families.CLIP_NORM),
            symptom=Symptom.RANKS_DIFFER,
            message=f"ranks of one model clip by different norms: {observed}",
            expected="the norm of all gradients, which is the same on every rank",
            observed=observed,
            evidence=(call, other),
        )


def _norm(call: CallEvent) -> float | None:
    summary = tensor_summary(call.result)
    value = call.result if summary is None else summary.value
    return float(value) if isinstance(value, (int, float)) else None
