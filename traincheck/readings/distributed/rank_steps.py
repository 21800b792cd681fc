"""The calls and variables of one rank in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from traincheck.readings import recorded
from traincheck.readings.steps import is_judged
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CollectiveEvent, StateEvent, StepEvent
from traincheck.schema.torch_api import DDP_FORWARD, DDP_HOOK, DDP_INIT, JOIN, Families
from traincheck.schema.values import TensorSummary

FSDP_FORWARD = "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel.forward"
SYNC = "require_backward_grad_sync"  # argument of DDP_FORWARD: whether it arms the exchange

_EXACT = ("xxh3-128:", "mix-128:", "xxh3:")  # digests of whole tensors, not of a shard or part

REPLICAS = Needs(
    calls=frozenset(
        {DDP_INIT, DDP_HOOK, JOIN, DDP_FORWARD, Families.MODULE, Families.OPTIMIZER_STEP}
    ),
    states=frozenset({"parameter@step", "parameter@ranks"}),
    kinds=frozenset({"collective", "mark", "optimizer", "step"}),
)
Key = tuple[str, str]  # role and name
Content = tuple[str, tuple[int, ...], str]  # dtype, shape and fingerprint


def content(summary: TensorSummary | None) -> Content | None:
    """The content that can be compared with another tensor; None if the scan was not exact."""
    if summary is None or not (summary.fingerprint or "").startswith(_EXACT):
        return None
    if 0 in summary.shape:
        return None
    return summary.dtype, tuple(summary.shape), str(summary.fingerprint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrap:
    """A model in DistributedDataParallel.

    Attributes:
        parameters: names of those whose gradients it exchanges.
        ids: their identities.
        ignored: names that it was configured to ignore.
    """

    event: CallEvent
    module: str
    parameters: frozenset[str]
    ids: Mapping[str, int]
    ignored: frozenset[str]
    group_size: int | None

    @classmethod
    def of(cls, call: CallEvent) -> Wrap | None:
        """The wrapper of a DDP construction; None if the event has too little data."""
        names, ids = call.args.get("parameters"), call.args.get("ids")
        if call.module is None or not isinstance(names, list) or not isinstance(ids, list):
            return None
        size = call.args.get("group_size")
        return cls(
            event=call,
            module=call.module,
            parameters=frozenset(names),
            ids=dict(zip(names, ids)),
            ignored=frozenset(call.args.get("ignored") or ()),
            group_size=size if isinstance(size, int) else None,
        )

    def covers(self, name: str) -> bool:
        """Whether a variable belongs to the wrapped model and is not ignored on purpose."""
        return name.startswith(f"{self.module}.") and name not in self.ignored


@dataclass(slots=True)
class RankStep:
    """One rank in one step.

    Attributes:
        calls: landmarks and outermost module calls, in order.
        states: the last scan of each variable that changed.
    """

    calls: list[CallEvent] = field(default_factory=list)
    collectives: list[CollectiveEvent] = field(default_factory=list)
    states: dict[Key, StateEvent] = field(default_factory=dict)
    is_gap: bool = False
    end: StepEvent | None = None

    @property
    def is_complete(self) -> bool:
        """Whether absence is evidence: the step was recorded completely."""
        return self.end is not None and self.end.complete and not self.is_gap

    @property
    def is_judged(self) -> bool:
        """Whether it is also a step that trained."""
        return self.end is not None and not self.is_gap and is_judged(self.end)

    def family(self, family: str) -> list[CallEvent]:
        """Calls of one family that ran to their end."""
        return [
            call
            for call in self.calls
            if (call.family or call.api) == family and call.exception is None
        ]

    def updates(self) -> list[CallEvent]:
        return self.family(Families.OPTIMIZER_STEP)

    def forwards(self) -> list[CallEvent]:
        """Training calls of a DDP wrapper."""
        return [c for c in self.calls if c.api == DDP_FORWARD and c.grad_enabled]

    def norms(self) -> list[float | None]:
        """The norms of clipping, call by call."""
        return [recorded.clipped_norm(call) for call in self.family(Families.CLIP_NORM)]

    def reduced_gradients(self) -> set[str]:
        """Parameters that all ranks of the job reduce after backward and before the update.

        At that point these are gradients; averages of weights come after the update.
        """
        first = min((c.seq for c in self.family(Families.BACKWARD)), default=None)
        last = max((c.seq for c in self.updates()), default=None)
        if first is None or last is None:
            return set()
        return {
            c.variable
            for c in self.collectives
            if c.op == "all_reduce"
            and c.group == "world"
            and c.variable is not None
            and first < c.seq < last
        }

    @property
    def reduces_by_hand(self) -> bool:
        """Whether the script itself exchanges more than single numbers."""
        return any(
            c.op in ("all_reduce", "all_gather", "broadcast", "all_gather_into_tensor", "reduce")
            and _numel(c.shape) > 1
            for c in self.collectives
        )


@dataclass(slots=True)
class Rank:
    """The state of one training process.

    Attributes:
        known: the last scan of each variable.
        begun: the first scan of each parameter.
        held: the parameters of each optimizer, by name.
        aside: number of steps that were unrelated to the joint training of the ranks.
    """

    wraps: dict[str, Wrap] = field(default_factory=dict)
    held: dict[str, frozenset[str]] = field(default_factory=dict)
    begun: dict[str, StateEvent] = field(default_factory=dict)
    aside: int = 0
    known: dict[Key, StateEvent] = field(default_factory=dict)
    is_local: bool = False  # ranks may diverge until an average, or make other steps
    is_apart: bool = False  # it exchanges gradients in a special way, or in some steps
    is_sharded: bool = False  # FSDP: a name refers to a shard

    def parameter(self, name: str) -> StateEvent:
        """The last scan of a parameter."""
        return self.known["parameter", name]

    def is_aside(self, page: RankStep) -> bool:
        """Whether a step trained only parameters outside wrappers, such as a probe on one rank.

        Such a step does not correspond to a step of the other ranks.
        """
        updates = page.updates()
        if not self.wraps or not updates or page.collectives or page.forwards():
            return False
        names = frozenset[str]().union(*(self.held.get(c.owner or "", ()) for c in updates))
        return bool(names) and not any(w.covers(n) for w in self.wraps.values() for n in names)


def _numel(shape: Sequence[int] | None) -> int:
    count = 1
    for size in shape or ():
        count *= size
    return count


# Methods that combine the gradients of several tasks clear and compute them once per task.
FIRST = 10  # consecutive steps with gradients, before the first update
# After an update. Saliency, Fisher information and similar methods compute gradients that are not
# applied. So many steps are needed, at the end of the run or before another update.
LATER_AT_END, LATER = 30, 300
UNGRAPHED = 300  # steps: layers may run without a graph until the head has learned
STUCK = 3  # steps: one may round the update of a parameter to zero, or a wrapper may skip it
ROUTED = 8  # consecutive steps that an expert of a mixture may go without a gradient
