"""Events: immutable records of observations.

All kinds begin with the same fields, so ``event.step`` works on any of them:

seq: number in its file, from 0.
time_ns: monotonic clock in nanoseconds; compare on one machine only.
step: optimizer iteration from 0, None outside a training process (DataLoader workers).
stage: one of STAGES.
rank: global index.
stream: ``p<pid>-t<thread>``.
kind: what was observed; fixed for each type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias

from msgspec import field

from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.record import EventBase, Int64, Record
from traincheck.schema.values import TensorSummary, Value


class MetricsEvent(EventBase, frozen=True, kw_only=True, tag="metrics"):
    """The metrics of one step of a monitored process, or of the evaluation within it.

    Names stand in the first event of the process that has them, under a number that later events
    use.

    Attributes:
        names: number -> name, of those that no earlier event of this process has.
        combine: number -> how its values combine over calls and ranks, where it is not "mean":
            "sum", "max", "min", "last"; "shard" where sums are of one part of a tensor, "shard/2"
            where two ranks have a copy of that part.
        sums: for each tensor its number, then count, sum, squares, minimum, maximum, zeros,
            nonfinite, absolutes, cubes, fourths, mean, m2, m3, m4 of its elements; null where it
            was not taken, and left out at the end. m2 is the sum of squares of the deviations from
            the mean, m3 and m4 those of third and fourth powers. Older traces have raw sums of
            powers instead: cubes and fourths.
        values: for each metric its number, its weight and its value; of a mean the weighted sum.
            null stands for NaN, text for infinities.
        skipped: number -> why a tensor was not measured, when this is first seen.
        failed: metrics that failed, with ``metric``, ``on`` and ``error``; not taken from then on.
        evaluates: whether it is about forwards without gradients.
    """

    kind: ClassVar[Literal["metrics"]] = "metrics"
    names: Mapping[str, str] = {}
    combine: Mapping[str, str] = {}
    sums: Sequence[Sequence[float | int | None]] = ()
    values: Sequence[Sequence[float | int | str | None]] = ()
    skipped: Mapping[str, str] = {}
    failed: Sequence[Mapping[str, Value]] = ()
    evaluates: bool = False


_MOST_RANKS = 1 << 20


class CallEvent(EventBase, frozen=True, kw_only=True, tag="call"):
    """A call from entry to exit, written when it ends; ``open`` when the run ended first.

    Attributes:
        api: importable dotted name; for a module call, of the class' ``forward``.
        span: id of the call, unique in a process.
        parent: id of the enclosing call.
        start_ns: when it began, on the clock of ``time_ns``.
        family: the general name that subclasses share (``torch.optim.Optimizer.step``), None when
            api is its own family.
        args: by parameter name, scalar defaults filled in; of modules by position ("0"). Of an
            optimizer step, ``gradients: 0`` if none of its parameters has one.
        result: a value; a tuple is a list.
        exception: class name of what it raised.
        module: path of the called module, ``Net.fc1``; of a function in MODAL, of the calling one.
        root: whether no other module call encloses it.
        training: the mode of this module.
        owner: id of the optimizer or scheduler whose method it is.
        grad_enabled: whether autograd was recording.
        autocast: dtype of autocast when on.
        where: ``file:line`` of the user's code, for rare calls and outermost module calls; for a
        call of an installed package ``package.py:40 from train.py:12``.
        open: whether the run ended before the call did.
    """

    kind: ClassVar[Literal["call"]] = "call"
    api: str
    span: Int64 = field(name="id")
    parent: Int64 | None = None
    start_ns: Int64 = field(name="start", default=0)
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

    @property
    def has_closure(self) -> bool:
        """Whether an optimizer step got a closure."""
        return any(self.args.get(name) is not None for name in ("closure", "0"))


class StateEvent(EventBase, frozen=True, kw_only=True, tag="state"):
    """A tracked variable appeared, changed or vanished, as found at the end of span ``after``.

    Attributes:
        name: ``Net.fc1.weight``; a gradient has its parameter's name, optimizer state
            ``<parameter>/exp_avg``.
        role: parameter, gradient, buffer, optimizer_state.
        change: "new" first seen; "content" bits differ; "set" a gradient appeared where none was;
            "cleared" it became None; "replaced" another object has the name; "flags" only
            requires_grad, dtype or shape differ; "gone"; "unknown" the recorded view cannot show
            it.
        summary: None when there is no tensor now.
        requires_grad: of a parameter; not recorded for others.
        identity: of the object, unique in the process; not recorded for a gradient, which has the
        name of its parameter.
        storage: of its memory (equal for tied tensors).
        after: id of the call at whose end the variable was scanned.
        module_class: dotted class of the owning module.
        owner: id of the optimizer whose state it is.
    """

    kind: ClassVar[Literal["state"]] = "state"
    name: str
    role: str = "parameter"
    change: str = "content"
    summary: TensorSummary | None = None
    requires_grad: bool = False
    identity: Int64 = 0
    storage: Int64 = 0
    after: Int64 | None = None
    module_class: str | None = None
    owner: str | None = None


class ParamGroup(Record, frozen=True):
    """One group of an optimizer.

    Attributes:
        hyper: hyper-parameters of the group.
        params: names of the parameters it holds.
        ids: their identities, in the same order.
    """

    hyper: Mapping[str, Value]
    params: Sequence[str]
    ids: Sequence[Int64]


class OptimizerEvent(EventBase, frozen=True, kw_only=True, tag="optimizer"):
    """An optimizer was created, or its parameters or settings changed.

    Attributes:
        change: "created"; "groups" when membership or a hyper-parameter other than lr changed.
        id: ``opt0``, in order of creation.
        cls: dotted class name.
        groups: hyper-parameters, names and identities of the parameters, per group.
        where: ``file:line`` of the user's code that made it.
    """

    kind: ClassVar[Literal["optimizer"]] = "optimizer"
    change: str = "created"
    id: str
    cls: str = ""
    groups: tuple[ParamGroup, ...] = ()
    where: str | None = None


class StepEvent(EventBase, frozen=True, kw_only=True, tag="step"):
    """The end of a step.

    Attributes:
        counters: calls since the step began (batch, forward, backward, zero_grad, optimizer_step,
            scaler_step).
        lr: optimizer id -> learning rate per group when the optimizer stepped, or at the end of the
        step if it did not. Without optimizers whose rate is not a finite number, or is on a device.
        modes: root module name -> training flag at the end.
        recorded: false for a step that sampling skipped. Its stage is ``train``, its record may
            come some steps late, and ``t`` may be when its last optimizer stepped.
        complete: false for the last step when the run ended inside it.
        digests: one digest for each of `PHASES`, of the names and fingerprints that were recorded
            of it in this step. Two steps with equal digests are equal. Only in the view "diff", and
            without phases of which nothing was recorded. That of ``rng`` leaves out the state when
            the recording begins, and generators of Python and numpy that no one has seeded.
    """

    kind: ClassVar[Literal["step"]] = "step"
    counters: Mapping[str, Int64] = {}
    lr: Mapping[str, Sequence[float | int]] = {}
    modes: Mapping[str, bool] = {}
    recorded: bool = True
    complete: bool = True
    digests: Mapping[str, str] = {}

    @property
    def is_gap(self) -> bool:
        """Whether it represents lost events, see `MarkEvent.gap`."""
        return not (self.recorded or self.complete)

    @property
    def skipped(self) -> StepEvent:
        """The same step as if sampling had skipped it."""
        return StepEvent(*self.header, counters=self.counters, recorded=False)


class StageEvent(EventBase, frozen=True, kw_only=True, tag="stage"):
    """The stage changed; ``stage`` is the new one.

    Attributes:
        previous: the stage before.
    """

    kind: ClassVar[Literal["stage"]] = "stage"
    previous: str = "init"


class BatchEvent(EventBase, frozen=True, kw_only=True, tag="batch"):
    """A batch reached the loop.

    Attributes:
        loader: name of the loader, in order of first use.
        index: number of the batch in its epoch, from 0.
        epoch: how often this loader was iterated before.
        leaves: path -> summary of each tensor in the batch.
        samples: one fingerprint a row of the first leaf, of the first 64 rows.
        rows: path -> keyed fingerprints of up to 32 rows of a leaf, see schema/rows.py. In some
            training steps, and in the first 512 batches of evaluations.
        dataset: the data that it is read from: equal where the arrays behind it are the same.
        part_of: of the dataset, the one that it takes samples from, as a ``Subset`` does; empty if
            no loader has read that one before.
        sampler: dotted class name of the sampler.
        sampler_epoch: the epoch that the sampler was told when the loader was iterated, as by
            ``set_epoch``; None where it knows of none.
        workers: number of worker processes.
        weights: how many a weighted sampler has; 0 for others.
        dataset_size: how many samples the dataset has, if torch draws from all of it.
        dropped: how many of them each epoch leaves out at its end, as ``drop_last`` does.
        replicas: the ranks that a distributed sampler divides it among; 0 for others.
        indices: the first of what the sampler drew for this batch, indices into the dataset; empty
            if it draws none.
        drawn: how many it drew; 0 if not known.
        tokens: facts about a batch of tokens: ``padding`` share of positions that the attention
            mask leaves out, ``left_padded``, ``token_labels`` if labels are tokens of the text,
            ``resets`` rows in which positions go back,
            ``lost_end`` the id that rows end with and are padded with if only it is left out of the
            labels, ``padding_label`` the label of nearly all padding if a loss would count it and
            labels are tokens, ``unknown`` share of tokens that are the unknown one,
            ``attended_padding`` rows that begin or end with padding ids that the attention mask
            attends to.
    """

    kind: ClassVar[Literal["batch"]] = "batch"
    loader: str = ""
    index: Int64 = 0
    epoch: Int64 = 0
    leaves: Mapping[str, Value] = {}
    samples: Sequence[str] = ()
    rows: Mapping[str, str] = {}
    dataset: str = ""
    part_of: str = ""
    sampler: str | None = None
    sampler_epoch: Int64 | None = None
    workers: Int64 = 0
    weights: Int64 = 0
    dataset_size: Int64 = 0
    dropped: Int64 = 0
    replicas: Int64 = 0
    indices: Sequence[Int64] = ()
    drawn: Int64 = 0
    tokens: Mapping[str, Value] = {}


class RngEvent(EventBase, frozen=True, kw_only=True, tag="rng"):
    """A random generator was seeded, or its state looked at.

    Attributes:
        source: python, numpy, torch, cuda.
        change: "seed", "state".
        fingerprint: of the generator's state.
        seed: the seed it was given.
        where: ``file:line`` of the user's code that gives the seed.
        moment: where in the program a state was taken, one of `MOMENTS`; empty at the end of a step
            and after a seed, unless the view is "diff".
        state: base64 of the bytes of the state (schema/comparison/generator_states.py); empty if
            they were not kept.
    """

    kind: ClassVar[Literal["rng"]] = "rng"
    source: str = "torch"
    change: str = "state"
    fingerprint: str | None = None
    seed: int | None = None
    where: str | None = None
    moment: str = ""
    state: str = ""

    @property
    def is_step_end(self) -> bool:
        """Whether it is the state at the end of a step, which every recording has."""
        return self.change == "state" and self.moment in ("", "step")


class CollectiveEvent(EventBase, frozen=True, kw_only=True, tag="collective"):
    """A torch.distributed call.

    Attributes:
        op: name of the operation, ``all_reduce``.
        group: name of the process group.
        number: of this call in this process and group, from 0.
        shape: of the first tensor.
        dtype: of the first tensor.
        before: fingerprint of the first tensor before the call.
        after: fingerprint of the first tensor after it.
        variable: parameter whose data or gradient the first tensor is.
        uneven: whether ranks may give different shapes (all_to_all with sizes of its parts).
        peer: of send and recv without a tag, the rank at the other end.
        pending: whether it returned before it was done, as asynchronous ones do.
        raised: class name of what it raised.
        where: ``file:line`` of the user's code.
    """

    kind: ClassVar[Literal["collective"]] = "collective"
    op: str = ""
    group: str = "world"
    number: Int64 = 0
    shape: Sequence[Int64] | None = None
    dtype: str | None = None
    before: str | None = None
    after: str | None = None
    variable: str | None = None
    uneven: bool = False
    peer: Int64 | None = None
    pending: bool = False
    raised: str | None = None
    where: str | None = None


class CheckpointEvent(EventBase, frozen=True, kw_only=True, tag="checkpoint"):
    """State was saved or loaded.

    Attributes:
        op: save, load, load_state_dict.
        target: whose state, ``Net`` or ``opt0``.
        path: of the file.
        missing: keys that were expected and not given.
        unexpected: keys that were given and not expected.
        changed: how many values of a model, an optimizer or a scheduler a load changed; None if
            unknown. 0 where a state is loaded into what it was taken from.
        entries: number of keys in the state.
        owner: id of the optimizer or scheduler's optimizer whose state is loaded.
        matched: how many given keys are those of the target; None if unknown.
        shared: how many given tensors are the target's own, not copies.
        made: line that called state_dict() for a state with tensors of the target's own; None if
            unknown.
        is_stale: whether such a state was written to between state_dict() and its load; None if
            unknown.
        untied: names that shared one tensor before a load and do not after it.
        values: fingerprints of the parameters of a model after a load, by name; of a save, in the
            view "diff", of all tensors in it, and its numbers. Of the first ones where there are
            very many.
        parts: of a file, its first keys: ``{"kind": "optimizer", "params": 4, "lr": [0.1]}``; kind
            is model, optimizer, scheduler, scaler or rng; of the state of an optimizer, scheduler
            or scaler itself its kind is the key.
        numbers: of a file, whole numbers among its first keys: ``{"epoch": 3}``.
        where: ``file:line`` of the user's code.
    """

    kind: ClassVar[Literal["checkpoint"]] = "checkpoint"
    op: str = ""
    target: str | None = None
    path: str | None = None
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    changed: Int64 | None = None
    entries: Int64 | None = None
    owner: str | None = None
    matched: Int64 | None = None
    shared: Int64 = 0
    made: str | None = None
    is_stale: bool | None = None
    untied: Sequence[str] = ()
    values: Mapping[str, Value] = {}
    parts: Mapping[str, Value] = {}
    numbers: Mapping[str, Int64] = {}
    where: str | None = None


class WarningEvent(EventBase, frozen=True, kw_only=True, tag="warning"):
    """A Python warning raised during the run, or one that a library logged.

    Attributes:
        category: class name; of a record of a logger its level, such as ``WARNING``.
        text: the message.
        where: ``file:line`` it points to.
        logger: name of the logger; empty for warnings of Python.
        caller: ``file:line`` of the nearest code outside installed packages, if ``where`` is inside
            one.
    """

    kind: ClassVar[Literal["warning"]] = "warning"
    category: str = ""
    text: str = ""
    where: str | None = None
    logger: str = ""
    caller: str | None = None


class ChecksumEvent(EventBase, frozen=True, kw_only=True, tag="checksum"):
    """The content of a tensor before an optimizer stepped, or of other state that it depends on.

    Attributes:
        group: one of `traincheck.schema.checksums.GROUPS`; "gradient" is that of the optimizer,
            "local_gradient" that of this rank before DDP reduces it.
        name: as of states; of a batch its path; of a generator torch, torch.cuda, numpy or python.
        owner: id of the optimizer, or name of the loader.
        summary: dtype, shape and fingerprint; None for values that are not tensors.
        numbers: of all elements, by name (schema/checksums.py); not finite ones are text.
        data: values that are not tensors; of a batch its ``index`` in the epoch.
    """

    kind: ClassVar[Literal["checksum"]] = "checksum"
    group: str
    name: str = ""
    owner: str | None = None
    summary: TensorSummary | None = None
    numbers: Mapping[str, Value] = {}
    data: Mapping[str, Value] = {}


class ProfileEvent(EventBase, frozen=True, kw_only=True, tag="profile"):
    """The layers of a profiled step, written when it ends.

    Attributes:
        layers: one object for each module, in the order of registration: its ``path``, ``class``,
            calls, shapes, FLOPs, times in nanoseconds, retained bytes and parameters.
        phases: nanoseconds of the step by phase (forward, backward, recompute, optimizer, loader,
            outside), and of the recording itself (overhead).
        clock: "cpu", or "cuda" for events on the stream of the device.
        memory: bytes by kind (parameters, buffers, gradients, states, retained), and the peak.
        origin: the first NaN or infinity that spread: its phase, module, operation and line; None
            if there is none.
        facts: device, dtypes, threads, and shapes of the inputs of the outermost module.
        uncounted: operators without a formula for their FLOPs, and how often they ran.
        unseen: parts of the step that could not be observed, by reason, and how often.
        complete: false if the run ended inside the step.
    """

    kind: ClassVar[Literal["profile"]] = "profile"
    layers: Sequence[Mapping[str, Value]] = ()
    phases: Mapping[str, Int64] = {}
    clock: str = "cpu"
    memory: Mapping[str, Value] = {}
    origin: Mapping[str, Value] | None = None
    facts: Mapping[str, Value] = {}
    uncounted: Mapping[str, Int64] = {}
    unseen: Mapping[str, Int64] = {}
    complete: bool = True


class MarkEvent(EventBase, frozen=True, kw_only=True, tag="mark"):
    """A note in the trace.

    Attributes:
        text: "process" (first in a file: versions, instruments), "process group", "collective
            entered" (with fields of its event, which follows when it comes back), "backward
            entered" (where several ranks train: a backward pass begins, which its call follows when
            it comes back; "tells": "backward computed" follows, too), "backward computed" (its
            graph is computed; what is left is the exchange of gradients), "process ended" (of a
            rank that was not killed: class name and line of the "exception" that ended it, if one
            did), "instrument disabled", "fault" (the first of its kind), "dropped" (events are
            missing here), "evaluation folded" (in the rest of the step, most forwards without grad
            are recorded without the calls within them), that of an observation
            (schema/observations), or what a user gave `traincheck.mark`; "user: " is put before one
            of these.
        data: what belongs to it.
    """

    kind: ClassVar[Literal["mark"]] = "mark"
    text: str = ""
    data: Mapping[str, Value] = {}

    @property
    def world_size(self) -> int | None:
        """How many ranks there are, where the mark tells it, and not more than there can be."""
        size = self.data.get("world_size")
        return size if isinstance(size, int) and 0 < size <= _MOST_RANKS else None

    @property
    def where(self) -> str | None:
        """``file:line`` of the user's code, where the mark tells it."""
        where = self.data.get("where")
        return where if isinstance(where, str) else None

    @property
    def gap(self) -> StepEvent:
        """The step event that checks get for lost events: an unrecorded, incomplete step."""
        return StepEvent(*self.header, recorded=False, complete=False)


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
    | MetricsEvent
    | ChecksumEvent
    | MarkEvent
    | ProfileEvent
    | ProbeEvent
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
    MetricsEvent,
    ChecksumEvent,
    MarkEvent,
    ProfileEvent,
    ProbeEvent,
)
KINDS = tuple(event_type.kind for event_type in EVENT_TYPES)
