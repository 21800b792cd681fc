"""A parameter that all ranks should share is not the same on them. Compares content only."""

from __future__ import annotations

from collections import Counter

from traincheck.facts.rank_steps import REPLICAS
from traincheck.facts.ranks import RunStep
from traincheck.rules.base.rank_rule import RankRule
from traincheck.rules.ranks.replicas import cause_of
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families

_AGREED = 3  # the first step of Adam moves weights by their rate, whatever the gradient


class ReplicasDiffer(RankRule, code="TC401", severity="error"):
    """replicas-differ: a replicated parameter differs between ranks after the step.

    What it checks:
        At the end of every step, each parameter that changed has the same bits on all ranks, if it
        is meant to: it belongs to a model in DistributedDataParallel, or, in a run whose ranks
        exchange tensors, it was equal on all ranks after three steps in a row, or, if its gradient
        is reduced in this step, after one or from the start. Parameters are compared by name and
        step, with exact fingerprints.

    Why it matters:
        Each rank trains a model of its own. The loss looks normal, the gradient norm too; what is
        saved is the model of one rank, trained on a part of the data.

    Fires on:
        A model that was converted after DDP was built; a rank that skips a step or clips for
        itself; an all-reduce that is missing or loses data; layer norms whose gradients are not
        reduced in tensor parallelism.

    Stays quiet on:
        Buffers (running statistics differ on healthy runs); sharded parameters (FSDP, DTensor) and
        those without elements; ranks that train models of their own; local SGD, whose ranks agree
        after an average only, or by chance after the first step, also with an optimizer of its own
        after a phase in which ranks agreed; `Join`, with which a rank may be
        out of inputs before the others; parameters that differ from the start (TC414);
        ranks that ended early; what TC403, TC404 and TC405 tell, as they know the cause.

    Fix:
        Let the gradients of every micro-batch that ends in a step pass through the wrapper, and do
        nothing to parameters on one rank only.

    Source:
        https://github.com/pytorch/pytorch/issues/104336, https://github.com/microsoft/DeepSpeed/pull/1801,
        https://github.com/pytorch/pytorch/issues/84803
    """

    title = "Ranks no longer agree on {variables}"
    likely_cause = (
        "Gradients or updates of {variables} are no longer exchanged between ranks from step "
        "{step} on: the wrapped model was converted or changed, one rank does something by "
        "itself, or a collective is missing or lost data."
    )
    fix = (
        "Do nothing to parameters or gradients on one rank only; with DistributedDataParallel, "
        "wrap the model last, and call the wrapper and not the model inside it."
    )
    needs = REPLICAS | Needs(calls=frozenset({Families.BACKWARD}))
    scope = "run"

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()
        self._agreed: Counter[str] = Counter()  # steps in a row that left them equal on all ranks
        self._shared: set[str] = set()  # equal after so many steps that it is meant
        self._updated: set[str] = set()  # optimizers that have stepped
        self._exchanged = False

    def judge(self, step: RunStep) -> list[Violation]:
        self._exchanged |= all(page.collectives for page in step.pages.values())
        if not step.is_complete:
            return []
        self._begin_phase(step)
        agree = step.agree()
        different = step.different()
        wrapped = {name for name in different if step.wrap_of(name) is not None}
        # The rules about causes tell of those.
        self._told |= {name for name in wrapped if cause_of(name, step) is not None}
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
        found = sorted((wrapped | by_evidence) - self._told)
        self._told.update(found)
        return [self._violation(name, different[name], step) for name in found]

    def _begin_phase(self, step: RunStep) -> None:
        """What another optimizer updates now is known to be shared once it agrees again."""
        owners = {str(call.owner) for page in step.pages.values() for call in page.updates()}
        new = owners - self._updated if self._updated else ()
        self._updated |= owners
        held = (rank.held.get(owner, ()) for rank in step.ranks.values() for owner in new)
        for name in {name for names in held for name in names} - step.reduced_gradients():
            self._agreed.pop(name, None)
            self._shared.discard(name)

    def _violation(self, name: str, looks: dict[int, StateEvent], step: RunStep) -> Violation:
        first = min(looks)
        digests = {rank: _digest(look) for rank, look in looks.items()}
        odd = next(rank for rank in sorted(looks) if digests[rank] != digests[first])
        wrap = step.wrap_of(name)
        why = "which DistributedDataParallel keeps equal" if wrap else "which they share"
        backward = step.pages[odd].family(Families.BACKWARD)[-1:]  # its line is in the loop
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
            observed="contents "
            + ", ".join(f"rank {rank}: {digests[rank][-8:]}" for rank in sorted(looks)[:4]),
            evidence=evidence,
        )


def _averaged(step: RunStep) -> set[str]:
    """Parameters that, or whose gradients, every rank reduces in this step."""
    found = (
        {c.variable for c in page.collectives if c.op == "all_reduce" and c.variable is not None}
        for page in step.pages.values()
    )
    return set.intersection(*found)


def _digest(look: StateEvent) -> str:
    text = (look.summary.fingerprint if look.summary is not None else None) or ""
    return text.partition(":")[2]


def _is_norm(name: str, step: RunStep, equal: set[str]) -> bool:
    """Whether a normalization layer differs between ranks, and what stands beside it does not.

    Such layers are not split among ranks, unless the whole part they belong to is (experts).
    """
    if not all("Norm" in (r.parameter(name).module_class or "") for r in step.ranks.values()):
        return False
    beside = f"{name.rsplit('.', 2)[0]}."
    return any(other.startswith(beside) for other in equal)
