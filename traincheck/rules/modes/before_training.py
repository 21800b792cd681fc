"""Models before their first step: weights initialized repeatedly, spectral norms already in use."""

from __future__ import annotations

from collections import Counter

from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, StepFacts
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import RANDOM_INITS


class SpectralNormBeforeTraining(StepRule, code="TC305"):
    """spectral-norm-before-training: a spectrally normalized layer is evaluated first.

    What it checks:
        Layers built by torch.nn.utils.spectral_norm run in training mode, or get a loaded state,
        before their first pass in evaluation mode.

    Why it matters:
        The vectors of the power iteration are random until a pass in training mode has run. Until
        then the weight is divided by a meaningless number, and outputs are ten times too large.

    Fires on:
        - A model with such a layer whose first forward pass is in evaluation mode.

    Stays quiet on:
        - Training first.
        - A state loaded before.
        - torch.nn.utils.parametrizations.spectral_norm, which does not have this fault.

    Fix:
        Use torch.nn.utils.parametrizations.spectral_norm, or run one pass in training mode first.

    Source:
        https://github.com/pytorch/pytorch/issues/51800
    """

    title = "Spectral normalization is used before its vectors are computed: {variables}"
    likely_cause = "The model is evaluated before its first pass in training mode: {observed}."
    fix = (
        "Use torch.nn.utils.parametrizations.spectral_norm, or run one pass in training mode "
        "before the first evaluation."
    )
    needs = (
        DISCOVERY
        | GRADIENTS
        | MODES
        | Needs(states=frozenset({"buffer@new"}), kinds=frozenset({"checkpoint"}))
    )
    _trained: set[str] = fresh(set)
    # Models evaluated first whose layers are unknown yet
    _early: dict[str, Violation] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if facts.is_gap:
            self._trained |= {name.partition(".")[0] for name in self.ledger.buffers}
        for forward in facts.forwards:
            root = forward.path.partition(".")[0]
            if forward.is_training:
                self._trained.add(root)
            elif root not in self._trained and root not in self.ledger.loaded:
                self._early.setdefault(
                    root,
                    self.proof(
                        facts,
                        subject=Subject(module=forward.path),
                        symptom=Symptom.WRONG_ORDER,
                        message="",
                        expected="a pass in training mode first",
                        observed=f"the first pass of {forward.path} is in evaluation mode",
                        evidence=(forward.call,),
                    ),
                )
        self.triggered += bool(self._trained)
        return [v for root in sorted(self._early) for v in self._layers(root)]

    def _layers(self, root: str) -> list[Violation]:
        found: list[Violation] = []
        for buffer in sorted(self.ledger.buffers):
            layer, _, kind = buffer.rpartition(".")
            if kind != "weight_u" or not buffer.startswith(f"{root}.") or buffer in self.reported:
                continue
            if not any(f"{layer}.weight_orig" in p.names for p in self.ledger.parameters.values()):
                continue
            self.reported.add(buffer)
            early = self._early[root]
            found.append(
                Violation(
                    check_id=early.check_id,
                    step=early.step,
                    rank=early.rank,
                    stage="eval",
                    subject=Subject(variable=buffer, module=layer),
                    symptom=early.symptom,
                    message=f"{early.observed}, with random values in {buffer}",
                    expected=early.expected,
                    observed=early.observed,
                    evidence=early.evidence,
                )
            )
        return found


_MAX_COUNTED = 100_000


class InitializedRepeatedly(
    BuiltInRule, code="TC329", severity="info", aliases=("initialized-again",)
):
    """initialized-repeatedly: the same random initialization is applied to a parameter many times.

    What it checks:
        No function of torch.nn.init draws one parameter four or more times before the first step.

    Why it matters:
        Each repetition costs as much as the first and advances the random generator, so that a seed
        gives different weights than intended. It often shows that a pattern matches more modules
        than intended.

    Fires on:
        - An initialization that walks the parameters of every module, and so reaches each parameter
          once per ancestor.

    Stays quiet on:
        - An initialization by the constructor that the model replaces and rescales once more.
        - Parameters that share a shape.

    Fix:
        Walk module.named_parameters(recurse=False), or initialize by the type of the module.

    Source:
        https://github.com/huggingface/transformers/pull/17877

    Options:
        - times: number of draws by one function that is reported.
    """

    title = "The initialization of {variables} is repeated"
    likely_cause = (
        "The initialization may walk the parameters of every ancestor of {variables}: {observed}."
    )
    fix = "Walk named_parameters(recurse=False), or initialize by the type of the module."
    needs = Needs(
        calls=RANDOM_INITS, states=frozenset({"parameter@new"}), kinds=frozenset({"step"})
    )
    times: int = 4
    _counts: Counter[tuple[int, str]] = fresh(Counter)
    _names: dict[int, str] = fresh(dict)

    def observe(self, event: Event) -> list[Violation]:
        if self.is_over:
            return []
        if isinstance(event, CallEvent) and event.api in RANDOM_INITS:
            identity = event.result.get("identity") if isinstance(event.result, dict) else None
            if identity is not None and len(self._counts) < _MAX_COUNTED:
                self._counts[identity, event.api] += 1
        elif isinstance(event, StateEvent) and event.role == "parameter":
            self._names.setdefault(event.identity, event.name)
        elif isinstance(event, StepEvent):
            self.is_over = True
            self.triggered += any(identity in self._names for identity, _ in self._counts)
            found = []
            for (identity, api), count in sorted(self._counts.items()):
                if count >= self.times and identity in self._names:
                    name = self._names[identity]
                    function = api.rpartition(".")[2]
                    found += self.found(
                        event,
                        stage="init",
                        subject=Subject(api=api, variable=name),
                        symptom=Symptom.ADVICE,
                        message=f"{function} initializes {name} {count} times",
                        expected="at most one initialization after the constructor's",
                        observed=f"{count} calls of {function}",
                    )
            return found
        return []
