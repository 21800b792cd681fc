"""What every observation owes: a producer, a consumer, the same record after a trip through the
trace, nothing from malformed data, and no verdict of its consumers without its instrument."""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import torch
from torch import nn

from tests.builders import healthy_run
from tests.collect.recording import recording
from tests.together import together
from traincheck.check.engine import Engine
from traincheck.collect.instruments.registry import INSTRUMENTS
from traincheck.collect.observers.base import Hook
from traincheck.collect.observers.registry import OBSERVERS
from traincheck.rules.table import RULES
from traincheck.schema.codec import decode, encode
from traincheck.schema.events import MarkEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.instruments import FEEDS
from traincheck.schema.marks import MARKS
from traincheck.schema.observations.base import Observation, needs_of
from traincheck.schema.observations.models import ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.observations.registry import MARK_TEXTS, OBSERVATIONS
from traincheck.schema.protocols import Rule

SOURCE = Path(inspect.getfile(Observation)).parents[2]
HEAD = (0, 0, 3, "train", 0, "p1-t0")
WRONG = object()  # no JSON value: of no type that a field has

each = together("kind", OBSERVATIONS, ids=lambda kind: kind.__name__)


def example(kind: Any) -> Any:
    """A value of a type, as fields of observations have them; with all that it may hold."""
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        return kind(**{field.name: example(hints[field.name]) for field in fields(kind)})
    if origin is tuple:
        return tuple(example(one) for one in given if one is not Ellipsis)
    if origin is not None and issubclass(origin, Mapping):
        return {"Net.fc": example(given[1])}
    if origin is types.UnionType:
        return example(given[0])
    values: dict[Any, Any] = {int: 0, str: "Net", bool: True, float: 0.5, Any: [1, "a"]}
    return values[kind]


def mark(observation: Observation, **changes: Any) -> MarkEvent:
    return MarkEvent(*HEAD, text=observation.text, data={**observation.data(), **changes})


@cache
def names_in(folder: str) -> set[str]:
    """All names that the modules below a folder use, also as part of an attribute."""
    return {
        node.id
        for path in (SOURCE / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    }


def consumers(kind: type[Observation]) -> list[Rule]:
    """Rules that read an observation, or facts that are made of it."""
    return [r for r in RULES if kind.text in r.needs.marks or kind.need in r.needs.states]


@each
def test_it_has_a_producer_and_a_consumer(kind: type[Observation]) -> None:
    assert kind.__name__ in names_in("collect")
    if not kind.is_for_checks:  # commands that compare runs read it
        assert not consumers(kind)
        return
    readers = ("rules", "relations", "readings", "facts")
    assert kind.__name__ in set().union(*map(names_in, readers))
    assert consumers(kind)


@each
def test_it_is_the_same_after_a_trip_through_the_trace(kind: type[Observation]) -> None:
    made = example(kind)
    event = decode(encode(mark(made)), 0, "p1-t0")
    assert observed(event, kind) == made
    assert observed(event, ModelStructure, kind) == made


@each
def test_what_newer_versions_add_is_ignored(kind: type[Observation]) -> None:
    made = example(kind)
    assert observed(mark(made, later={"key": 1}), kind) == made


@each
def test_fields_that_are_left_out_have_their_default(kind: type[Observation]) -> None:
    made = example(kind)
    left = {kind.keys.get(name, name) for name in kind.sparse}
    data = {key: value for key, value in made.data().items() if key not in left}
    found = observed(MarkEvent(*HEAD, text=kind.text, data=data), kind)
    assert found is not None
    assert found.data() == orjson.loads(orjson.dumps(data)) or found.data() == data


@each
def test_malformed_data_is_not_read(kind: type[Observation]) -> None:
    made = example(kind)
    assert observed(mark(made), kind) is not None
    for field in fields(made):
        key = kind.keys.get(field.name, field.name)
        assert observed(mark(made, **{key: WRONG}), kind) is None, key
        if field.default is MISSING and field.default_factory is MISSING:
            data = {name: value for name, value in made.data().items() if name != key}
            assert observed(MarkEvent(*HEAD, text=kind.text, data=data), kind) is None, key


@each
def test_another_mark_is_not_it(kind: type[Observation]) -> None:
    made = example(kind)
    assert observed(MarkEvent(*HEAD, text=f"user: {kind.text}", data=made.data()), kind) is None
    assert observed(healthy_run(2)[-1], kind) is None


@together("kind", [kind for kind in OBSERVATIONS if kind.is_for_checks])
def test_without_its_instrument_its_consumers_are_not_observable(kind: type[Observation]) -> None:
    verdicts = verdicts_without(kind.instrument)
    assert {verdicts[rule.info.check_id] for rule in consumers(kind)} == {Verdict.NOT_OBSERVABLE}


@cache
def verdicts_without(instrument: str) -> Mapping[str, Verdict]:
    engine = Engine(rules=RULES)
    first, *rest = healthy_run(4)
    assert isinstance(first, MarkEvent)
    data = {**first.data, "instruments": {instrument: "off: it failed"}}
    for event in (first.replace(data=data), *rest):
        engine.observe(event)
    return engine.finish().verdicts


@each
def test_what_feeds_it_is_what_it_names(kind: type[Observation]) -> None:
    assert FEEDS[kind.instrument].serves(needs_of(kind))
    assert kind.instrument in {instrument.name for instrument in INSTRUMENTS}


@each
def test_each_field_is_documented(kind: type[Observation]) -> None:
    assert not [f.name for f in fields(example(kind)) if f"{f.name}: " not in (kind.__doc__ or "")]


def test_texts_are_those_of_one_observation_each() -> None:
    texts = [kind.text for kind in OBSERVATIONS]
    assert len(set(texts)) == len(texts)
    assert MARKS.isdisjoint(texts)
    assert MARKS | set(texts) == MARK_TEXTS


def test_every_observation_and_observer_is_in_its_table() -> None:
    for base, table in ((Observation, OBSERVATIONS), (OBSERVERS[0].__mro__[1], OBSERVERS)):
        concrete = {one for one in subclasses(base) if one.__module__.startswith("traincheck.")}
        assert {one for one in concrete if is_complete(one)} == set(table)


def subclasses(base: type) -> Iterator[type]:
    for one in base.__subclasses__():
        yield one
        yield from subclasses(one)


def is_complete(one: Any) -> bool:
    """Not a base of others, nor what a dataclass with slots was made of."""
    if not (hasattr(one, "text") or hasattr(one, "produces")):
        return False
    return getattr(inspect.getmodule(one), one.__name__) is one


def test_an_observer_belongs_to_one_instrument_and_writes_what_it_declares() -> None:
    for observer in OBSERVERS:
        assert {kind.instrument for kind in observer.produces} == {observer.instrument()}
        assert isinstance(observer.hook, Hook)
        used = {
            node.id
            for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(observer))))  # type: ignore[arg-type]
            if isinstance(node, ast.Name)
        }
        names = {kind.__name__ for kind in OBSERVATIONS}
        neighbours = [one for one in OBSERVERS if one.__module__ == observer.__module__]
        assert used & names == {kind.__name__ for one in neighbours for kind in one.produces}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.layer(x).softmax(-1) @ self.layer.weight)


def train(steps: int) -> None:
    model, teacher = Net(), Net()
    model.layer.weight = nn.Parameter(torch.randn(4, 4).t())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.no_grad():
            target = teacher.eval()(torch.randn(8, 4))
        x = torch.randn(8, 4)
        q, k, v = model(x).unsqueeze(0).expand(3, -1, -1)
        loss = (((q @ k.T).softmax(0) @ v).sum(-1, keepdim=True) - target[:, 0]).pow(2).mean()
        loss.backward()
        model.layer.weight.grad = model.layer.weight.grad.clone()  # type: ignore[union-attr]
        optimizer.step()
        with torch.no_grad():
            model.layer.bias.add_(1)
        model.eval()(torch.randn(8, 4))
        model.train()
        with torch.no_grad():
            model.eval()(torch.randn(8, 4))
        model.train()


def test_what_is_written_is_the_encoding_of_the_record(tmp_path: Path) -> None:
    """Also where it is made by templates, on the hot path."""
    with recording(tmp_path) as run:
        train(4)
    found = set()
    for event in run.of("mark"):
        for kind in OBSERVATIONS:
            record = observed(event, kind)
            if record is not None:
                found.add(kind.__name__)
                assert list(record.data()) == list(event.data)
                assert orjson.dumps(record.data()) == orjson.dumps(event.data)
    texts = {event.text for event in run.of("mark")}
    assert found == {kind.__name__ for kind in OBSERVATIONS if kind.text in texts}
    assert found >= {
        "AttentionSoftmax",
        "AuxiliaryInitialNorms",
        "EvalWeights",
        "ExternalWrites",
        "LossBroadcast",
        "ModelInputs",
        "ModelStructure",
    }
