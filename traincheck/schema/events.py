"""Events: what was observed, one immutable record each.

NamedTuples, not dataclasses: reading a trace builds one per line, and a frozen dataclass costs four times as much to make.
All kinds begin with the same seven fields, so ``event.step`` works on any of them.

seq: number in its file. time_ns: monotonic clock in nanoseconds; compare on one machine only. step: optimizer iteration from 0,
None outside a training process (DataLoader workers). stage: one of STAGES. rank: global index. stream: ``p<pid>-t<thread>``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from traincheck.schema.values import TensorSummary, Value

STAGES = ("init", "train", "eval", "checkpoint")
ROLES = ("parameter", "gradient", "buffer", "optimizer_state")


class CallEvent(NamedTuple):
    """A call from entry to exit, written when it ends; ``open`` when the run ended first.

    api: importable dotted name; for a module call, of the class' ``forward``. family: the general name that subclasses share
    (``torch.optim.Optimizer.step``), None when api is its own family. span, parent: ids unique in a process.
    args: by parameter name, scalar defaults filled in. result: a value; a tuple is a list. exception: its class name.
    module: path of the called module, ``Net.fc1``. root: whether no other module call encloses it. training: the module's mode.
    owner: id of the optimizer or scheduler whose method it is. where: ``file:line`` of the user's code, for rare calls.
    """

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "call"
    api: str = ""
    span: int = 0
    parent: int | None = None
    start_ns: int = 0
    family: str | None = None
    args: Mapping[str, Value] = {}
    result: Value = None
    exception: str | None = None
    module: str | None = None
    root: bool = False
    training: bool | None = None
    owner: str | None = None
    grad_enabled: bool = True
    autocast: str | None = None
    where: str | None = None
    open: bool = False


class StateEvent(NamedTuple):
    """A tracked variable was first seen, changed, or left, as found when looking at the end of span ``after``.

    name: ``Net.fc1.weight``; a gradient has its parameter's name, optimizer state ``<parameter>/exp_avg``.
    change: "new" first seen; "content" bits differ; "set" a gradient appeared where none was; "cleared" it became None;
    "replaced" another object has the name; "flags" only requires_grad, dtype or shape differ; "gone"; "unknown" the view
    recorded cannot tell. summary: None when there is no tensor now. identity: of the object, unique in the process.
    storage: of its memory (equal for tied tensors). module_class: dotted class of the owning module. owner: optimizer id.
    """

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "state"
    name: str = ""
    role: str = "parameter"
    change: str = "content"
    summary: TensorSummary | None = None
    requires_grad: bool = False
    identity: int = 0
    storage: int = 0
    after: int | None = None
    module_class: str | None = None
    owner: str | None = None


class ParamGroup(NamedTuple):
    """One group of an optimizer: hyper-parameters, and names and identities of the parameters, in the same order."""

    hyper: Mapping[str, Value]
    params: Sequence[str]
    ids: Sequence[int]


class OptimizerEvent(NamedTuple):
    """An optimizer was created, or what it holds changed. change: "created", "groups". id: ``opt0``, in order of creation."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "optimizer"
    change: str = "created"
    id: str = ""
    cls: str = ""
    groups: Sequence[ParamGroup] = ()
    where: str | None = None


class StepEvent(NamedTuple):
    """The end of a step. A step that was skipped by sampling has ``recorded`` false; the last, unfinished one ``complete`` false.

    counters: calls since the step began (batch, forward, backward, zero_grad, optimizer_step, scaler_step).
    lr: optimizer id -> learning rate per group. modes: root module name -> training flag at the end.
    """

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "step"
    counters: Mapping[str, int] = {}
    lr: Mapping[str, Sequence[float]] = {}
    modes: Mapping[str, bool] = {}
    recorded: bool = True
    complete: bool = True


class StageEvent(NamedTuple):
    """The stage changed; ``stage`` is the new one."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "stage"
    previous: str = "init"


class BatchEvent(NamedTuple):
    """A batch reached the loop. leaves: path -> summary. samples: one fingerprint a row of the first leaf. index: in its epoch."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "batch"
    loader: str = ""
    index: int = 0
    epoch: int = 0
    leaves: Mapping[str, Value] = {}
    samples: Sequence[str] = ()
    sampler: str | None = None
    workers: int = 0


class RngEvent(NamedTuple):
    """A random generator was seeded, or its state looked at. source: python, numpy, torch, cuda. change: "seed", "state"."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "rng"
    source: str = "torch"
    change: str = "state"
    fingerprint: str | None = None
    seed: int | None = None


class CollectiveEvent(NamedTuple):
    """A torch.distributed call. number: in this process and group, from 0. shape and dtype of the first tensor."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "collective"
    op: str = ""
    group: str = "world"
    number: int = 0
    shape: Sequence[int] | None = None
    dtype: str | None = None
    before: str | None = None
    after: str | None = None


class CheckpointEvent(NamedTuple):
    """State was saved or loaded. op: save, load, load_state_dict. changed: how many values a load changed; None if unknown."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "checkpoint"
    op: str = ""
    target: str | None = None
    path: str | None = None
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    changed: int | None = None
    entries: int | None = None


class WarningEvent(NamedTuple):
    """A Python warning raised during the run."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "warning"
    category: str = ""
    text: str = ""
    where: str | None = None


class MarkEvent(NamedTuple):
    """A note in the trace. text: "process" (first in a file: versions, instruments), "instrument disabled", "dropped", or a user's."""

    seq: int
    time_ns: int
    step: int | None
    stage: str
    rank: int
    stream: str
    kind: str = "mark"
    text: str = ""
    data: Mapping[str, Value] = {}


Event: TypeAlias = (
    CallEvent
    | StateEvent
    | OptimizerEvent
    | StepEvent
    | StageEvent
    | BatchEvent
    | RngEvent
    | CollectiveEvent
    | CheckpointEvent
    | WarningEvent
    | MarkEvent
)
EVENT_TYPES = (
    CallEvent,
    StateEvent,
    OptimizerEvent,
    StepEvent,
    StageEvent,
    BatchEvent,
    RngEvent,
    CollectiveEvent,
    CheckpointEvent,
    WarningEvent,
    MarkEvent,
)
KINDS = tuple(event_type._field_defaults["kind"] for event_type in EVENT_TYPES)


class Families:
    """Names shared by all members of an API family; learned and built-in checks speak of these."""

    OPTIMIZER_STEP = "torch.optim.Optimizer.step"
    ZERO_GRAD = "torch.optim.Optimizer.zero_grad"  # Module.zero_grad is a member: it clears the same gradients
    MODULE = "torch.nn.Module.forward"
    BACKWARD = "torch.autograd.backward"
    SCHEDULER_STEP = "torch.optim.lr_scheduler.LRScheduler.step"
    TRAIN = "torch.nn.Module.train"
    EVAL = "torch.nn.Module.eval"
    SCALER_STEP = "torch.amp.GradScaler.step"
    SCALER_UPDATE = "torch.amp.GradScaler.update"
    UNSCALE = "torch.amp.GradScaler.unscale_"
    CLIP_NORM = "torch.nn.utils.clip_grad_norm_"
    CLIP_VALUE = "torch.nn.utils.clip_grad_value_"
