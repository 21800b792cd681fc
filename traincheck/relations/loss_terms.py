"""The relation *loss_terms*: what a loss is made of, and with which weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from traincheck.readings.loss_terms import StepTerms, is_near, ratios, trained_names
from traincheck.relations.base import (
    SATISFIED,
    DeciderBase,
    OfProgram,
    ProposerBase,
    RelationBase,
    asked,
    counterexample,
)
from traincheck.relations.iterations import Examples
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Hypothesis, Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Example, Subject, Symptom, Topic
from traincheck.schema.observations.losses import LabelPositions, LossTerms, Positions
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined, listed

TERM, TERMS, WEIGHT, LABELS = "term", "terms", "weight", "labels"
IGNORED, COUNTED = "ignored", "counted"
_HEADLINES = {
    TERM: "A term of the loss of the reference runs is missing",
    TERMS: "The loss has another term than in the reference runs",
    WEIGHT: "The weights of the loss are not those of the reference runs",
    LABELS: "The loss is taken over other labels than in the reference runs",
}
_OF_LABELS = {
    IGNORED: "no position whose label is ignored gets a gradient",
    COUNTED: "each position that has a label gets a gradient",
}
_EACH = (
    4  # examples of a step: names of functions and three digits of a weight do not agree by luck
)
_DIGITS = 3
_JOINT = " + "
_CAUSES = {
    TERM: "The term may no longer be added to the loss, have a weight of 0, or have no gradient.",
    TERMS: "A term may have been added to the loss, or a loss function replaced.",
    WEIGHT: "The weight of a term may have changed, or how it is reduced (sum or mean).",
    LABELS: "The mask of the loss may be missing, inverted or shifted.",
}
_FIXES = {
    TERM: "Add the term to the tensor that backward() is called on.",
    TERMS: "Compare the loss with that of the reference run; learn again if the change is meant.",
    WEIGHT: "Compare the weights of the loss with those of the reference run.",
    LABELS: "Mask the loss with labels != ignore_index, at the positions of the labels.",
}
# Value of a claim, by what it is about and the terms
_Seen: TypeAlias = dict[tuple[str, str, str], float]


class TermsOfLoss(RelationBase):
    """The terms of a loss and their weights are those of the reference runs.

    Claims:
        One of four, for one program:
        - In each training step, a term such as kl_div is behind the root of a backward pass.
        - No other terms than these are.
        - The weight of a term is a constant multiple of the weight of another one.
        - Log-probabilities get no gradient where the label of the batch is ignored, or one wherever
          it is not.

    Example:
        ``In train.py, the weight of kl_div in the loss is 2.33 times that of cross_entropy.`` It
        breaks when the weights are swapped.

    Evidence:
        - Terms are results of loss functions, and means and sums that a program computes itself.
          The weight is the gradient of the root by the term, read in a few steps.
        - Each of these steps is four examples. Terms with a weight of 0 count as missing.
        - Weights that vary, e.g. in a warm-up or if they are learned, prove nothing.

    Chance:
        A coin for each example.

    Not claimed:
        - Weights of terms that a loss has several times, and of losses with a single term.
        - The absolute scale of a loss.
        - Losses that are compiled, or given to autograd.grad.
    """

    name = "loss_terms"

    def proposer(self) -> TermProposer:
        return TermProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> TermDecider:
        return TermDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        need = (LabelPositions if claim.params["what"] == LABELS else LossTerms).need
        return Needs(kinds=frozenset({"mark", "step"}), states=frozenset({need}))

    def text(self, claim: Hypothesis) -> str:
        return in_program(claim.params, _text(claim.params))

    def antecedent(self, claim: Hypothesis) -> Mapping[str, Any]:
        """A run whose losses were not read proves nothing; nor does one without the terms."""
        params = claim.params
        of = {WEIGHT: params["of"], LABELS: LABELS}.get(params["what"], "")
        return {"program": params["program"], "api": _word(of, params.get("over", ""))}

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        what = claim.params["what"]
        return {
            "severity": "warning",
            "headline": _HEADLINES[what],
            "likely_cause": _CAUSES[what],
            "fix": _FIXES[what],
        }


class TermProposer(ProposerBase):
    """Proposes what all observed steps have in common."""

    observes = asked("mark", "step")

    def __init__(self) -> None:
        self._steps = StepTerms()
        self._seen: _Seen | None = None  # None before the first step with terms
        self._labels: set[str] | None = None  # None before the first step with labels
        self._terms: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()

    def observe(self, event: Event) -> None:
        losses = self._steps.observe(event)
        if losses is not None and losses.labels:
            held = {of for of in _OF_LABELS if not _wrong(of, losses.labels)}
            self._labels = held if self._labels is None else self._labels & held
        if losses is None or not losses.roots:
            return
        names, found = trained_names(losses.roots), ratios(losses.roots)
        self._terms |= names
        self._pairs |= found.keys()
        step: _Seen = {(TERM, name, ""): 1.0 for name in names}
        step |= {(WEIGHT, *pair): ratio for pair, ratio in found.items()}
        seen = step if self._seen is None else self._seen
        self._seen = {k: v for k, v in seen.items() if k in step and is_near(v, step[k])}

    def hypotheses(self) -> Iterator[Hypothesis]:
        program = self._program.name
        if program is None:
            return
        for of in sorted(self._labels or ()):
            params: dict[str, Any] = {"what": LABELS, "of": of, "program": program}
            yield Hypothesis(relation="loss_terms", params=params)
        for (what, of, over), value in sorted((self._seen or {}).items()):
            params = {"what": what, "of": of, "program": program}
            if what == WEIGHT:
                params |= {"over": over, "value": float(f"{value:.{_DIGITS}g}")}
            yield Hypothesis(relation="loss_terms", params=params)
        if self._terms:
            of = _JOINT.join(sorted(self._terms))
            params = {"what": TERMS, "of": of, "program": program}
            yield Hypothesis(relation="loss_terms", params=params)

    def observed_terms(self) -> Iterator[str]:
        """A term for losses that were read, and one for each pair of terms."""
        if self._seen is not None:
            yield _word("", "")
        if self._labels is not None:
            yield _word(LABELS, "")
        for pair in sorted(self._pairs):
            yield _word(*pair)


class TermDecider(OfProgram, DeciderBase):
    """Decides when a step ends. At the end of a run nothing: an unfinished step proves nothing."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._claims = [claim.params for claim in claims]
        unknown = [p for p in self._claims if p.get("what") not in _CAUSES or "of" not in p]
        if unknown:
            raise ValueError(f"nothing is known of {dict(unknown[0])}")
        self._steps = StepTerms()

    def observe(self, event: Event) -> Examples:
        losses = self._steps.observe(event)
        if losses is None:
            return ()
        names, found = trained_names(losses.roots), ratios(losses.roots)
        decided: list[tuple[int, Example]] = []
        for index, params in enumerate(self._claims):
            if not self._program.fits(params):
                continue
            example = None
            if params["what"] == LABELS:
                example = _of_labels(params["of"], losses.labels, event)
            elif losses.roots:
                example = _decide(params, names, found, event)
            if example is not None:
                decided += [(index, example)] * (_EACH if example.holds else 1)
        return decided


def _decide(
    params: Mapping[str, Any],
    names: frozenset[str],
    found: Mapping[tuple[str, str], float],
    event: Event,
) -> Example | None:
    """The example of a claim in a step; None if the step does not have its terms."""
    what, of = params["what"], params["of"]
    if what == TERM:
        seen = f"the loss is made of {joined(sorted(names))}"
        expected = f"the term {of} in the loss"
        return SATISFIED if of in names else _negative(event, of, expected, seen)
    if what == TERMS:
        new = sorted(names.difference(of.split(_JOINT)))
        if not new:
            return SATISFIED
        return _negative(event, new[0], f"a loss of {of}", f"the loss has the term {joined(new)}")
    ratio = found.get((of, params["over"]))
    if ratio is None:
        return None
    if is_near(ratio, params["value"]):
        return SATISFIED
    expected = f"{params['value']:.{_DIGITS}g} x the weight of {params['over']}"
    observed = f"{of} has {ratio:.{_DIGITS}g} x the weight of {params['over']}"
    return _negative(event, of, expected, observed).replace(topic=Topic.MAGNITUDE)


def _wrong(of: str, labels: Sequence[Positions]) -> int:
    """Number of positions that break a claim about labels."""
    if of == IGNORED:
        return sum(each.trained_ignored for each in labels)
    return sum((each.labels or 0) - each.trained_labels for each in labels)


def _of_labels(of: str, labels: Sequence[Positions], event: Event) -> Example | None:
    """The example of a claim about labels in a step; None if the step has none."""
    wrong = _wrong(of, labels)
    if not wrong:
        return SATISFIED if labels else None
    whole = sum(each.ignored if of == IGNORED else each.labels or 0 for each in labels)
    what = "ignored positions get a" if of == IGNORED else "positions with a label get no"
    observed = f"{wrong} of {whole} {what} gradient"
    subject = Subject(api=Families.BACKWARD)
    return counterexample(event, subject, _OF_LABELS[of], observed, Symptom.LOSS_INPUT)


def _negative(event: Event, term: str, expected: str, observed: str) -> Example:
    is_function = term[:1].islower()
    api = f"torch.nn.functional.{term.partition(' ')[0]}" if is_function else Families.BACKWARD
    return counterexample(event, Subject(api=api), expected, observed, Symptom.WRONG_VALUE)


def _text(params: Mapping[str, Any]) -> str:
    what, of = params["what"], params["of"]
    if what == TERM:
        return f"the loss of each training step contains {of}"
    if what == LABELS:
        return f"in a loss over tokens, {_OF_LABELS[of]}"
    if what == TERMS:
        return f"the loss has no other terms than {listed(of.split(_JOINT))}"
    value = f"{params['value']:.{_DIGITS}g}"
    return f"the weight of {of} in the loss is {value} times that of {params['over']}"


def _word(of: str, over: str) -> str:
    return f"loss term {of} {over}".strip()
