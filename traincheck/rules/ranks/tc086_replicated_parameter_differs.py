"""A distributed tensor that says it is replicated has other values on another rank."""

from __future__ import annotations

from collections.abc import Sequence

from traincheck.readings.distributed.replicas import Distance
from traincheck.rules.base.rule import Streak, extend
from traincheck.rules.ranks.drift import PROOF, ReplicaRule, differs
from traincheck.schema.findings import Subject, Symptom, Violation

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

    def __init__(self) -> None:
        super().__init__()
        self._apart: dict[str, Streak] = {}
        self._reported: set[str] = set()

    def judge(self, distances: Sequence[Distance]) -> Sequence[Violation]:
        placed = [one for one in distances if one.layout is not None]
        gradients = {one.name: one for one in placed if one.role == "gradient"}
        found = []
        for one in placed:
            if one.role != "parameter" or one.name in self._reported:
                continue
            self.triggered += 1
            if not differs([one]):
                self._apart.pop(one.name, None)
            elif extend(self._apart, one.name, one.step).count >= PROOF:
                self._reported.add(one.name)
                found.append(self._violation(one, gradients.get(one.name)))
        return found

    def _violation(self, one: Distance, gradient: Distance | None) -> Violation:
        first, second = one.ranks
        layout = one.layout
        mesh = ""
        if layout is not None:
            mesh = ", ".join(
                f"{text} over {f'{dim} of ' if dim else ''}{size} ranks"
                for dim, size, text in zip(layout.dims, layout.sizes, layout.placements)
            )
        observed = (
            f"they differ by {one.apart / one.norm:.2%} of the norm" if one.norm else "differ"
        )
        if gradient is not None and gradient.apart > _SHARE_OF_GRADIENT * gradient.norm:
            observed += f", and their gradients by {gradient.apart / gradient.norm:.0%}"
        return Violation(
            check_id=self.code,
            step=self._apart[one.name].first,
            rank=second,
            stage="train",
            subject=Subject(variable=one.name),
            symptom=Symptom.RANKS_DIFFER,
            message=(
                f"rank {second} has other values than rank {first} in {one.name}, whose placement "
                f"is {mesh}"
            ),
            expected="the same values on all ranks that hold a replica",
            observed=f"after step {one.step} {observed}",
            evidence=tuple(e for e in (one.event, one.backward) if e is not None),
        )
