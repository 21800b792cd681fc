"""Parts of batches, which of them are used, and how many rows a model is trained on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from traincheck.facts.steps import is_judged
from traincheck.relations.constant.setting import BATCH, SAMPLES, USED, Key, Setting
from traincheck.schema.claims import MAX_MATCHED_ELEMENTS, MIN_MATCHED_ELEMENTS
from traincheck.schema.events import (
    BatchEvent,
    CallEvent,
    StepEvent,
)
from traincheck.schema.findings import Subject
from traincheck.schema.torch_api import IGNORED_LABEL, LOSS_MODULES, TARGETED, Families
from traincheck.schema.values import is_tensor
from traincheck.schema.words import counted

_MOST_FETCHED = 4096  # tensors of batches


def masked_labels(event: BatchEvent) -> Iterator[str]:
    """Fingerprints of tensors that hold the label that losses ignore."""
    for leaf in filter(is_tensor, event.leaves.values()):
        if leaf.get("fingerprint") and (leaf.get("stats") or {}).get("min") == IGNORED_LABEL:
            yield leaf["fingerprint"]


def leaves_of(event: BatchEvent) -> Setting | None:
    """Number of dims and dtype of each part of a batch; sizes are settings."""
    values = {
        path: f"{leaf['dtype']} of {counted(len(leaf['shape']), 'dim')}"
        for path, leaf in event.leaves.items()
        if is_tensor(leaf)
    }
    return Setting(Key(BATCH, event.loader), values, event) if values else None


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

    def step(self, event: StepEvent) -> Iterator[Setting]:
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
                yield Setting(Key(USED, loader), values, event)


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

    def step(self, event: StepEvent) -> Iterator[Setting]:
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
                yield Setting(Key(SAMPLES, module), {module: ratio}, event, Subject(module=module))
        self.skip()

    def skip(self) -> None:
        """A step did not train, or was not recorded completely."""
        self._now.clear()
        self._calls.clear()
        self._is_fed = False
