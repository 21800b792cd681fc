"""Modules that are called several times in one forward. Each rule selects the kinds of modules."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

from traincheck.rules.base.model_rule import MODELS, about, model_of
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.shared.gradient_reach import LEAVES
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Violation
from traincheck.schema.torch_api import Families
from traincheck.schema.values import is_tensor

_TWICE = 2

Calls = Mapping[str, dict[int | None, int]]  # module -> span around it -> calls


class ReusedModuleRule(BuiltInRule):
    """Counts the calls of each module between two training forwards of a model.

    Two cases do not count: a network that is called as a whole on several inputs (e.g. for a loss
    over pairs), and a layer that also receives inputs with another number of rows.

    Attributes:
        in_a_row: consecutive forwards with repeated calls before a module is reported.
        has_others: whether other modules must lie between two uses; a module called again right
            after itself is in a loop over parts of its input.
    """

    in_a_row: ClassVar[int] = 2
    has_others: ClassVar[bool] = False
    _calls: dict[str, dict[int | None, int]] = fresh(dict)
    _counted: set[str] = fresh(set)
    _reused: Counter[str] = fresh(Counter)
    _repeating: set[str] = fresh(set)
    _last: dict[int | None, str] = fresh(dict)  # enclosing span -> module that was called last
    # Batch sizes of module inputs
    _rows: defaultdict[str, set[int]] = fresh(lambda: defaultdict(set))
    _looped: set[str] = fresh(set)  # called again right after itself: over chunks of an input

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, CallEvent):
            model = model_of(event)
            if model is not None:
                repeating = {path for path, facts in model.modules.items() if facts.get("repeats")}
                self._repeating = (self._repeating - model.modules.keys()) | repeating
            return ()
        if Families.BACKWARD in (event.family, event.api):
            self._clear()  # calls of a recomputation
        elif event.root:
            calls, counted = self._calls, self._counted
            others = {module for module, rows in self._rows.items() if len(rows) > 1}
            others |= {m for m in self._looped if m.rpartition(".")[0] not in self._repeating}
            self._clear()
            if not event.grad_enabled or not event.training:
                return ()
            self.triggered += bool(counted)
            again = {
                module: count
                for module in counted & calls.keys() - others
                if (count := sum(calls[module].values())) >= _TWICE
            }
            inside = _inside(calls) if again else {}
            reused = {
                _unit(module, calls, inside, self._repeating): count
                for module, count in again.items()
            }
            self._reused = Counter({u: self._reused[u] + 1 for u in reused if u is not None})
            return [
                about(
                    self.info,
                    event,
                    [unit],
                    expected="one call in each forward",
                    observed=f"{reused[unit]} calls in one forward",
                )
                for unit, times in sorted(self._reused.items())
                if times == self.in_a_row
            ]
        elif event.module is not None:
            if event.family == Families.MODULE:
                module = event.module
                spans = self._calls.setdefault(module, {})
                spans[event.parent] = spans.get(event.parent, 0) + 1
                if self.has_others and self._last.get(event.parent) == module:
                    self._looped.add(module)
                self._last[event.parent] = module
                given = event.args.get("0")
                if isinstance(given, dict) and is_tensor(given) and given["shape"]:
                    self._rows[module].add(given["shape"][0])
            if self.counts(event):
                self._counted.add(event.module)
        return ()

    @abstractmethod
    def counts(self, event: CallEvent) -> bool:
        """Whether a call shows that its module counts."""

    def _clear(self) -> None:
        self._calls, self._counted = {}, set()
        self._last, self._looped, self._rows = {}, set(), defaultdict(set)


def _inside(calls: Calls) -> dict[str, set[int]]:
    """The numbers of calls of the modules inside each module, by its path."""
    found: dict[str, set[int]] = defaultdict(set)
    for module, spans in calls.items():
        above = module.rpartition(".")[0]
        while above:
            found[above].add(sum(spans.values()))
            above = above.rpartition(".")[0]
    return found


def _unit(
    module: str, calls: Calls, inside: Mapping[str, set[int]], repeating: Collection[str]
) -> str | None:
    """The reused unit: a layer, or the list element that contains it.

    None for a layer in a loop over time, and for a layer of a network called several times.

    Args:
        module: a layer that was called several times.
        calls: of all modules.
        inside: numbers of calls of the modules inside each module.
        repeating: modules that hold one child under several names.
    """
    if max(calls[module].values()) > 1:  # within one call of its parent
        is_twice = max(calls[module].values()) == _TWICE
        return module if is_twice or module.rpartition(".")[0] in repeating else None
    unit = module
    while above := unit.rpartition(".")[0]:
        if above in repeating:
            return unit
        is_once = above in calls and sum(calls[above].values()) == 1
        if is_once or min(inside[above]) < _TWICE:
            break
        unit = above
    return module if unit == module else None


_API = "torch.nn.functional.batch_norm"


class BatchNormReused(ReusedModuleRule, code="TC915", severity="info"):
    """batch-norm-reused: one batch norm is used at several places of a model.

    What it checks:
        A batch norm in training mode is called once in a forward of the model.

    Why it matters:
        Its running statistics mix two distributions and match neither in evaluation.

    Fires on:
        - A block with a batch norm that is applied twice in one forward, in two consecutive
          training steps.

    Stays quiet on:
        - Several forwards in a step (accumulation, GAN).
        - A network that is called as a whole on several inputs (siamese branches).
        - Layers in a loop over time.
        - Evaluation mode.
        - Recomputation in gradient checkpointing.

    Fix:
        Build one batch norm for each place.

    Source:
        https://github.com/pytorch/pytorch/issues/7289
    """

    title = "A batch norm is used at several places of one forward"
    likely_cause = "The same layer object is called more than once."
    fix = "Build one batch norm for each place, or use a norm without running statistics."
    needs = LEAVES | MODELS | Needs(calls=frozenset({_API, Families.BACKWARD}))
    in_a_row = 2
    has_others = True

    def counts(self, event: CallEvent) -> bool:
        return event.api == _API and event.args.get("training") is True


_WITH_WEIGHTS = tuple(
    f"torch.nn.modules.{name}" for name in ("linear.", "conv.", "activation.MultiheadAttention")
)


class LayerReused(ReusedModuleRule, code="TC922", severity="info"):
    """layer-reused: one layer with weights is used at several places of a model.

    What it checks:
        A linear, convolutional or attention layer is called once in a forward of the model.

    Why it matters:
        Shared weights may be intended. If a list of layers was built by [layer] * n, or one name
        was written twice, the model is smaller than it looks.

    Fires on:
        - A layer, or an element of a list of modules, that is applied twice within each forward, in
          three consecutive training steps.

    Stays quiet on:
        - Several forwards of the model in a step (accumulation, GAN).
        - A network that is called as a whole on several inputs (losses over pairs).
        - Layers in a loop over time.
        - Embeddings, recurrent layers and norms (TC915 checks batch norms).
        - Recomputation in gradient checkpointing.
        - Evaluation.

    Fix:
        Build one layer for each place. Ignore this if sharing is intended.

    Source:
        https://github.com/pytorch/pytorch/issues/7289
    """

    title = "A layer is used at several places of one forward"
    likely_cause = "The same layer object is called more than once."
    fix = "Build one layer for each place, unless the weights should be shared."
    needs = LEAVES | MODELS | Needs(calls=frozenset({Families.BACKWARD}))
    in_a_row = 3

    def counts(self, event: CallEvent) -> bool:
        is_trained = bool(event.grad_enabled and event.training)
        return is_trained and event.api.startswith(_WITH_WEIGHTS)
