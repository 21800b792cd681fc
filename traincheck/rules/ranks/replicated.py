"""Gradients and replicated parameters of tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot
from typing import ClassVar

from traincheck.readings.distributed.replicas import REPLICA_VALUES, Distance, Replicas, joint
from traincheck.readings.provider import RunState, RunStates
from traincheck.rules.base.rule import BuiltInRule, Streak, extend, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_ROUNDING, _ROUNDING_OF_HALF = 1e-6, 4e-3  # of the norm
_HALF = ("float16", "bfloat16")
_SHARE = 0.02  # of the movement: kernels that add in another order differ far less
PROOF = 2  # comparisons


def differs(some: Sequence[Distance]) -> bool:
    """Whether ranks differ in these tensors together by more than rounding explains.

    The difference is compared with how far the tensors moved since the last comparison.
    """
    is_half = any(one.dtype in _HALF for one in some)
    rounding = _ROUNDING_OF_HALF if is_half else _ROUNDING
    norm, apart = hypot(*(one.norm for one in some)), hypot(*(one.apart for one in some))
    moved = hypot(*(one.moved or 0.0 for one in some))
    return apart > max(rounding * norm, _SHARE * moved)


class ReplicaRule(BuiltInRule):
    """Judges what the comparisons of ranks show."""

    uses: ClassVar[Sequence[type[RunState]]] = (Replicas,)
    observes: ClassVar[Needs] = Needs(kinds=frozenset({"step"}))
    needs = REPLICA_VALUES
    scope = "run"

    def bind(self, run_states: RunStates) -> None:
        self.replicas = run_states.of(Replicas)

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, StepEvent) or not self.replicas.ready or self.replicas.is_local:
            return ()
        return self.judge(self.replicas.ready)

    def judge(self, distances: Sequence[Distance]) -> Sequence[Violation]:
        """Return the violations that a comparison proves, together with earlier ones."""
        raise NotImplementedError


_SHARE_OF_GRADIENT = 0.02


class ReplicatedParameterDiffers(ReplicaRule, code="TC086", severity="error"):
    """replicated-parameter-differs: ranks hold different values of a replicated DTensor.

    What it checks:
        The local tensors of a DTensor parameter have the same values on all ranks along the mesh
        dimensions where its placement is Replicate(). The ranks are compared at the end of the
        first four steps, and of every 100th, by sums of their elements.

    Why it matters:
        Each rank trains a separate copy of the parameter, with a part of its gradient. DTensor
        operations still treat the copies as one. The checkpoint holds one of them.

    Fires on:
        Ranks that differ in two comparisons by more than rounding, and by more than 2 % of how far
        the parameter moved. Examples:

        - DTensor.to_local() without grad_placements=[Partial()], if the backward pass of each rank
          gives a part of the gradient (a replicated router before sharded experts).
        - A parameter that is changed on one rank only.
        - DTensor.from_local(..., [Replicate()]) of values that each rank initializes differently.

    Stays quiet on:
        - Shard() and Partial() placements, and mesh dimensions of one rank.
        - Differences of rounding.
        - Local SGD, whose ranks agree only after an average.

    Fix:
        Pass grad_placements=[Partial()] to to_local() where the gradient is a part. Or keep the
        computation in DTensors, which exchange gradients by their placements.

    Source:
        https://github.com/pytorch/torchtitan/issues/2387,
        https://docs.pytorch.org/docs/stable/distributed.tensor.html
    """

    title = "Ranks hold different values of {variables}, which {is|are} replicated"
    likely_cause = (
        "The placement of {variables} is Replicate(), but each rank applies its own gradient: for "
        "example after DTensor.to_local() without grad_placements, in a computation of which each "
        "rank does a part."
    )
    fix = (
        "Pass grad_placements=[Partial()] to to_local() where the backward pass of a rank gives a "
        "part of the gradient, or all-reduce the gradient before optimizer.step()."
    )
    _apart: dict[str, Streak] = fresh(dict)

    def judge(self, distances: Sequence[Distance]) -> Sequence[Violation]:
        placed = [one for one in distances if one.layout is not None]
        gradients = {one.name: one for one in placed if one.role == "gradient"}
        found = []
        for one in placed:
            if one.role != "parameter" or one.name in self.reported:
                continue
            self.triggered += 1
            if not differs([one]):
                self._apart.pop(one.name, None)
            elif extend(self._apart, one.name, one.step).count >= PROOF:
                self.reported.add(one.name)
                gradient = gradients.get(one.name)
                first, second = one.ranks
                layout = one.layout
                mesh = ""
                if layout is not None:
                    mesh = ", ".join(
                        f"{text} over {f'{dim} of ' if dim else ''}{size} ranks"
                        for dim, size, text in zip(layout.dims, layout.sizes, layout.placements)
                    )
                observed = (
                    f"they differ by {one.apart / one.norm:.2%} of the norm"
                    if one.norm
                    else "differ"
                )
                if gradient is not None and gradient.apart > _SHARE_OF_GRADIENT * gradient.norm:
                    observed += f", and their gradients by {gradient.apart / gradient.norm:.0%}"
                found.append(
                    Violation(
                        check_id=self.code,
                        step=self._apart[one.name].first,
                        rank=second,
                        stage="train",
                        subject=Subject(variable=one.name),
                        symptom=Symptom.RANKS_DIFFER,
                        message=f"rank {second} has other values than rank {first} in {one.name}, "
                        f"whose placement is {mesh}",
                        expected="the same values on all ranks that hold a replica",
                        observed=f"after step {one.step} {observed}",
                        evidence=tuple(e for e in (one.event, one.backward) if e is not None),
                    )
                )
        return found


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
    _first: int | None = None
    _times = 0

    def judge(self, distances: Sequence[Distance]) -> Sequence[Violation]:
        alone = [one for one in distances if one.layout is None and one.role == "parameter"]
        if not alone or self.replicas.others or self.is_over:
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
        self.is_over = True
        one = alone[0]
        groups = [g for some in self.replicas.groups.values() for g in some if len(g.ranks) == 1]
        wrapper = "a mesh of one rank"
        if groups:
            strategy = f" ({groups[0].strategy})" if groups[0].strategy else ""
            wrapper = f"{groups[0].kind}{strategy} over one rank"
        return [
            Violation(
                check_id=self.code,
                step=self._first,
                rank=one.ranks[1],
                stage="train",
                subject=Subject(module=one.name.partition(".")[0]),
                symptom=Symptom.NOT_SYNCHRONIZED,
                message=f"all {len(alone)} parameters are in {wrapper}, and ranks {one.ranks[0]} "
                f"and {one.ranks[1]}, which began with the same model, differ more and more",
                expected="gradients that are reduced over all ranks that train the model",
                observed=f"{wrapper}; after step {one.step} the ranks are {joint(alone):.2%} of "
                "the norm of the parameters apart",
                evidence=tuple(e for e in (one.event, one.backward) if e is not None),
            )
        ]
