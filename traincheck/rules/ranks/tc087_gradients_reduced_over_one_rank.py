"""Gradients are reduced over groups of one rank, and the ranks drift apart."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from traincheck.readings.distributed.replicas import Distance, joint
from traincheck.rules.ranks.drift import PROOF, ReplicaRule, differs
from traincheck.schema.findings import Subject, Symptom, Violation

_NEAR = 0.5  # of the norm: models of separate initialization are 1.4 apart


class GradientsReducedOverOneRank(ReplicaRule, code="TC087", severity="error"):
    """gradients-reduced-over-one-rank: a wrapper averages the gradients of a single rank.

    What it checks:
        If the program runs on several ranks, DistributedDataParallel or FSDP reduces gradients over
        more than one of them.

    Why it matters:
        The ranks look like one training run, but each trains a model on its share of the data. The
        checkpoint holds that of one rank.

    Fires on:
        Models that begin equal on all ranks, are wrapped with a group of one rank, and differ after
        two comparisons. Examples:

        - FSDP with HYBRID_SHARD on nodes of one GPU. It switches to NO_SHARD, which does not reduce
          gradients between nodes.
        - DistributedDataParallel with process_group=dist.new_group([rank]).
        - fully_shard with a mesh of one rank.

    Stays quiet on:
        - Models whose ranks stay equal, for example by an all-reduce of the program.
        - Ranks that hold different models, such as pipeline stages, experts, or ensembles.
        - Models of which a part is reduced over several ranks.
        - Local SGD.

    Fix:
        Use the default process group, or sharding_strategy=NO_SHARD over all ranks where a node has
        one GPU.

    Source:
        https://github.com/pytorch/pytorch/issues/154888,
        https://github.com/verl-project/verl/issues/7493
    """

    title = "The gradients of {variables} are reduced over a single rank"
    likely_cause = (
        "{variables} {is|are} wrapped with a process group or mesh of one rank, so backward() "
        "exchanges nothing and each rank trains a separate model. FSDP also switches from "
        "HYBRID_SHARD to NO_SHARD if its sharding group has one rank, and then skips the reduction "
        "over the replicas."
    )
    fix = (
        "Wrap the model with a group of all ranks that train it: DistributedDataParallel(model), "
        "FSDP(model, sharding_strategy=ShardingStrategy.FULL_SHARD), or fully_shard with the whole "
        "mesh."
    )

    def __init__(self) -> None:
        super().__init__()
        self._first: int | None = None
        self._times = 0
        self._is_reported = False

    def judge(self, distances: Sequence[Distance]) -> Sequence[Violation]:
        alone = [one for one in distances if one.layout is None and one.role == "parameter"]
        if not alone or self.replicas.others or self._is_reported:
            return ()
        began = hypot(*(one.began_apart * one.norm for one in alone))
        if began > _NEAR * hypot(*(one.norm for one in alone)):
            return ()  # they were different models from the start
        self.triggered += 1
        if not differs(alone):
            self._times = 0
            return ()
        self._first = alone[0].step if self._times == 0 else self._first
        self._times += 1
        if self._times < PROOF:
            return ()
        self._is_reported = True
        return [self._violation(alone)]

    def _violation(self, alone: Sequence[Distance]) -> Violation:
        one = alone[0]
        groups = [g for some in self.replicas.groups.values() for g in some if len(g.ranks) == 1]
        wrapper = "a mesh of one rank"
        if groups:
            strategy = f" ({groups[0].strategy})" if groups[0].strategy else ""
            wrapper = f"{groups[0].kind}{strategy} over one rank"
        return Violation(
            check_id=self.code,
            step=self._first,
            rank=one.ranks[1],
            stage="train",
            subject=Subject(module=one.name.partition(".")[0]),
            symptom=Symptom.NOT_SYNCHRONIZED,
            message=(
                f"all {len(alone)} parameters are in {wrapper}, and ranks {one.ranks[0]} and "
                f"{one.ranks[1]}, which began with the same model, differ more and more"
            ),
            expected="gradients that are reduced over all ranks that train the model",
            observed=(
                f"{wrapper}; after step {one.step} the ranks are {joint(alone):.2%} of the norm "
                "of the parameters apart"
            ),
            evidence=tuple(e for e in (one.event, one.backward) if e is not None),
        )
