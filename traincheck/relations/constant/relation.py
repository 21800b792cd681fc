"""The relation *constant*: what a program sets once and keeps in every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.facts.programs import ProgramName
from traincheck.relations.base import RelationBase
from traincheck.relations.constant.messages import (
    ALWAYS,
    OWN_WORDS,
    alike,
    name_of,
    negative,
    text_of,
    wanted_of,
    word_of,
)
from traincheck.relations.constant.properties import (
    ARGUMENTS,
    ATTENTIONS,
    BATCH,
    BETWEEN,
    EQUAL,
    HYPER,
    KEPT,
    KINDS,
    SAMPLES,
    TENSORS,
    USED,
    Fact,
    Facts,
    Key,
    is_masked,
)
from traincheck.relations.constant.proposer import ConstantProposer
from traincheck.relations.example_cache import Examples
from traincheck.relations.iterations import ShortUpdates
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs, sampled, within_modules
from traincheck.schema.events import CallEvent, Event, StepEvent
from traincheck.schema.findings import CheckInfo, Example
from traincheck.schema.observations.external_writes import ExternalWrites
from traincheck.schema.torch_api import TARGETED, Families

_HELD = Example(holds=True, context=ALWAYS)
_UNPADDED = 3  # steps: so many batches may have no padding, or lack what another loader gives
_STEPS = frozenset({"mark", "step"})


class Constant(RelationBase):
    """A program gives the same values again and again.

    What it says:
        One of: a function that the program calls itself is given these numbers and these tensors;
        batches have parts of these dtypes and numbers of dims; a model is given the same whole
        numbers twice, as inputs and as labels perhaps;
        these modules, and no others, are in evaluation mode while the model around them trains; a
        model is in evaluation mode whenever gradients are off;
        these hyper-parameters of an optimizer never change, or have these values; a model is
        trained on as many rows in every step as in the first; nothing but an optimizer writes to
        the parameters that it updates, but for loads; a model or a loss is given these parts of
        the batches of a loader.

    Example:
        ``In train.py, functional.scaled_dot_product_attention is given dropout_p=0.0 in evaluation
        mode.`` It breaks when dropout goes on in evaluation, a mask is forgotten, an encoder is
        left in evaluation mode, weight decay is switched off in mid-run.

    Evidence:
        One example for each call of the function or module, or for each step. A step with fewer
        rows (the last of an epoch) counts only when one of another iteration follows it; one with
        more, by forwards that no backward follows, does not: an iteration was left before its end.
        That a part of a batch reaches no model and no loss is an example only where all that they
        are given is of batches: else the loop may have made it of that part.

    Chance:
        A coin for each example.

    Not said:
        Anything about other programs. Learning rates: *schedule* speaks of them. How many rows
        there are, or any other size. Values that vary. That hyper-parameters, or numbers that users
        tune (the p of dropout, max_norm), have other values is told, but is no more than advice,
        unless they are switched on or off.
    """

    name = "constant"

    def proposer(self) -> ConstantProposer:
        return ConstantProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> ConstantDecider:
        return ConstantDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        kind = claim.params["of"]
        if kind == ARGUMENTS:
            return Needs(calls=within_modules(claim.params["name"]), kinds=_STEPS)
        if kind == EQUAL:
            calls = within_modules(claim.params["name"])
            return Needs(calls=calls, kinds=_STEPS | {"batch"}, stats=sampled("batch"))
        if kind in (HYPER, KEPT, BATCH):
            return Needs(kinds=_STEPS | {"batch" if kind == BATCH else "optimizer"})
        if kind == USED:
            return Needs(
                calls=TARGETED | {Families.MODULE, Families.OPTIMIZER_STEP},
                kinds=_STEPS | {"batch"},
                stats=sampled("batch", *TARGETED),
            )
        if kind == BETWEEN:
            return Needs(
                states=frozenset({ExternalWrites.need}),
                calls=frozenset({Families.OPTIMIZER_STEP}),
                kinds=_STEPS | {"checkpoint"},
            )
        if kind == SAMPLES:
            calls = frozenset({Families.MODULE, Families.OPTIMIZER_STEP})
            return Needs(calls=calls, kinds=_STEPS | {"batch"})
        modules = within_modules(*claim.params.get("classes", ())) | {Families.MODULE}
        return Needs(calls=modules, kinds=_STEPS)

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, text_of(claim.params))

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """More values of the same thing imply fewer."""
        mine, its = claim.params, other.params
        keys = (mine.keys() | its.keys()) - {"values"}  # evaluation is one with training
        if other.relation != self.name or any(mine.get(k) != its.get(k) for k in keys):
            return False
        return bool(mine.get("values", {}).items() >= its.get("values", {}).items())

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """What a run has no fact of it says nothing of."""
        return {"program": claim.params["program"], "api": word_of(claim.params)}

    def supports(self, claim: Hypothesis, other: Hypothesis, terms: Collection[str]) -> bool:
        """As `implies`, but for classes that were not called, and modes that were not seen."""
        mine, its = alike(claim.params, other.params, terms)
        return self.implies(replace(claim, params=mine), replace(other, params=its))

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        """Other hyper-parameters than those of the reference may well be meant."""
        severity = "info" if claim.params["of"] == HYPER else "warning"
        found = CheckInfo(
            check_id=check_id, kind="invariant", code=self.name, severity=severity, title=text
        )
        return replace(found, **OWN_WORDS.get(claim.params["of"], {}))


class ConstantDecider:
    """Decides each fact when it is known."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._program = ProgramName()
        functions = [claim.params.get("name", "") for claim in claims]
        self._facts = Facts(frozenset(functions))
        self._by_key: dict[Key, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for index, claim in enumerate(claims):
            params = claim.params
            if params["of"] not in KINDS:
                raise ValueError(f"nothing is known of {dict(params)}")
            modes = (None, True, False) if params["of"] == ARGUMENTS else (None,)
            for mode in modes:
                key = Key(params["of"], name_of(params), mode)
                self._by_key[key].append((index, params))
        self._short = ShortUpdates()
        self._masked: set[bool | None] = set()  # modes in which attention was given a mask
        self._unmasked: dict[tuple[int, bool | None], Example] = {}  # the first call without
        self._parts: set[tuple[str, str]] = set()  # that any batch has, with what they are
        self._evaluated: set[str] = set()  # loaders that gave batches of an evaluation
        self._lacking: dict[int, tuple[Example, int, int]] = {}  # the first, the last step, count

    def observe(self, event: Event) -> Examples:
        if not isinstance(event, (CallEvent, StepEvent)):
            self._program.observe(event)
        self._short.observe(event)
        found: list[tuple[int, Example]] = []
        for fact in self._facts.observe(event):
            if fact.key.kind == BATCH:
                self._parts.update(fact.values.items())
                if fact.event.stage == "eval":
                    self._evaluated.add(fact.key.name)
            for index, params in self._by_key.get(fact.key, ()):
                if self._program.fits(params):
                    found += self._judge(index, params, fact)
        return found

    def finish(self) -> Examples:
        """Nothing: a short step at the end of a run is none the worse."""
        return ()

    def _judge(self, index: int, params: Mapping[str, Any], fact: Fact) -> Examples:
        wanted = wanted_of(params, fact)
        if not wanted:
            return ()
        found = {name: fact.values.get(name) for name in wanted}
        # Another loader or optimizer may lack some, and a loss be computed outside of the model
        if params["of"] in (BATCH, EQUAL, HYPER, KEPT, USED):
            wrong = [name for name in wanted if found[name] not in (None, wanted[name])]
            if params["of"] == BATCH and not wrong:
                return self._lacks(index, params, fact)
        else:
            wrong = [name for name in wanted if found[name] != wanted[name]]
        if fact.key.name in ATTENTIONS and is_masked(fact.values):
            self._masked.add(fact.key.training)
        if not wrong:
            self._short.full(index)
            return ((index, _HELD),)
        wrongly = negative(params, fact, {name: wanted[name] for name in wrong})
        if fact.key.name in ATTENTIONS and wrong == [TENSORS] and not is_masked(fact.values):
            return self._without_mask(index, fact, wrongly)
        if params["of"] == SAMPLES and fact.values[params["name"]] < 1:
            return self._short.short(index, wrongly)
        return ((index, wrongly),)

    def _lacks(self, index: int, params: Mapping[str, Any], fact: Fact) -> Examples:
        """A part may be missing from batches to train with, unless loaders changed places."""
        wanted = {name: what for name, what in params["values"].items() if name not in fact.values}
        is_asked = params.get("stage") == fact.event.stage and len(wanted) < len(params["values"])
        if not wanted or not is_asked or fact.key.name in self._evaluated:
            return ((index, _HELD),)
        if not self._parts.isdisjoint(wanted.items()):
            return ((index, _HELD),)
        wrongly, step = negative(params, fact, wanted), fact.event.step or 0
        first, last, count = self._lacking.get(index, (wrongly, step, 0))
        if step > last + 1:
            first, count = wrongly, 0
        count += step > last
        self._lacking[index] = first, step, count
        if count < _UNPADDED:
            return ()
        return ((index, first), (index, wrongly)) if count == _UNPADDED else ((index, wrongly),)

    def _without_mask(self, index: int, fact: Fact, wrongly: Example) -> Examples:
        """A batch without padding needs none: only where none ever comes is it forgotten."""
        mode = fact.key.training
        first = self._unmasked.setdefault((index, mode), wrongly)
        late = (fact.event.step or 0) - (first.step or 0)
        if mode in self._masked or late < _UNPADDED:
            return ()
        return ((index, first), (index, wrongly)) if late == _UNPADDED else ((index, wrongly),)
