"""Propose what a program sets once and keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.relations.base import ProposerBase
from traincheck.relations.constant.arguments import ATTENTIONS, UserCalls, is_masked
from traincheck.relations.constant.messages import word
from traincheck.relations.constant.setting import (
    ARGUMENTS,
    BATCH,
    BETWEEN,
    EQUAL,
    EVALUATED,
    HYPER,
    KEPT,
    MODES,
    SAMPLES,
    TENSORS,
    USED,
    Key,
    Setting,
)
from traincheck.relations.constant.settings import Settings
from traincheck.schema.claims import Hypothesis
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.torch_api import Families

_MAX_EVAL = 64  # modules that are named


class ConstantProposer(ProposerBase):
    """Proposes the values that were always the same."""

    ignored_kinds = frozenset({"state"})

    def __init__(self) -> None:
        self._program = ProgramName()
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
        else:
            self._program.observe(event)
        for setting in self._settings.observe(event):
            self._enter(setting)

    def _enter(self, setting: Setting) -> None:
        key, values = setting.key, setting.values
        if key.kind == MODES:
            for module, training in values.items():
                self._modes[module].add(training)
            return
        if key.kind == BATCH and setting.event.stage == "train":
            self._trained.add(key.name)
        known = self._values.get(key)
        if key.kind == USED:  # a step may show only some parts
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
            yield word(key.kind, key.name)
            if key.kind == ARGUMENTS:
                yield word(key.kind, key.name, key.training)

    def _params(self, key: Key, values: Mapping[str, Any]) -> dict[str, Any] | None:
        params: dict[str, Any] = {"of": key.kind}
        if key.kind == SAMPLES:
            return {**params, "name": key.name}
        if key.kind in (KEPT, EQUAL, USED):
            kept = sorted(name for name, same in values.items() if same)
            params |= {} if key.kind == KEPT else {"name": key.name}
            return {**params, "values": dict.fromkeys(kept, True)} if kept else None
        if key.kind in (BETWEEN, EVALUATED):
            wanted = {key.name: key.kind == BETWEEN}
            return {**params, "name": key.name} if values == wanted else None
        params["name"] = key.name
        values = dict(sorted(values.items()))
        if key.kind == HYPER:
            name, _, params["class"] = key.name.partition(" ")
            return {**params, "name": name, "values": values} if values else None
        if key.kind == BATCH:
            params |= {"stage": "train"} if key.name in self._trained else {}
            return {**params, "values": values} if values else None
        # In evaluation a function is called too rarely for a separate claim.
        evaluation = Key(ARGUMENTS, key.name, training=False)
        other = self._values.get(evaluation, {})
        if key.name in ATTENTIONS:  # without a mask today, with one where rows are padded
            values, other = (
                known if is_masked(known) else {k: v for k, v in known.items() if k != TENSORS}
                for known in (values, other)
            )
        if key == evaluation or key.name not in self._user_calls.apis or not (values or other):
            return None
        params |= {"values": values} if values else {}
        return params | ({"evaluation": dict(sorted(other.items()))} if other else {})
