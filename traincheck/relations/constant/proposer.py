"""Propose what a program sets once and keeps: modes, optimizers, parts of batches."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod
from typing import Any

from traincheck.readings.reading import Key, Reading
from traincheck.readings.resumptions import brings_back
from traincheck.readings.steps import is_judged
from traincheck.relations.base import ProposerBase, asked
from traincheck.relations.constant.arguments import (
    ARGUMENTS,
    ATTENTIONS,
    BATCH,
    BETWEEN,
    EQUAL,
    EVALUATED,
    HYPER,
    IN_EVALUATION,
    KEPT,
    MODES,
    SAMPLES,
    TENSORS,
    USED,
    Arguments,
    UserCalls,
    equal_arguments,
    is_masked,
    word,
)
from traincheck.schema.claims import MAX_MATCHED_ELEMENTS, MIN_MATCHED_ELEMENTS, Hypothesis
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
from traincheck.schema.observations.gradients import ExternalWrites
from traincheck.schema.observations.reading import observed
from traincheck.schema.torch_api import IGNORED_LABEL, LOSS_MODULES, TARGETED, Families
from traincheck.schema.values import is_number, is_tensor, tensor_summary
from traincheck.schema.words import counted, is_unowned

_MOST_FETCHED = 4096  # tensors of batches


def masked_labels(event: BatchEvent) -> Iterator[str]:
    """Fingerprints of tensors that hold the label that losses ignore."""
    for leaf in filter(is_tensor, event.leaves.values()):
        if leaf.get("fingerprint") and (leaf.get("stats") or {}).get("min") == IGNORED_LABEL:
            yield leaf["fingerprint"]


def leaves_of(event: BatchEvent) -> Reading | None:
    """Number of dims and dtype of each part of a batch; sizes are settings."""
    values = {
        path: f"{leaf['dtype']} of {counted(len(leaf['shape']), 'dim')}"
        for path, leaf in event.leaves.items()
        if is_tensor(leaf)
    }
    return Reading(BATCH, event.loader, "", values, event) if values else None


class BatchUse:
    """Parts of the batches of a step that a model or a loss uses, where fingerprints are known.

    A loop may fetch a batch ahead, so batches of the window before count too. A loop may also
    transform a batch, or compute its own loss. A part is known to be unused only if a loss is
    recorded and all arguments of losses and models come from batches.
    """

    def __init__(self) -> None:
        self._parts: dict[str, dict[str, set[str]]] = {}  # by loader and path
        self._before: dict[str, dict[str, set[str]]] = {}  # the same of its last window
        self._fetched: set[str] = set()  # of all loaders, so far
        self._given: set[str] = set()
        self._has_loss = False
        self._has_stepped = False

    def batch(self, event: BatchEvent) -> None:
        """A batch was fetched. After an update it belongs to an evaluation."""
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

    def step(self, event: StepEvent) -> Iterator[Reading]:
        """A step ended. In most steps the arguments have no fingerprints."""
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
                yield Reading(USED, loader, "", values, event)


def _is_distinctive(leaf: Mapping[str, Any]) -> bool:
    """Whether two such tensors are equal only by chance."""
    stats = leaf.get("stats") or {}
    is_known = MIN_MATCHED_ELEMENTS <= prod(leaf["shape"]) <= MAX_MATCHED_ELEMENTS
    return is_known and stats.get("min") != stats.get("max")


class RowCounts:
    """Rows that each model is trained on in a step, as a multiple of the initial number.

    The initial number is the first that two steps in a row have. A single first step may hold a
    part of the next one, or be the short one at the end of an epoch. A step with more rows, and
    more forwards to a backward, may hold an iteration that was left before its end.
    """

    def __init__(self) -> None:
        self._now: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._first: dict[str, int] = {}
        self._usual: dict[str, float] = {}  # forwards to a backward in these steps
        self._last: dict[str, int] = {}
        self._is_fed = False

    def batch(self, event: BatchEvent) -> None:
        """Enter a batch. Calls before the first batch of a step belong to the iteration before.

        Such as the input that a layer computes for the next one after its optimizer stepped.
        """
        if event.stage == "train" and not self._is_fed:
            self._is_fed = True
            self._now.clear()
            self._calls.clear()

    def call(self, event: CallEvent) -> None:
        """A root module was called. Losses are left out: their rows may be tokens."""
        if not event.grad_enabled or event.api.startswith(LOSS_MODULES):
            return
        for value in event.args.values():
            if isinstance(value, dict) and value.get("shape"):
                self._now[event.module or event.api] += value["shape"][0]
                self._calls[event.module or event.api] += 1
                return

    def step(self, event: StepEvent) -> Iterator[Reading]:
        """The rows of a step that trained."""
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
                yield Reading(SAMPLES, module, "", {module: ratio}, event, Subject(module=module))
        self.skip()

    def skip(self) -> None:
        """A step did not train, or was not recorded completely."""
        self._now.clear()
        self._calls.clear()
        self._is_fed = False


class Modes:
    """Whether each module is in training mode while the model around it trains."""

    def __init__(self) -> None:
        self._inside: list[CallEvent] = []  # of a root module that has not ended yet
        self._has_trained = False

    def inner(self, event: CallEvent) -> None:
        """A module was called within another one; it is reported when the root module ends."""
        result = tensor_summary(event.result)
        is_frozen = result is not None and not result.requires_grad  # a frozen module may evaluate
        if event.grad_enabled and event.module is not None and not is_frozen:
            self._inside.append(event)

    def root(self, event: CallEvent) -> Reading | None:
        """The root module ended."""
        inside, self._inside = self._inside, []
        if not event.grad_enabled and event.training is not None:
            if event.training and not self._has_trained:
                return None  # perhaps a test of shapes, not an evaluation
            name = event.module or event.api
            subject = Subject(module=event.module, api=Families.EVAL)
            return Reading(EVALUATED, name, "", {name: event.training}, event, subject)
        if not event.training or not inside:
            return None
        values = {call.module or "": call.training for call in inside}
        return Reading(MODES, "", "", values, event)

    def step(self, event: StepEvent) -> None:
        """No module call reaches over the end of a step."""
        self._inside.clear()
        self._has_trained |= is_judged(event)


_RATES = frozenset({"lr", "initial_lr", "max_lr", "min_lr", "swa_lr"})  # *schedule* covers these
_CYCLES = "max_momentum"  # OneCycleLR adds it if it moves momentum against the rate
_CYCLED = ("betas", "momentum")


class WritesBetweenSteps:
    """Whether anything else writes to parameters between two steps of their optimizer."""

    def __init__(self) -> None:
        self._is_loaded = False  # since the last scan

    def load(self, event: CheckpointEvent) -> None:
        """Something was saved or loaded."""
        self._is_loaded |= brings_back(event)

    def mark(self, event: MarkEvent) -> Reading | None:
        """The parameters that changed since the last step of their optimizer, if known."""
        found = observed(event, ExternalWrites)
        if found is None:
            return None
        is_loaded, self._is_loaded = self._is_loaded, False
        if is_loaded:
            return None
        names = [name for name in found.names if not is_unowned(name)]
        subject = Subject(variable=names[0] if names else None, api=Families.OPTIMIZER_STEP)
        return Reading(BETWEEN, found.owner, "", {found.owner: not names}, event, subject)


class Optimizers:
    """Hyper-parameters of each optimizer, without learning rates, at the end of each step."""

    def __init__(self) -> None:
        self._now: dict[str, OptimizerEvent] = {}
        self._first: dict[str, OptimizerEvent] = {}

    def optimizer(self, event: OptimizerEvent) -> None:
        """An optimizer was created or changed."""
        self._now[event.id] = event
        self._first.setdefault(event.id, event)

    def step(self, event: StepEvent) -> Iterator[Reading]:
        """The hyper-parameters at the end of a step that trained."""
        for name, now in self._now.items():
            if name not in event.lr:
                continue
            # By position: groups may be added later.
            was = [_hyper(group.hyper) for group in self._first[name].groups]
            is_ = [_hyper(group.hyper) for group in now.groups]
            subject = Subject(api=f"{now.cls}.__init__")
            yield Reading(HYPER, f"{name} {now.cls}", "", _by_name(is_[: len(was)]), event, subject)
            cycled = _CYCLED if any(_CYCLES in group for group in is_) else ()
            kept = {
                key: all(key not in b or a.get(key) == b[key] for a, b in zip(was, is_))
                for key in {key for group in was for key in group}.difference(cycled)
            }
            yield Reading(KEPT, "", "", kept, event, subject)


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


_MOST_MASKED = 16  # batches may be fetched ahead


class Settings:
    """Passes each event to the settings that it concerns."""

    def __init__(self, functions: Collection[str] | None = None) -> None:
        self._arguments = Arguments(functions)
        self._modes = Modes()
        self._optimizers = Optimizers()
        self._rows = RowCounts()
        self._masked: deque[str] = deque(maxlen=_MOST_MASKED)
        self._writes = WritesBetweenSteps()
        self._batch_use = BatchUse()

    def observe(self, event: Event) -> Sequence[Reading]:
        """The settings that an event completes."""
        if isinstance(event, CallEvent):
            self._batch_use.call(event)
            if event.family != Families.MODULE:
                setting = self._arguments.call(event)
                return () if setting is None else (setting,)
            if not event.root:
                self._modes.inner(event)
                return ()
            self._rows.call(event)
            settings = (self._modes.root(event), equal_arguments(event, self._masked))
            return [setting for setting in settings if setting is not None]
        if isinstance(event, BatchEvent):
            self._batch_use.batch(event)
            self._rows.batch(event)
            self._masked.extend(masked_labels(event))
            setting = leaves_of(event)
            return () if setting is None else (setting,)
        if isinstance(event, MarkEvent):
            setting = self._writes.mark(event)
            return () if setting is None else (setting,)
        if isinstance(event, OptimizerEvent):
            self._optimizers.optimizer(event)
        elif isinstance(event, CheckpointEvent):
            self._writes.load(event)
        elif isinstance(event, StepEvent):
            self._modes.step(event)
            used = list(self._batch_use.step(event))
            if is_judged(event):
                return [*self._optimizers.step(event), *self._rows.step(event), *used]
            self._rows.skip()
        return ()


_MAX_EVAL = 64  # modules that are named


class ConstantProposer(ProposerBase):
    """Proposes the values that were always the same."""

    observes = asked("batch", "call", "checkpoint", "mark", "optimizer", "step")

    def __init__(self) -> None:
        self._user_calls = UserCalls()
        self._settings = Settings()
        self._values: dict[Key, dict[str, Any]] = {}  # those that were always there and the same
        self._trained: set[str] = set()  # loaders that gave batches while models train
        self._modes: dict[str, set[bool]] = defaultdict(set)
        self._classes: set[str] = set()

    def observe(self, event: Event) -> None:
        if isinstance(event, CallEvent):
            self._user_calls.call(event)
            if event.family == Families.MODULE and event.grad_enabled and not event.root:
                self._classes.add(event.api)
        elif isinstance(event, StepEvent):
            self._user_calls.step()
        for setting in self._settings.observe(event):
            self._enter(setting)

    def _enter(self, setting: Reading) -> None:
        key, values = setting.key, setting.value
        if key.what == MODES:
            for module, training in values.items():
                self._modes[module].add(training)
            return
        if key.what == BATCH and setting.event.stage == "train":
            self._trained.add(key.of)
        known = self._values.get(key)
        if key.what == USED:  # a step may show only some parts
            known = self._values.setdefault(key, {})
            known.update({name: known.get(name, True) and used for name, used in values.items()})
        elif known is None:
            self._values[key] = dict(values)
        elif known and known != values:
            self._values[key] = {
                name: value
                for name, value in known.items()
                if name in values and values[name] == value
            }

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._program.name
        if program is None:
            return
        for key, values in sorted(self._values.items(), key=lambda item: str(item[0])):
            params = self._params(key, values)
            if params is not None:
                yield Hypothesis(relation="constant", params={"program": program, **params})
        still = sorted(module for module, modes in self._modes.items() if modes == {False})
        mixed = any(len(modes) > 1 for modes in self._modes.values())
        if self._modes and not mixed and len(still) <= _MAX_EVAL:
            params = {"of": MODES, "eval": still, "classes": sorted(self._classes)}
            yield Hypothesis(relation="constant", params={"program": program, **params})

    def observed_terms(self) -> Iterator[str]:
        """Terms for the settings of the run."""
        if self._modes:
            yield word(MODES, "")
        for key in self._values:
            yield word(key.what, key.of)
            if key.what == ARGUMENTS:
                yield word(*key)

    def _params(self, key: Key, values: Mapping[str, Any]) -> dict[str, Any] | None:
        params: dict[str, Any] = {"of": key.what}
        if key.what == SAMPLES:
            return {**params, "name": key.of}
        if key.what in (KEPT, EQUAL, USED):
            kept = sorted(name for name, same in values.items() if same)
            params |= {} if key.what == KEPT else {"name": key.of}
            return {**params, "values": dict.fromkeys(kept, True)} if kept else None
        if key.what in (BETWEEN, EVALUATED):
            wanted = {key.of: key.what == BETWEEN}
            return {**params, "name": key.of} if values == wanted else None
        params["name"] = key.of
        values = dict(sorted(values.items()))
        if key.what == HYPER:
            name, _, params["class"] = key.of.partition(" ")
            return {**params, "name": name, "values": values} if values else None
        if key.what == BATCH:
            params |= {"stage": "train"} if key.of in self._trained else {}
            return {**params, "values": values} if values else None
        # In evaluation a function is called too rarely for a separate claim.
        evaluation = Key(ARGUMENTS, key.of, IN_EVALUATION)
        other = self._values.get(evaluation, {})
        if key.of in ATTENTIONS:  # without a mask today, with one where rows are padded
            values, other = (
                known if is_masked(known) else {k: v for k, v in known.items() if k != TENSORS}
                for known in (values, other)
            )
        if key == evaluation or key.of not in self._user_calls.apis or not (values or other):
            return None
        params |= {"values": values} if values else {}
        return params | ({"evaluation": dict(sorted(other.items()))} if other else {})
