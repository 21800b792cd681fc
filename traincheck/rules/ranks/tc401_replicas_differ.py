"""A parameter that all ranks should share differs between them. Compares content only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from traincheck.readings.distributed.rank_steps import REPLICAS
from traincheck.readings.distributed.ranks import RunStep
from traincheck.rules.base.rule import fresh
from traincheck.rules.base.step_rule import RankRule
from traincheck.rules.ranks.replicas import cause_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_AGREED = 3  # the first step of Adam moves weights by their rate, whatever the gradient


class ReplicasDiffer(RankRule, code="TC401", severity="error"):
    """replicas-differ: a replicated parameter differs between ranks after the step.

    What it checks:
        At the end of every step, each changed parameter that is meant to be replicated has the same
        bits on all ranks. Parameters are compared by name and step, with exact fingerprints. A
        parameter counts as replicated in these cases:

        - It belongs to a model in DistributedDataParallel.
        - The ranks exchange tensors, and it was equal on all ranks after three steps in a row. If
          its gradient is reduced in this step, one such step, or equality from the start, is
          enough.

    Why it matters:
        Each rank trains a separate model. The loss and the gradient norm look normal. The saved
        model is that of one rank, trained on a part of the data.

    Fires on:
        - A model that was converted after DDP was built.
        - A rank that skips a step, or clips separately.
        - An all-reduce that is missing or loses data.
        - Layer norms whose gradients are not reduced in tensor parallelism.

    Stays quiet on:
        - Buffers (running statistics differ on healthy runs).
        - Sharded parameters (FSDP, DTensor) and empty parameters.
        - Ranks that train separate models.
        - Local SGD, whose ranks agree only after an average, or by chance after the first step.
          This includes a local phase with a new optimizer after a phase in which ranks agreed.
        - `Join`, with which a rank may run out of inputs before the others.
        - Parameters that differ from the start (TC414).
        - Ranks that ended early.
        - Findings of TC403, TC404 and TC405, which know the cause.

    Fix:
        Pass the gradients of every micro-batch that ends in a step through the wrapper. Do not
        change parameters on one rank only.

    Source:
        https://github.com/pytorch/pytorch/issues/104336, https://github.com/microsoft/DeepSpeed/pull/1801,
        https://github.com/pytorch/pytorch/issues/84803
    """

    title = "Ranks no longer agree on {variables}"
    likely_cause = (
        "Gradients or updates of {variables} are not exchanged between ranks from step {step} "
        "on. The wrapped model may have been converted or changed, one rank may act alone, or "
        "a collective is missing or lost data."
    )
    fix = (
        "Do not change parameters or gradients on one rank only. With DistributedDataParallel, "
        "wrap the model last, and call the wrapper, not the model inside it."
    )
    needs = REPLICAS | Needs(calls=frozenset({Families.BACKWARD}))
    scope = "run"
    _agreed: Counter[str] = fresh(Counter)  # steps in a row that left them equal on all ranks
    _shared: set[str] = fresh(set)  # equal in enough steps that it is intended
    _updated: set[str] = fresh(set)  # optimizers that have stepped
    _exchanged = False

    def judge(self, step: RunStep) -> list[Violation]:
        self._exchanged |= all(page.collectives for page in step.pages.values())
        if not step.is_complete:
            return []
        self._begin_phase(step)
        agree = step.agree
        different = step.different
        wrapped = {name for name in different if step.wrap_of(name) is not None}
        # The rules about single causes report these.
        self.reported |= {name for name in wrapped if cause_of(name, step) is not None}
        by_evidence: set[str] = set()
        if self._exchanged and not any(r.is_sharded or r.is_local for r in step.ranks.values()):
            equal = agree | self._shared
            meant = self._shared | (self._agreed.keys() & _averaged(step))
            meant |= {name for name in step.reduced_gradients() if step.began_equal(name)}
            by_evidence = {n for n in different if n in meant or _is_norm(n, step, equal)}
        self.triggered += bool(agree or wrapped or by_evidence)
        if self._exchanged:
            for name in different:
                self._agreed.pop(name, None)
            self._agreed.update(agree)
            self._shared |= {name for name in agree if self._agreed[name] >= _AGREED}
        found = sorted((wrapped | by_evidence) - self.reported)
        self.reported.update(found)
        return [self._violation(name, different[name], step) for name in found]

    def _begin_phase(self, step: RunStep) -> None:
        """Treat parameters of a new optimizer as shared only after they agree again."""
        owners = {str(call.owner) for page in step.pages.values() for call in page.updates()}
        new = owners - self._updated if self._updated else ()
        self._updated |= owners
        held = (rank.held.get(owner, ()) for rank in step.ranks.values() for owner in new)
        for name in {name for names in held for name in names} - step.reduced_gradients():
            self._agreed.pop(name, None)
            self._shared.discard(name)

    def _violation(self, name: str, looks: Mapping[int, StateEvent], step: RunStep) -> Violation:
        first = min(looks)
        digests = {rank: _digest(look) for rank, look in looks.items()}
        odd = next(rank for rank in sorted(looks) if digests[rank] != digests[first])
        wrap = step.wrap_of(name)
        why = "which DistributedDataParallel keeps equal" if wrap else "which the ranks share"
        backward = step.pages[odd].family(Families.BACKWARD)[
            -1:
        ]  # its line is in the training loop
        made = () if wrap is None else (wrap.event,)
        evidence: tuple[Event, ...] = (looks[first], looks[odd], *backward, *made)
        return Violation(
            check_id=self.code,
            step=step.step,
            rank=odd,
            stage="train",
            subject=Subject(variable=name),
            symptom=Symptom.RANKS_DIFFER,
            message=f"rank {odd} has other values than rank {first} in {name}, {why}",
            expected="the same content on every rank after the step",
            observed="content "
            + ", ".join(f"rank {rank}: {digests[rank][-8:]}" for rank in sorted(looks)[:4]),
            evidence=evidence,
        )


def _averaged(step: RunStep) -> set[str]:
    """Parameters that every rank reduces in this step, or whose gradients it reduces."""
    found = (
        {c.variable for c in page.collectives if c.op == "all_reduce" and c.variable is not None}
        for page in step.pages.values()
    )
    return set.intersection(*found)


def _digest(look: StateEvent) -> str:
    text = (look.summary.fingerprint if look.summary is not None else None) or ""
    return text.partition(":")[2]


def _is_norm(name: str, step: RunStep, equal: AbstractSet[str]) -> bool:
    """Whether a normalization layer differs between ranks while its neighbors are equal.

    Such layers are not split among ranks, unless their whole parent is (experts).
    """
    if not all("Norm" in (r.parameter(name).module_class or "") for r in step.ranks.values()):
        return False
    beside = f"{name.rsplit('.', 2)[0]}."
    return any(other.startswith(beside) for other in equal)
