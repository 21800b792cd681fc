"""What a program sets once and keeps: arguments, modes, hyper-parameters, numbers of samples.

Each class tells facts about a run; whether they are as they should be is for *constant* to say.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from traincheck.facts.resumptions import brings_back
from traincheck.facts.steps import is_judged
from traincheck.relations.phrasing import is_library
from traincheck.relations.readings.table import LOSSES
from traincheck.schema.claims import (
    MAX_MATCHED_ELEMENTS,
    MIN_MATCHED_ELEMENTS,
)
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    CheckpointEvent,
    Event,
    MarkEvent,
    OptimizerEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject
from traincheck.schema.observations.external_writes import ExternalWrites
from traincheck.schema.observations.reading import observed
from traincheck.schema.parameter_names import is_unowned
from traincheck.schema.torch_api import (
    ATTENTION,
    IGNORED_LABEL,
    LOSS_MODULES,
    MODAL,
    MULTI_HEAD,
    SOFTMAXES,
    TARGETED,
    Families,
)
from traincheck.schema.values import is_number, is_tensor, tensor_summary
from traincheck.schema.words import counted

ARGUMENTS, BATCH, BETWEEN, EQUAL, EVALUATED = "arguments", "batch", "between", "equal", "evaluated"
HYPER, KEPT, MODES, SAMPLES, USED = "hyper", "kept", "modes", "samples", "used"
KINDS = frozenset({ARGUMENTS, BATCH, BETWEEN, EQUAL, EVALUATED, HYPER, KEPT, MODES, SAMPLES, USED})
_MOST_FETCHED = 4096  # tensors of batches
_MOST_MASKED = 16  # batches may be fetched ahead
TENSORS = "tensors"  # among the arguments: the names of those that are tensors
CAUSAL = "is_causal"
ATTENTIONS = frozenset({ATTENTION, MULTI_HEAD})
_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"})  # for schedules to say
_CYCLES = "max_momentum"  # OneCycleLR leaves it where it moves momentum against the rate
_CYCLED = ("betas", "momentum")
_WHOLE = frozenset(
    {"axis", "dim", "groups", "ignore_index", "padding_idx"}
)  # numbers that mean one
_MODE_ARGUMENTS = frozenset({"train", "training"})
_PAIR = 2
_LOSSES = frozenset(LOSSES)
_HOLDERS = ("torch", "torch.Tensor", "torch.nn.functional")
# What modules call all the time, with arguments that their constructors were given.
_LAYERS = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "embedding", "gelu", "layer_norm", "linear", "relu",
        "rms_norm", "sigmoid", "silu", "tanh",
    )
)  # fmt: skip
_SOFTMAXES = SOFTMAXES | {f"{holder}.log_softmax" for holder in _HOLDERS}
_INSTEAD = _LOSSES | _SOFTMAXES | {MULTI_HEAD}
_FUNCTIONS = ("torch.nn.functional.", "torch.nn.utils.clip_grad", *sorted(_SOFTMAXES))


class Key(NamedTuple):
    """What facts are about: the calls of an API in one mode, an optimizer, the program."""

    kind: str
    name: str = ""
    training: bool | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """Values by name, as found at one event."""

    key: Key
    values: Mapping[str, Any]
    event: CallEvent | StepEvent | BatchEvent | MarkEvent
    subject: Subject = field(default_factory=Subject)


class Arguments:
    """Numbers that a function is given, and which of its arguments are tensors.

    wanted: functions that matter; None for all.
    """

    def __init__(self, wanted: Collection[str] | None) -> None:
        self._wanted = wanted

    def call(self, event: CallEvent) -> Fact | None:
        """What a call is given; None if it says nothing."""
        api = event.api
        if self._wanted is None:
            is_wanted = api.startswith(_FUNCTIONS) and api not in _LAYERS
        else:
            is_wanted = api in self._wanted
        if not is_wanted or event.exception is not None:
            return None
        training = event.training if api in MODAL else None
        key, subject = Key(ARGUMENTS, api, training), Subject(api=api, module=event.module)
        return Fact(key, _given(event, has_mode=training is not None), event, subject)


def _given(event: CallEvent, *, has_mode: bool) -> dict[str, Any]:
    values: dict[str, Any] = {}
    tensors = []
    for name, value in event.args.items():
        if isinstance(value, dict):
            if "shape" in value:
                tensors.append(_with_dims(name, value) if event.api in _LOSSES else name)
        elif isinstance(value, bool):
            if name in _MODE_ARGUMENTS and has_mode:
                values[name] = value
        elif isinstance(value, float) or (isinstance(value, int) and name in _WHOLE):
            values[name] = value
    if event.api == MULTI_HEAD:  # the rest is what its module was made with
        values, tensors = {}, [name for name in tensors if name == "attn_mask"]
    if tensors:
        values[TENSORS] = sorted(tensors)
    if event.api == ATTENTION and not is_masked(values) and _has_several(event.args.get("query")):
        values[CAUSAL] = event.args.get(CAUSAL) is True
    return values


def _with_dims(name: str, tensor: Mapping[str, Any]) -> str:
    """Arguments of a loss that differ in this are broadcast: ``input (2 dims)``."""
    return f"{name} ({counted(len(tensor['shape']), 'dim')})"


def _has_several(query: Any) -> bool:
    """Whether there are several positions: one alone, as with a cache, has nothing behind it."""
    return is_tensor(query) and len(query["shape"]) >= _PAIR and query["shape"][-2] > 1


def is_masked(values: Mapping[str, Any]) -> bool:
    """Whether attention was given a mask."""
    return "attn_mask" in values.get(TENSORS, ())


class Modes:
    """Whether each module is in training mode while the model around it trains."""

    def __init__(self) -> None:
        self._inside: list[CallEvent] = []  # of a root module that has not ended yet
        self._has_trained = False

    def inner(self, event: CallEvent) -> None:
        """A module was called within another one: told of when the outermost one ends."""
        result = tensor_summary(event.result)
        is_frozen = result is not None and not result.requires_grad  # it may well evaluate
        if event.grad_enabled and event.module is not None and not is_frozen:
            self._inside.append(event)

    def root(self, event: CallEvent) -> Fact | None:
        """The outermost one ended."""
        inside, self._inside = self._inside, []
        if not event.grad_enabled and event.training is not None:
            if event.training and not self._has_trained:
                return None  # a first look at shapes, say, and no evaluation
            name = event.module or event.api
            subject = Subject(module=event.module, api=Families.EVAL)
            return Fact(Key(EVALUATED, name), {name: event.training}, event, subject)
        if not event.training or not inside:
            return None
        values = {call.module or "": call.training for call in inside}
        return Fact(Key(MODES), values, event)

    def step(self, event: StepEvent) -> None:
        """No module call reaches over the end of a step."""
        self._inside.clear()
        self._has_trained |= is_judged(event)


def equal_arguments(event: CallEvent, left_out: Collection[str]) -> Fact | None:
    """Which arguments of a model hold the same numbers, as far as that is known.

    left_out: fingerprints of what says nothing: labels of which some are not to be learned.
    """
    prints = {
        name: value["fingerprint"]
        for name, value in event.args.items()
        if isinstance(value, dict) and value.get("fingerprint") not in {None, *left_out}
    }
    if len(prints) < _PAIR:
        return None
    values = {f"{a} and {b}": prints[a] == prints[b] for a, b in combinations(sorted(prints), 2)}
    subject = Subject(api=event.api, module=event.module)
    return Fact(Key(EQUAL, event.api), values, event, subject)


def masked_labels(event: BatchEvent) -> Iterator[str]:
    """Fingerprints of what holds the label that losses leave out."""
    for leaf in filter(is_tensor, event.leaves.values()):
        if leaf.get("fingerprint") and (leaf.get("stats") or {}).get("min") == IGNORED_LABEL:
            yield leaf["fingerprint"]


def leaves_of(event: BatchEvent) -> Fact | None:
    """Number of dims and dtype of each part of a batch; sizes are for users to choose."""
    values = {
        path: f"{leaf['dtype']} of {counted(len(leaf['shape']), 'dim')}"
        for path, leaf in event.leaves.items()
        if is_tensor(leaf)
    }
    return Fact(Key(BATCH, event.loader), values, event) if values else None


class Used:
    """Which parts of the batches of a step reach a model or a loss, where contents are known.

    A loop may fetch a batch ahead: those that a loader gave in the window before may come now. It
    may make something else of a batch, and its own loss: that a part reaches nothing is known only
    where a loss is seen, and where all that it and the models are given is of batches.
    """

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, set[str]]] = {}  # by loader and path
        self._before: dict[str, dict[str, set[str]]] = {}  # the same of its last window
        self._fetched: set[str] = set()  # of all loaders, so far
        self._given: set[str] = set()
        self._has_loss = False
        self._has_stepped = False

    def batch(self, event: BatchEvent) -> None:
        """A batch was fetched: after an update it is one of an evaluation."""
        keys = {
            path: leaf["fingerprint"]
            for path, leaf in event.leaves.items()
            if is_tensor(leaf) and leaf.get("fingerprint")
        }
        if len(self._fetched) > _MOST_FETCHED:
            self._fetched.clear()
        self._fetched.update(keys.values())
        if event.stage == "train" and not self._has_stepped:
            parts = self._parts.setdefault(event.loader, {})
            for path, key in keys.items():
                if _is_distinctive(event.leaves[path]):
                    parts.setdefault(path, set()).add(key)

    def call(self, event: CallEvent) -> None:
        """A model or a loss was called, or an optimizer has stepped."""
        self._has_stepped |= event.family == Families.OPTIMIZER_STEP
        if event.grad_enabled and (event.root or event.api in TARGETED):
            self._has_loss |= event.api in TARGETED
            for value in event.args.values():
                if isinstance(value, dict) and value.get("fingerprint"):
                    self._given.add(value["fingerprint"])

    def step(self, event: StepEvent) -> Iterator[Fact]:
        """A step ended; in most nothing is known of what was given."""
        parts, given = self._parts, self._given
        before = {loader: self._before.get(loader, {}) for loader in parts}
        is_told = self._has_loss and given <= self._fetched
        self._parts, self._given, self._has_loss, self._has_stepped = {}, set(), False, False
        self._before |= parts
        for loader, known in parts.items() if given and is_judged(event) else ():
            values = {
                path: True
                for path, keys in known.items()
                if not given.isdisjoint(keys | before[loader].get(path, set()))
            }
            if is_told:
                values |= dict.fromkeys(known.keys() - values.keys(), False)
            if values:
                yield Fact(Key(USED, loader), values, event)


def _is_distinctive(leaf: Mapping[str, Any]) -> bool:
    """Whether two tensors of batches like this one are alike by chance only."""
    stats = leaf.get("stats") or {}
    is_known = MIN_MATCHED_ELEMENTS <= prod(leaf["shape"]) <= MAX_MATCHED_ELEMENTS
    return is_known and stats.get("min") != stats.get("max")


class Looks:
    """Whether parameters are as their optimizer left them when it steps again."""

    def __init__(self) -> None:
        self._is_loaded = False  # since the last look

    def load(self, event: CheckpointEvent) -> None:
        """Something was saved or loaded."""
        self._is_loaded |= brings_back(event)

    def look(self, event: MarkEvent) -> Fact | None:
        """Which of them another one wrote to, if that is known."""
        found = observed(event, ExternalWrites)
        if found is None:
            return None
        owner = found.owner
        is_loaded, self._is_loaded = self._is_loaded, False
        if is_loaded:
            return None
        names = [name for name in found.names if not is_unowned(name)]
        subject = Subject(variable=names[0] if names else None, api=Families.OPTIMIZER_STEP)
        return Fact(Key(BETWEEN, owner), {owner: not names}, event, subject)


class Optimizers:
    """Hyper-parameters of each optimizer but for learning rates, at the end of each step."""

    def __init__(self) -> None:
        self._now: dict[str, OptimizerEvent] = {}
        self._first: dict[str, OptimizerEvent] = {}

    def optimizer(self, event: OptimizerEvent) -> None:
        """An optimizer was made or changed."""
        self._now[event.id] = event
        self._first.setdefault(event.id, event)

    def step(self, event: StepEvent) -> Iterator[Fact]:
        """What holds at the end of a step that trained."""
        for name, now in self._now.items():
            if name not in event.lr:
                continue
            # By position: groups that are added later are none the worse.
            was = [_hyper(group.hyper) for group in self._first[name].groups]
            is_ = [_hyper(group.hyper) for group in now.groups]
            subject = Subject(api=f"{now.cls}.__init__")
            yield Fact(Key(HYPER, f"{name} {now.cls}"), _by_name(is_[: len(was)]), event, subject)
            cycled = _CYCLED if any(_CYCLES in group for group in is_) else ()
            kept = {
                key: all(key not in b or a.get(key) == b[key] for a, b in zip(was, is_))
                for key in {key for group in was for key in group}.difference(cycled)
            }
            yield Fact(Key(KEPT), kept, event, subject)


def _hyper(hyper: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in hyper.items()
        if key not in _RATES
        and (is_number(value) or (isinstance(value, list) and all(map(is_number, value))))
    }


def _by_name(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A value for each group by name; one, if all are equal."""
    names = sorted({name for group in groups for name in group})
    found = {}
    for name in names:
        values = [group.get(name) for group in groups]
        found[name] = [values[0]] if all(value == values[0] for value in values) else values
    return found


class Samples:
    """Rows that each model is trained on in a step, as a multiple of those it began with.

    With these begins what two steps in a row have: a first one may hold a part of the next, where
    an optimizer is waited for that never steps, or be the short one at the end of an epoch.
    A step with more rows, and more forwards to a backward than these, may hold an iteration that
    was left before its end.
    """

    def __init__(self) -> None:
        self._now: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self._usual: dict[str, float] = {}  # forwards to a backward in these steps
        self._last: dict[str, int] = {}
        self._is_fed = False

    def batch(self, event: BatchEvent) -> None:
        """What is called before the first batch of a step belongs to the iteration before.

        As what a layer makes for the next one, after its own optimizer has stepped.
        """
        if event.stage == "train" and not self._is_fed:
            self._is_fed = True
            self._now.clear()
            self._calls.clear()

    def call(self, event: CallEvent) -> None:
        """A model was called from outside. Rows of what a loss is given may be tokens."""
        if not event.grad_enabled or event.api.startswith(LOSS_MODULES):
            return
        for value in event.args.values():
            if isinstance(value, dict) and value.get("shape"):
                self._now[event.module or event.api] += value["shape"][0]
                self._calls[event.module or event.api] += 1
                return

    def step(self, event: StepEvent) -> Iterator[Fact]:
        """How many there were in a step that trained."""
        backwards = max(1, event.counters.get("backward", 0))
        for module, count in self._now.items():
            often = self._calls[module] / backwards
            if self._last.get(module) == count:
                self._first.setdefault(module, count)
                self._usual.setdefault(module, often)
            self._last[module] = count
            first = self._first.get(module)
            if first and (count <= first or often <= self._usual[module]):
                ratio = count / first
                yield Fact(Key(SAMPLES, module), {module: ratio}, event, Subject(module=module))
        self.skip()

    def skip(self) -> None:
        """A step did not train, or not all of it is known."""
        self._now.clear()
        self._calls.clear()
        self._is_fed = False


class Facts:
    """All of them, each told of what concerns it."""

    def __init__(self, functions: Collection[str] | None = None) -> None:
        self._arguments = Arguments(functions)
        self._modes = Modes()
        self._optimizers = Optimizers()
        self._samples = Samples()
        self._masked: deque[str] = deque(maxlen=_MOST_MASKED)
        self._looks = Looks()
        self._used = Used()

    def observe(self, event: Event) -> Sequence[Fact]:
        """The facts that an event tells."""
        if isinstance(event, CallEvent):
            self._used.call(event)
            if event.family != Families.MODULE:
                fact = self._arguments.call(event)
                return () if fact is None else (fact,)
            if not event.root:
                self._modes.inner(event)
                return ()
            self._samples.call(event)
            facts = (self._modes.root(event), equal_arguments(event, self._masked))
            return [fact for fact in facts if fact is not None]
        if isinstance(event, BatchEvent):
            self._used.batch(event)
            self._samples.batch(event)
            self._masked.extend(masked_labels(event))
            fact = leaves_of(event)
            return () if fact is None else (fact,)
        if isinstance(event, MarkEvent):
            fact = self._looks.look(event)
            return () if fact is None else (fact,)
        if isinstance(event, OptimizerEvent):
            self._optimizers.optimizer(event)
        elif isinstance(event, CheckpointEvent):
            self._looks.load(event)
        elif isinstance(event, StepEvent):
            self._modes.step(event)
            used = list(self._used.step(event))
            if is_judged(event):
                return [*self._optimizers.step(event), *self._samples.step(event), *used]
            self._samples.skip()
        return ()


class Own:
    """Which functions a program calls itself, not by way of a library's modules.

    Modules that stand for one function, as of a loss, are called in its place.
    """

    def __init__(self) -> None:
        self._open: dict[int, set[str]] = defaultdict(set)  # parent -> what it calls
        self.apis: set[str] = set()

    def call(self, event: CallEvent) -> None:
        """A call ended, after all calls within it."""
        inside = self._open.pop(event.span, ())
        if event.family == Families.MODULE:
            self.apis.update(_INSTEAD.intersection(inside) if is_library(event.api) else inside)
        if event.parent is None:
            self.apis.add(event.api)
        else:
            self._open[event.parent].add(event.api)

    def step(self) -> None:
        """No call reaches over the end of a step."""
        self._open.clear()
