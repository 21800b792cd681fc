"""Values that should be equal on all ranks: norms, results of collectives, first weights."""

from __future__ import annotations

from traincheck.readings import recorded
from traincheck.readings.distributed.collectives import Meeting
from traincheck.readings.distributed.rank_steps import FSDP_FORWARD, REPLICAS
from traincheck.readings.distributed.ranks import RunStep
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import RankRule
from traincheck.rules.ranks.collectives import CollectiveRule
from traincheck.schema.claims import Needs
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


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

    def judge(self, step: RunStep) -> list[Violation]:
        sharded = all(rank.is_sharded for rank in step.ranks.values())
        if self.is_over or not sharded or not step.is_complete:
            return []
        calls = {n: page.family(Families.CLIP_NORM) for n, page in step.pages.items()}
        first = step.first_rank
        if not all(len(found) == len(calls[first]) for found in calls.values()):
            return []
        for index, call in enumerate(calls[first]):
            for rank in calls:
                mine, theirs = map(recorded.clipped_norm, (call, calls[rank][index]))
                if mine is None or theirs is None:
                    return []
                self.triggered += rank == first
                if mine != theirs:
                    self.is_over = True
                    other = calls[rank][index]
                    observed = f"rank {first}: {mine:.6g}, rank {rank}: {theirs:.6g}"
                    return [
                        Violation(
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
                    ]
        return []


class CollectiveResultDiffers(
    CollectiveRule, code="TC413", severity="error", aliases=("received-differs",)
):
    """collective-result-differs: a rank does not receive the data that was sent.

    What it checks:
        - recv returns the tensor that was passed to send.
        - After all_reduce, broadcast and all_gather_into_tensor, all ranks hold the same tensor.

    Why it matters:
        Links, drivers and peer-to-peer copies that lose data raise no error. Results are wrong now
        and then, and replicas drift apart.

    Fires on:
        - A tensor that arrives in part, as zeros, or late.

    Stays quiet on:
        - Asynchronous calls, whose results are not ready.
        - send and recv with tags.
        - Ranks that enter different collectives (TC410, TC411).
        - Tensors on a GPU.
        - Runs whose steps are sampled.

    Fix:
        Test the links, drivers and firmware. NCCL_P2P_DISABLE=1 shows whether peer-to-peer copies
        are the cause. Wait for asynchronous work before using its result.

    Source:
        https://github.com/baichuan-inc/Baichuan2/issues/86,
        https://github.com/pytorch/pytorch/issues/84803
    """

    title = "{subject} does not deliver the data that was sent"
    likely_cause = "A link between the devices of two ranks may lose data: {observed}."
    fix = "Test the links between devices; with NCCL, try NCCL_P2P_DISABLE=1."
    needs = Needs(
        states=frozenset({"collective@ranks"}), kinds=frozenset({"collective", "mark", "step"})
    )
    scope = "run"

    def judge(self, meeting: Meeting) -> list[Violation]:
        pair = meeting.pair
        contents = pair.contents if meeting.is_same else None
        if contents is None:
            return []
        self.triggered += 1
        if contents[0] == contents[1]:
            return []
        self.is_over = True
        first, other, receiver = pair.first, pair.other, pair.receiver
        others = "other ranks hold" if receiver.peer is None else f"rank {receiver.peer} sent"
        return self.found(
            receiver,
            subject=Subject(api=f"torch.distributed.{receiver.op}", variable=receiver.variable),
            symptom=Symptom.RANKS_DIFFER,
            message=f"after {receiver.op}, rank {receiver.rank} does not hold the data that "
            + others,
            expected="the same content on both ends",
            observed=f"content on rank {first.rank}: {_short(contents[0])}, rank {other.rank}: "
            f"{_short(contents[1])}",
            evidence=(first, other),
        )


def _short(digest: str) -> str:
    return digest.rpartition(":")[2][:8]


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
    _settled: set[str] = fresh(set)  # reported, or equal once
    _apart: dict[str, Streak] = fresh(dict)  # steps after which they differed

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
                rank = max(step.pages)
                looks = [facts.begun[name] for facts in step.ranks.values()]
                found.append(
                    Violation(
                        check_id=self.code,
                        step=streak.first,
                        rank=rank,
                        stage="train",
                        subject=Subject(variable=name),
                        symptom=Symptom.RANKS_DIFFER,
                        message=f"all ranks reduce the gradient of {name}, but its initial values "
                        "differ",
                        expected="the same content on every rank before the first step",
                        observed=f"rank {rank} and rank {step.first_rank} started with different "
                        "values",
                        evidence=(
                            looks[0],
                            looks[-1],
                            next(c for c in step.pages[rank].collectives if c.variable == name),
                        ),
                    )
                )
        return found
