"""Hand-made traces: a builder that writes the events a training process would. No torch.

Use the whole steps for a healthy or a broken loop, or the single moves for anything else::

    healthy = TraceBuilder().process().model("Net", MLP).optimizer().steps(5).build()
    broken = TraceBuilder().process().model("Net", MLP).optimizer().steps(2).steps(
        3, omit={"zero_grad"}
    ).build()
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    ParamGroup,
    RngEvent,
    StageEvent,
    StateEvent,
    StepEvent,
    WarningEvent,
)
from traincheck.schema.torch_api import Families
from traincheck.schema.values import TensorSummary, tensor_json

SCRIPT = "00010002000300040005"  # sketch of the lines of a script
OTHER_SCRIPT = {"argv0": "other.py", "source": "00060007000800090010"}

LINEAR = "torch.nn.modules.linear.Linear"
BATCH_NORM = "torch.nn.modules.batchnorm.BatchNorm1d"
ADAM = "torch.optim.adam.Adam"
SGD = "torch.optim.sgd.SGD"

MLP = {
    "fc1.weight": LINEAR,
    "fc1.bias": LINEAR,
    "fc2.weight": LINEAR,
    "fc2.bias": LINEAR,
}
MLP_BN = {**MLP, "bn.weight": BATCH_NORM, "bn.bias": BATCH_NORM}
BN_BUFFERS = {
    "bn.running_mean": BATCH_NORM,
    "bn.running_var": BATCH_NORM,
    "bn.num_batches_tracked": BATCH_NORM,
}
_STATE_OF = {ADAM: ("step", "exp_avg", "exp_avg_sq"), SGD: ()}
_FUNCTIONAL_OF = {
    LINEAR: "torch.nn.functional.linear",
    BATCH_NORM: "torch.nn.functional.batch_norm",
}
_TICK_NS = 1000  # between two events
_COUNTERS = ("batch", "forward", "backward", "zero_grad", "optimizer_step", "scaler_step")


@dataclass
class Variable:
    name: str
    module_class: str
    identity: int
    trainable: bool = True
    has_grad: bool = False


@dataclass
class Model:
    name: str
    cls: str
    parameters: dict[str, Variable] = field(default_factory=dict)
    buffers: dict[str, Variable] = field(default_factory=dict)
    training: bool = True

    def modules(self) -> dict[str, str]:
        """Module path -> class of the modules that own a variable, in order of registration."""
        owners = itertools.chain(self.parameters.values(), self.buffers.values())
        return {v.name.rsplit(".", 1)[0]: v.module_class for v in owners}


@dataclass
class Optimizer:
    id: str
    cls: str
    names: list[str]
    identities: list[int]
    hyper: dict[str, Any]
    state_of: set[str] = field(default_factory=set)


class TraceBuilder:
    """Writes the events of one process' main thread, in the order collection would.

    Variables are named by their full name, ``Net.fc1.weight``. Every move returns the builder.

    Attributes:
        events: those written so far.
        step_number: of the present step, from 0.
        in_step: a step has begun, and its StepEvent is still to come.
        counters: how often what happened in the present step; `count` adds to them.
        now_ns: time of the last event.
        models, optimizers: by name, and by id (``opt0``).
        stage: the present one, ``init`` before the first step.
    """

    def __init__(
        self, *, rank: int = 0, pid: int | None = None, thread: int = 0, worker: bool = False
    ) -> None:
        self.rank = rank
        self.pid = 1000 + rank if pid is None else pid
        self.stream = f"p{self.pid}-t{thread}"
        self.models: dict[str, Model] = {}
        self.optimizers: dict[str, Optimizer] = {}
        self.stage = "init"
        self._worker = worker
        self.step_number = 0
        self.in_step = False
        self.events: list[Event] = []
        self._seq = itertools.count()
        self.now_ns = 1_000_000_000 + rank * 137
        self._spans = itertools.count(1)
        self._identity = itertools.count(140_000_000_000 + rank * 10_000_000, 16)
        self._content = itertools.count(1)
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self._parents: list[int] = []

    # --- the run -----------------------------------------------------------------------------

    def process(self, **data: Any) -> TraceBuilder:
        """The mark that begins every file."""
        facts = {
            "pid": self.pid,
            "rank": self.rank,
            "python": "3.11.7",
            "torch": "2.13.0",
            "traincheck": "0.1.0",
            "argv0": "train.py",
            "source": SCRIPT,
            "parent_pid": 1,
            "level": "default",
            "instruments": {"modules": "on", "optimizers": "on"},
            "recorded": None,
        }
        return self.mark("process", **{**facts, **data})

    def build(self, *, last_complete: bool = True) -> list[Event]:
        """All events. Ends the open step first, as unfinished with ``last_complete=False``."""
        if self.in_step:
            self.end_step(complete=last_complete)
        return list(self.events)

    def take(self) -> list[Event]:
        """The events since the last ``take``; for traces that are too long for memory."""
        taken, self.events = self.events, []
        return taken

    def mark(self, text: str, **data: Any) -> TraceBuilder:
        return self.add(MarkEvent, text=text, data=data)

    def warning(self, category: str, text: str, where: str = "train.py:7") -> TraceBuilder:
        return self.add(WarningEvent, category=category, text=text, where=where)

    def seed(self, source: str = "torch", seed: int = 0) -> TraceBuilder:
        return self.add(
            RngEvent, source=source, change="seed", seed=seed, fingerprint=self.new_fingerprint()
        )

    def model(
        self,
        name: str = "Net",
        parameters: Mapping[str, str] = MLP,
        *,
        buffers: Mapping[str, str] | None = None,
        cls: str | None = None,
        frozen: Collection[str] = (),
    ) -> TraceBuilder:
        """A model is discovered. parameters, buffers: path below it -> class of its module."""
        model = self.models[name] = Model(name, cls or f"__main__.{name}")
        for path, module_class in parameters.items():
            full = f"{name}.{path}"
            variable = Variable(full, module_class, next(self._identity), full not in frozen)
            model.parameters[full] = variable
            self.state(variable, "parameter", "new")
        for path, module_class in (buffers or {}).items():
            variable = Variable(f"{name}.{path}", module_class, next(self._identity), False)
            model.buffers[variable.name] = variable
            self.state(variable, "buffer", "new")
        return self

    def optimizer(
        self,
        cls: str = ADAM,
        names: Iterable[str] | None = None,
        *,
        lr: float = 1e-3,
        foreign: Mapping[str, int] | None = None,
        **hyper: Any,
    ) -> TraceBuilder:
        """An optimizer over ``names`` (default: every parameter known), in one group.

        foreign: further parameters it holds, name -> identity (objects that no model owns).
        """
        known = self.parameters()
        held = list(known) if names is None else list(names)
        optimizer = Optimizer(
            id=f"opt{len(self.optimizers)}",
            cls=cls,
            names=held + list(foreign or ()),
            identities=[known[n].identity for n in held] + list((foreign or {}).values()),
            hyper={"lr": lr, "weight_decay": 0, **hyper},
        )
        self.optimizers[optimizer.id] = optimizer
        return self._optimizer_event(optimizer, "created")

    def change_groups(self, optimizer: str = "opt0", **hyper: Any) -> TraceBuilder:
        """Hyper-parameters of an optimizer change."""
        held = self.optimizers[optimizer]
        held.hyper.update(hyper)
        return self._optimizer_event(held, "groups")

    def replace(self, *names: str) -> TraceBuilder:
        """Other objects take the names of these parameters, as when a head is replaced."""
        for name in names:
            variable = self.parameters()[name]
            variable.identity, variable.has_grad = next(self._identity), False
            self.state(variable, "parameter", "replaced")
        return self

    def write(self, *names: str) -> TraceBuilder:
        """Something other than an optimizer writes to these parameters."""
        for name in names:
            self.state(self.parameters()[name], "parameter", "content")
        return self

    def load(self, target: str, **fields: Any) -> TraceBuilder:
        """State is loaded into a module."""
        return self.add(CheckpointEvent, op="load_state_dict", target=target, **fields)

    def freeze(self, *names: str, frozen: bool = True) -> TraceBuilder:
        """``requires_grad`` of these parameters is switched off (or on again)."""
        for name in names:
            variable = self.parameters()[name]
            variable.trainable = not frozen
            self.state(variable, "parameter", "flags")
        return self

    # --- whole steps -------------------------------------------------------------------------

    def steps(self, count: int, *, eval_every: int | None = None, **options: Any) -> TraceBuilder:
        """``count`` steps, each as ``step``; evaluates after every ``eval_every`` steps."""
        for number in range(1, count + 1):
            self.step(**options)
            if eval_every and number % eval_every == 0:
                self.evaluate()
        return self

    def step(
        self,
        *,
        style: str = "A",
        omit: Collection[str] = (),
        accumulate: int = 1,
        no_gradient: Collection[str] = (),
        not_updated: Collection[str] = (),
        set_to_none: bool = True,
        scheduler: bool = False,
    ) -> TraceBuilder:
        """One step over all models and optimizers, healthy unless told otherwise.

        style: "A" zero_grad first, "B" zero_grad last, "C" optimizer steps before backward (wrong).
        omit: any of batch, zero_grad, forward, backward, optimizer_step, state (optimizer state
        stays as it is), buffers (they stay as they are). no_gradient, not_updated: full names.
        """
        moves: dict[str, Callable[[], Any]] = {
            "batch": self.batch,
            "zero_grad": lambda: [
                self.zero_grad(optimizer, set_to_none=set_to_none) for optimizer in self.optimizers
            ],
            "forward": lambda: self.forward(buffers="buffers" not in omit),
            "backward": lambda: self.backward(skip=no_gradient),
            "optimizer_step": lambda: [
                self.optimizer_step(optimizer, skip=not_updated, state="state" not in omit)
                for optimizer in self.optimizers
            ],
            "scheduler": self.scheduler_step,
        }
        last = ["forward", "backward", "optimizer_step"]
        if style == "C":
            last = ["forward", "optimizer_step", "backward"]
        plan = ["batch", *["forward", "backward", "batch"] * (accumulate - 1), *last]
        plan += ["scheduler"] * scheduler
        plan.insert(len(plan) if style == "B" else 1, "zero_grad")
        self.begin_step()
        for move in plan:
            if move not in omit:
                moves[move]()
        return self

    def skipped_steps(self, count: int) -> TraceBuilder:
        """Steps that sampling (``--every``) left out: only their ends are in the trace."""
        for _ in range(count):
            self.begin_step()
            self.end_step(recorded=False)
        return self

    def evaluate(self, batches: int = 1, *, back_to_train: bool = True) -> TraceBuilder:
        """eval(), forwards without gradients, train() unless ``back_to_train`` is false."""
        self.train(False)
        for _ in range(batches):
            self.batch(loader="loader1")
            self.forward(grad=False)
        return self.train(True) if back_to_train else self

    # --- single moves ------------------------------------------------------------------------

    def begin_step(self) -> TraceBuilder:
        """Signs of the next iteration: ends the open step, and the stage is train again."""
        if self.in_step:
            self.end_step()
        self.set_stage("train")
        self.in_step = True
        return self

    def end_step(self, *, recorded: bool = True, complete: bool = True) -> TraceBuilder:
        self.add(
            StepEvent,
            counters=dict(self.counters),
            lr={o.id: [o.hyper["lr"]] for o in self.optimizers.values()},
            modes={m.name: m.training for m in self.models.values()},
            recorded=recorded,
            complete=complete,
        )
        self.counters = dict.fromkeys(_COUNTERS, 0)
        self.in_step = False
        self.step_number += 1
        return self

    def batch(self, loader: str = "loader0", size: int = 64, **fields: Any) -> TraceBuilder:
        """A batch reaches the loop. fields: of the BatchEvent, in place of a healthy one's."""
        self.counters["batch"] += 1
        leaves = {"0": self._tensor((size, 10)), "1": self._tensor((size,), "int64")}
        healthy = {
            "loader": loader,
            "index": self.step_number,
            "leaves": leaves,
            "samples": [self.new_fingerprint() for _ in range(3)],
            "sampler": "torch.utils.data.sampler.RandomSampler",
        }
        return self.add(BatchEvent, **{**healthy, **fields})

    def zero_grad(self, optimizer: str = "opt0", *, set_to_none: bool = True) -> TraceBuilder:
        self.counters["zero_grad"] += 1
        held = self.optimizers[optimizer]
        span = self.new_span()
        for variable in self.held_by(held):
            if not variable.has_grad:
                continue
            if set_to_none:
                variable.has_grad = False
                self.state(variable, "gradient", "cleared", after=span)
            else:
                self.state(variable, "gradient", "content", after=span, zero=True)
        return self.call(
            f"{held.cls}.zero_grad",
            span=span,
            family=Families.ZERO_GRAD,
            args={"set_to_none": set_to_none},
            owner=held.id,
            where="train.py:80",
        )

    def forward(
        self,
        model: str | None = None,
        *,
        grad: bool = True,
        buffers: bool = True,
        batch_size: int = 64,
    ) -> TraceBuilder:
        """The root module call of one model (default: all), its leaves in it, then the loss."""
        if not grad:
            self.set_stage("eval")
        for held in self.models.values() if model is None else (self.models[model],):
            self.root_forward(held, grad, buffers, batch_size)
            args = {"input": self._tensor((batch_size, 10)), "reduction": "mean"}
            self.call("torch.nn.functional.cross_entropy", args=args, grad_enabled=grad)
        return self

    def backward(
        self, only: Collection[str] | None = None, *, skip: Collection[str] = ()
    ) -> TraceBuilder:
        """Gradients of all trainable parameters (or of ``only``) arrive, except for ``skip``."""
        self.counters["backward"] += 1
        span = self.new_span()
        for name, variable in self.parameters().items():
            if variable.trainable and name not in skip and (only is None or name in only):
                change = "content" if variable.has_grad else "set"
                variable.has_grad = True
                self.state(variable, "gradient", change, after=span, zero=False)
        loss = tensor_json(
            TensorSummary("float32", (), value=0.5 + 0.001 * self.step_number, requires_grad=True)
        )
        return self.call(
            Families.BACKWARD, span=span, args={"tensors": [loss]}, where="train.py:84"
        )

    def optimizer_step(
        self, optimizer: str = "opt0", *, skip: Collection[str] = (), state: bool = True
    ) -> TraceBuilder:
        """Parameters with a gradient change, except ``skip``; optimizer state too if ``state``."""
        self.counters["optimizer_step"] += 1
        held = self.optimizers[optimizer]
        span = self.new_span()
        for variable in self.held_by(held):
            if not variable.has_grad or variable.name in skip:
                continue
            self.state(variable, "parameter", "content", after=span)
            if state:
                self._optimizer_state(held, variable, span)
        return self.call(
            f"{held.cls}.step",
            span=span,
            family=Families.OPTIMIZER_STEP,
            owner=held.id,
            where="train.py:88",
        )

    def scheduler_step(self, gamma: float = 0.9, optimizer: str = "opt0") -> TraceBuilder:
        self.optimizers[optimizer].hyper["lr"] *= gamma
        return self.call(
            "torch.optim.lr_scheduler.StepLR.step",
            family=Families.SCHEDULER_STEP,
            owner="sched0",
            where="train.py:90",
        )

    def train(self, mode: bool = True, model: str | None = None) -> TraceBuilder:
        """``model.train()``, or ``model.eval()`` when ``mode`` is false, on one model or all."""
        for held in self.models.values() if model is None else (self.models[model],):
            held.training = mode
            self.call(
                f"torch.nn.Module.{'train' if mode else 'eval'}",
                args={"mode": True} if mode else {},
                module=held.name,
                training=mode,
                where="train.py:60",
            )
        return self

    def call(self, api: str, *, span: int | None = None, **fields: Any) -> TraceBuilder:
        """Any call, as CallEvent fields; its parent is the enclosing call of this builder."""
        fields.setdefault("parent", self._parents[-1] if self._parents else None)
        fields.setdefault("start_ns", self.now_ns + _TICK_NS // 2)
        return self.add(
            CallEvent, api=api, span=self.new_span() if span is None else span, **fields
        )

    def state(
        self,
        variable: Variable | str,
        role: str,
        change: str,
        *,
        after: int | None = None,
        zero: bool | None = None,
    ) -> TraceBuilder:
        """A variable, or its gradient, is seen to have changed; ``after``: span of the call."""
        if isinstance(variable, str):
            variable = self.parameters()[variable]
        is_trained = variable.trainable and role == "parameter"
        summary = TensorSummary(
            "float32",
            (32, 10) if variable.name.endswith("weight") else (32,),
            requires_grad=is_trained,
            fingerprint=self.new_fingerprint(),
            zero=zero,
        )
        return self.add(
            StateEvent,
            name=variable.name,
            role=role,
            change=change,
            summary=None if change in ("cleared", "gone") else summary,
            requires_grad=is_trained,
            identity=0 if role == "gradient" else variable.identity,
            storage=0 if role == "gradient" else variable.identity + 8,
            after=after,
            module_class=variable.module_class,
        )

    def set_stage(self, stage: str) -> TraceBuilder:
        """The run goes into another stage; nothing is written if it is in it."""
        if stage != self.stage:
            previous, self.stage = self.stage, stage
            self.add(StageEvent, previous=previous)
        return self

    # --- what moves are made of --------------------------------------------------------------

    def add(self, event_type: Any, **fields: Any) -> TraceBuilder:
        """Any event, as its fields beside the header."""
        step = None if self._worker else self.step_number
        self.now_ns += _TICK_NS
        header = (next(self._seq), self.now_ns, step, self.stage, self.rank, self.stream)
        self.events.append(event_type(*header, **fields))
        return self

    def edit(self, event: Event, **changes: Any) -> TraceBuilder:
        """One event of the trace gets other fields."""
        index = next(i for i, one in enumerate(self.events) if one is event)
        self.events[index] = event.replace(**changes)
        return self

    def count(self, **calls: int) -> TraceBuilder:
        """The present step counts so many calls more: ``count(backward=1)``."""
        for name, more in calls.items():
            self.counters[name] += more
        return self

    def new_span(self) -> int:
        """The number of another call."""
        return next(self._spans)

    def new_fingerprint(self) -> str:
        """The digest of content that was never there before."""
        return f"xxh3:{next(self._content) * 2_654_435_761 + self.rank:032x}"

    @contextmanager
    def inside(self, span: int) -> Iterator[None]:
        """Calls in this block are within the call of this number."""
        self._parents.append(span)
        yield
        self._parents.pop()

    def parameters(self) -> dict[str, Variable]:
        """The parameters of all models, by full name."""
        return {n: v for model in self.models.values() for n, v in model.parameters.items()}

    def held_by(self, optimizer: Optimizer) -> Iterator[Variable]:
        """The variables whose objects the optimizer holds: a replaced one is not among them."""
        for variable in self.parameters().values():
            if variable.identity in optimizer.identities:
                yield variable

    # --- inside ------------------------------------------------------------------------------

    def _tensor(self, shape: Sequence[int], dtype: str = "float32") -> dict[str, Any]:
        return tensor_json(TensorSummary(dtype, tuple(shape)))

    def _optimizer_state(self, optimizer: Optimizer, variable: Variable, span: int) -> None:
        change = "content" if variable.name in optimizer.state_of else "new"
        optimizer.state_of.add(variable.name)
        for key in _STATE_OF.get(optimizer.cls, ()):
            scalar = key == "step"
            self.add(
                StateEvent,
                name=f"{variable.name}/{key}",
                role="optimizer_state",
                change=change,
                summary=TensorSummary(
                    "float32", () if scalar else (32,), fingerprint=self.new_fingerprint()
                ),
                identity=variable.identity + 1,
                after=span,
                module_class=variable.module_class,
                owner=optimizer.id,
            )

    def _optimizer_event(self, optimizer: Optimizer, change: str) -> TraceBuilder:
        group = ParamGroup(dict(optimizer.hyper), optimizer.names, optimizer.identities)
        return self.add(
            OptimizerEvent,
            change=change,
            id=optimizer.id,
            cls=optimizer.cls,
            groups=(group,),
            where="train.py:40",
        )

    def root_forward(self, model: Model, grad: bool, buffers: bool, batch_size: int) -> None:
        if grad:
            self.counters["forward"] += 1
        common = {"training": model.training, "grad_enabled": grad, "family": Families.MODULE}
        args = {"0": self._tensor((batch_size, 10))}
        root = self.new_span()
        self._parents.append(root)
        for path, cls in model.modules().items():
            leaf = self.new_span()
            if cls in _FUNCTIONAL_OF:
                where = path if cls == BATCH_NORM else None
                self.call(
                    _FUNCTIONAL_OF[cls], parent=leaf, args=args, grad_enabled=grad, module=where
                )
            self.call(f"{cls}.forward", span=leaf, module=path, args=args, **common)
        self._parents.pop()
        if grad and buffers and model.training:
            for buffer in model.buffers.values():
                self.state(buffer, "buffer", "content", after=root)
        result = {**self._tensor((batch_size, 10)), "requires_grad": grad}
        self.call(
            f"{model.cls}.forward",
            span=root,
            module=model.name,
            root=True,
            args=args,
            result=result,
            **common,
        )


def healthy_run(steps: int = 5, *, optimizer: str = ADAM, **options: Any) -> list[Event]:
    """A training loop without a fault: an MLP, one optimizer, ``steps`` steps."""
    builder = TraceBuilder().process().seed().model("Net", MLP).optimizer(optimizer).train()
    return builder.steps(steps, **options).build()


def emptied(events: Iterable[Event], names: Collection[str]) -> list[Event]:
    """The events, with these variables empty, as FSDP leaves some on a rank."""
    return [
        event.replace(summary=event.summary.replace(shape=(0,)))
        if isinstance(event, StateEvent) and event.name in names and event.summary is not None
        else event
        for event in events
    ]
