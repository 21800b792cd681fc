"""Models as recorded in a trace, and rules that judge a model when it is first recorded."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.events import Event, MarkEvent
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.models import ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.words import joined

MODELS = needs_of(ModelStructure)
NORMS = frozenset({"batch norm", "instance norm", "norm"})
CONVOLUTION, LINEAR, EMBEDDING = "convolution", "linear", "embedding"
_SHOWN = 4

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The structure of a model.

    Attributes:
        event: the mark that describes the model.
        name: of the model; a second instance of its class is named ``Net#2``.
        model_class: its class, with the module that defines it.
        dtypes: number of parameter elements, by dtype.
        devices: number of parameter elements, by device.
        cuda: whether a GPU is available.
        tokens: ids of special tokens.
        modules: path -> facts, in the order of registration.
    """

    event: Event
    name: str
    model_class: str
    dtypes: Mapping[str, int]
    devices: Mapping[str, int]
    cuda: bool
    tokens: Mapping[str, int]
    modules: Mapping[str, Facts]

    @property
    def is_on_cuda(self) -> bool:
        return any(device.startswith("cuda") for device in self.devices)

    def of_family(self, *families: str) -> Iterator[tuple[str, Facts]]:
        """Paths and facts of the layers of these families."""
        return (
            (path, facts) for path, facts in self.modules.items() if facts.get("family") in families
        )


def model_of(event: Event) -> Model | None:
    """The model that the event describes; None for any other event."""
    found = observed(event, ModelStructure)
    if found is None:
        return None
    return Model(
        event=event,
        name=found.name,
        model_class=found.model_class,
        dtypes=found.dtypes,
        devices=found.devices,
        cuda=found.cuda,
        tokens=found.tokens,
        modules=found.modules,
    )


class Advice(NamedTuple):
    """Advice about layers of a model. modules: their paths; none where nothing is wrong.

    expected, observed: as in a violation.
    """

    modules: Sequence[str]
    expected: str
    observed: str


class ModelRule(BuiltInRule):
    """Judges each model when it is first recorded, and when its structure changes.

    The same advice about instances of one class (e.g. folds and trials) is given once.
    """

    needs = MODELS
    _given: set[tuple[str, str, str]] = fresh(set)  # class, layers below the model, observed

    def observe(self, event: Event) -> Sequence[Violation]:
        model = model_of(event)
        if model is None or model.name in self.reported:
            return ()
        kind = model.model_class.rpartition(".")[2]
        found = []
        for advice in self.judge(model):
            if advice.modules:
                below = [path.removeprefix(model.name) for path in advice.modules]
                found.append((advice, (kind, joined(below, _SHOWN), advice.observed)))
        if found:
            self.reported.add(model.name)
        new = [advice for advice, key in found if key not in self._given]
        self._given.update(key for _, key in found)
        return [
            about(self.info, event, one.modules, expected=one.expected, observed=one.observed)
            for one in new
        ]

    @abstractmethod
    def judge(self, model: Model) -> Iterable[Advice]:
        """Return what is wrong with a model."""


def about(
    info: CheckInfo, event: Event, modules: Sequence[str], *, expected: str, observed: str
) -> Violation:
    """A violation about modules or variables; the first of them is its subject."""
    names = joined(modules, _SHOWN)
    return Violation(
        check_id=info.check_id,
        step=event.step,
        rank=event.rank,
        stage=event.stage,
        subject=Subject(module=modules[0]),
        symptom=Symptom.ADVICE,
        message=f"{names}: {observed}",
        expected=expected,
        observed=f"{names}: {observed}",
        title=f"{info.title}: {names}",
        # Marks of models are large and add nothing to this text.
        evidence=() if isinstance(event, MarkEvent) else (event,),
    )
