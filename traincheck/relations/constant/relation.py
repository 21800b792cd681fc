"""The relation *constant*: what a program sets once and keeps in every step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from traincheck.readings.reading import Key, Reading
from traincheck.relations.base import SATISFIED, DeciderBase, OfProgram, RelationBase
from traincheck.relations.constant.arguments import (
    ARGUMENTS,
    ATTENTIONS,
    BATCH,
    BETWEEN,
    EQUAL,
    HYPER,
    IN_ANY,
    IN_EVALUATION,
    IN_TRAINING,
    KEPT,
    KINDS,
    OWN_WORDS,
    SAMPLES,
    TENSORS,
    USED,
    alike,
    is_masked,
    name_of,
    negative,
    text_of,
    wanted_of,
    word_of,
)
from traincheck.relations.constant.proposer import ConstantProposer, Settings
from traincheck.relations.iterations import Examples, ShortUpdates
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs, sampled, within_modules
from traincheck.schema.events import Event
from traincheck.schema.findings import Example
from traincheck.schema.observations.gradients import ExternalWrites
from traincheck.schema.torch_api import TARGETED, Families

_UNPADDED = 3  # steps: so many batches may have no padding, or lack parts of another loader
_STEPS = frozenset({"mark", "step"})


class Constant(RelationBase):
    """A program uses the same values again and again.

    Claims:
        - A function that the program calls itself gets these numbers and these tensors.
        - Batches have parts of these dtypes and numbers of dims.
        - A model gets the same whole numbers twice, such as inputs that are also the labels.
        - These modules, and no others, are in evaluation mode while the model around them trains.
        - A model is in evaluation mode whenever gradients are off.
        - These hyper-parameters of an optimizer never change, or have these values.
        - A model is trained on as many rows in every step as in the first.
        - Only an optimizer, and loads, write to the parameters that it updates.
        - A model or a loss uses these parts of the batches of a loader.

    Example:
        ``In train.py, functional.scaled_dot_product_attention gets dropout_p=0.0 in evaluation
        mode.`` Claims break when dropout stays on in evaluation, a mask is forgotten, an encoder
        stays in evaluation mode, or weight decay is switched off during a run.

    Evidence:
        One example for each call of the function or module, or for each step. A step with fewer
        rows (the last of an epoch) counts only when a step of another iteration follows it. A step
        with more rows does not count if they come from forwards that no backward follows: an
        iteration was left before its end. An unused part of a batch is an example only if all
        inputs of the models and losses come from batches: else the loop may have made them of that
        part.

    Chance:
        A coin for each example.

    Not claimed:
        - Anything about other programs.
        - Learning rates: *schedule* covers them.
        - How many rows there are, or any other size.
        - Values that vary.
        - Other values of hyper-parameters, or of numbers that users tune (the p of dropout,
          max_norm), are reported as advice, unless they are switched on or off.
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
        keys = (mine.keys() | its.keys()) - {"values"}  # evaluation belongs to training
        if other.relation != self.name or any(mine.get(k) != its.get(k) for k in keys):
            return False
        return bool(mine.get("values", {}).items() >= its.get("values", {}).items())

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run without the setting proves nothing."""
        return {"program": claim.params["program"], "api": word_of(claim.params)}

    def supports(self, claim: Hypothesis, other: Hypothesis, terms: Collection[str]) -> bool:
        """Like `implies`, without classes that were not called and modes that were not seen."""
        mine, its = alike(claim.params, other.params, terms)
        return self.implies(replace(claim, params=mine), replace(other, params=its))

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        """Other hyper-parameters may well be intended."""
        kind = claim.params["of"]
        return {"severity": "info" if kind == HYPER else "warning", **OWN_WORDS.get(kind, {})}


class ConstantDecider(OfProgram, DeciderBase):
    """Decides each setting when it is known.

    At the end of a run nothing: a short step at the end of a run is not judged.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        functions = [claim.params.get("name", "") for claim in claims]
        self._settings = Settings(frozenset(functions))
        self._by_key: dict[Key, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for index, claim in enumerate(claims):
            params = claim.params
            if params["of"] not in KINDS:
                raise ValueError(f"nothing is known of {dict(params)}")
            modes = (IN_ANY, IN_TRAINING, IN_EVALUATION) if params["of"] == ARGUMENTS else ("",)
            for mode in modes:
                key = Key(params["of"], name_of(params), mode)
                self._by_key[key].append((index, params))
        self._short_updates = ShortUpdates()
        self._masked: set[str] = set()  # modes in which attention was given a mask
        self._unmasked: dict[tuple[int, str], Example] = {}  # the first call without
        self._parts: set[tuple[str, str]] = set()  # parts of any batch, and what they are
        self._evaluated: set[str] = set()  # loaders that gave batches of an evaluation
        self._missing: dict[
            int, tuple[Example, int, int]
        ] = {}  # claim -> the first, the last step, count

    def observe(self, event: Event) -> Examples:
        self._short_updates.observe(event)
        found: list[tuple[int, Example]] = []
        for setting in self._settings.observe(event):
            if setting.what == BATCH:
                self._parts.update(setting.value.items())
                if setting.event.stage == "eval":
                    self._evaluated.add(setting.of)
            for index, params in self._by_key.get(setting.key, ()):
                if self._program.fits(params):
                    found += self._judge(index, params, setting)
        return found

    def _judge(self, index: int, params: Mapping[str, Any], setting: Reading) -> Examples:
        wanted = wanted_of(params, setting)
        if not wanted:
            return ()
        found = {name: setting.value.get(name) for name in wanted}
        # Another loader or optimizer may lack some, and a loss may be computed outside the model
        if params["of"] in (BATCH, EQUAL, HYPER, KEPT, USED):
            wrong = [name for name in wanted if found[name] not in (None, wanted[name])]
            if params["of"] == BATCH and not wrong:
                return self._missing_parts(index, params, setting)
        else:
            wrong = [name for name in wanted if found[name] != wanted[name]]
        if setting.of in ATTENTIONS and is_masked(setting.value):
            self._masked.add(setting.under)
        if not wrong:
            self._short_updates.clear_short(index)
            return ((index, SATISFIED),)
        counter = negative(params, setting, {name: wanted[name] for name in wrong})
        if setting.of in ATTENTIONS and wrong == [TENSORS] and not is_masked(setting.value):
            # A batch without padding needs no mask: it is forgotten only if it never comes
            mode = setting.under
            first = self._unmasked.setdefault((index, mode), counter)
            late = (setting.event.step or 0) - (first.step or 0)
            if mode in self._masked or late < _UNPADDED:
                return ()
            return ((index, first), (index, counter)) if late == _UNPADDED else ((index, counter),)
        if params["of"] == SAMPLES and setting.value[params["name"]] < 1:
            return self._short_updates.add_short(index, counter)
        return ((index, counter),)

    def _missing_parts(self, index: int, params: Mapping[str, Any], setting: Reading) -> Examples:
        """A part may be missing from training batches, unless loaders were swapped."""
        wanted = {
            name: what for name, what in params["values"].items() if name not in setting.value
        }
        is_asked = params.get("stage") == setting.event.stage and len(wanted) < len(
            params["values"]
        )
        if not wanted or not is_asked or setting.of in self._evaluated:
            return ((index, SATISFIED),)
        if not self._parts.isdisjoint(wanted.items()):
            return ((index, SATISFIED),)
        counter, step = negative(params, setting, wanted), setting.event.step or 0
        first, last, count = self._missing.get(index, (counter, step, 0))
        if step > last + 1:
            first, count = counter, 0
        count += step > last
        self._missing[index] = first, step, count
        if count < _UNPADDED:
            return ()
        return ((index, first), (index, counter)) if count == _UNPADDED else ((index, counter),)
