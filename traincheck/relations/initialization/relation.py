"""The relation *initialization*: what fills the parameters of a program before its first step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traincheck.relations.base import ProposerBase, RelationBase
from traincheck.relations.example_cache import Examples
from traincheck.relations.initialization.init_calls import (
    FUNCTIONS,
    INIT,
    THEN,
    Book,
    Kind,
    kind_of,
    said_of,
)
from traincheck.relations.phrasing import in_program
from traincheck.schema.claims import Context, Hypothesis, Needs
from traincheck.schema.events import Event, StepEvent
from traincheck.schema.findings import CheckInfo, Example, Subject, Symptom
from traincheck.schema.words import listed

_ALWAYS: Context = {}
_HELD = Example(holds=True, context=_ALWAYS)


class Initialization(RelationBase):
    """Parameters are filled by the functions of torch.nn.init that they are meant to be filled by.

    What it says:
        One of two, for a program as a whole: which functions are called before the first step; or,
        for each kind of parameter (a name in a class of modules), which of them fill it, in order.

    Example:
        ``In train.py, torch.nn.init fills dt_bias of Mixer with uniform_, weight of Linear with
        kaiming_uniform_.`` It breaks when another function is called, or the initialization walks
        past some parameters.

    Evidence:
        One example for each call that fills a parameter, when the first step ends. A parameter
        that no function of torch.nn.init filled counts only if others of the run were.

    Chance:
        A coin for each example.

    Not said:
        With which numbers they are filled. Anything about other programs. Kinds of which some
        parameters are filled in one way and some in another, or that are filled by other means.
        What is filled after the first step.
    """

    name = "initialization"

    def proposer(self) -> InitializationProposer:
        return InitializationProposer()

    def decider(self, claims: Sequence[Hypothesis]) -> InitializationDecider:
        return InitializationDecider(claims)

    def needs(self, claim: Hypothesis) -> Needs:
        states = {"parameter@new"} if "kinds" in claim.params else set()
        return Needs(
            calls=frozenset(INIT + name for name in FUNCTIONS),
            states=frozenset(states),
            kinds=frozenset({"mark", "step"}),
        )

    def text(self, claim: Hypothesis) -> str:
        params = claim.params
        if "functions" in params:
            said = f"torch.nn.init fills parameters with {listed(params['functions'])}"
            return in_program(params, f"{said} before the first step")
        by_function: dict[str, list[str]] = defaultdict(list)
        for module_class, leaf, function in params["kinds"]:
            by_function[function].append(_kind_text(module_class, leaf))
        said = "; ".join(f"{listed(kinds)} with {name}" for name, kinds in by_function.items())
        return in_program(params, f"torch.nn.init fills {said}")

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Neither says what the other one says: a function may fill what has no name of its own."""
        return claim == other

    def info(self, claim: Hypothesis, check_id: str, text: str) -> CheckInfo:
        return CheckInfo(
            check_id=check_id,
            kind="invariant",
            code=self.name,
            severity="warning",
            title=text,
            headline="Initial values of {variables} come from elsewhere than in the reference",
            likely_cause="The initialization was changed, or does not reach {variables}.",
            fix="Compare what fills {variables} before the first step with the reference.",
        )


def _kind_text(module_class: str, leaf: str) -> str:
    return f"{leaf} of {module_class.rpartition('.')[2]}"


class InitializationProposer(ProposerBase):
    """Proposes what happened."""

    def __init__(self) -> None:
        self._book = Book()

    def observe(self, event: Event) -> None:
        if not self._book.is_over:
            self._book.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        book, program = self._book, self._book.program.name
        if not book.is_over or program is None:
            return
        if book.calls:
            yield _claim(program, functions=sorted(set(book.calls)))
        found: dict[Kind, set[str]] = defaultdict(set)
        for event, calls in book.filled():
            found[kind_of(event)].add(said_of(calls))
        kinds = [
            [module_class, leaf, function]
            for (module_class, leaf), functions in sorted(found.items())
            for function in functions
            if len(functions) == 1 and function
        ]
        if kinds:
            yield _claim(program, kinds=kinds)


def _claim(program: str, **said: Any) -> Hypothesis:
    return Hypothesis(relation="initialization", params={"program": program, **said})


class InitializationDecider:
    """Decides everything when the first step ends."""

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._book = Book()
        self._params = [claim.params for claim in claims]
        for params in self._params:
            names = params.get("functions") or [
                name for kind in params.get("kinds", ()) for name in kind[2].split(THEN)
            ]
            if not names or not set(names) <= set(FUNCTIONS):
                raise ValueError(f"nothing is known of {dict(params)}")

    def observe(self, event: Event) -> Examples:
        if self._book.is_over:
            return ()
        step = self._book.observe(event)
        if step is None:
            return ()
        return [
            (index, example)
            for index, params in enumerate(self._params)
            if self._book.program.fits(params)
            for example in self._judge(params, step)
        ]

    def finish(self) -> Examples:
        """Nothing: a run without a step does not train."""
        return ()

    def _judge(self, params: Mapping[str, Any], step: StepEvent) -> Iterator[Example]:
        if "functions" in params:
            wanted = params["functions"]
            for name in self._book.calls:
                if name in wanted:
                    yield _HELD
            for name in sorted(set(wanted) - set(self._book.calls)):
                subject = Subject(api=INIT + name)
                seen = listed(sorted(set(self._book.calls))) if self._book.calls else "none"
                yield _negative(step, subject, "it is called before the first step", seen)
            return
        kinds = {(module_class, leaf): name for module_class, leaf, name in params["kinds"]}
        for event, calls in self._book.filled():
            expected, found = kinds.get(kind_of(event)), said_of(calls)
            if expected is None:
                continue
            if expected == found:
                yield from [_HELD] * len(calls)
            else:
                subject = Subject(variable=event.name, api=calls[-1].api if calls else None)
                seen = found or "no function of torch.nn.init"
                wanted = f"it is filled by {expected}"
                yield _negative(step, subject, wanted, seen, *calls[-1:], event)


def _negative(
    step: StepEvent, subject: Subject, expected: str, seen: str, *evidence: Event
) -> Example:
    is_call = subject.variable is None
    return Example(
        holds=False,
        context=_ALWAYS,
        step=step.step,
        rank=step.rank,
        stage="init",
        subject=subject,
        expected=expected,
        observed=f"called instead: {seen}" if is_call else f"it was filled by {seen}",
        evidence=evidence or (step,),
        symptom=Symptom.MISSING_CALL if is_call else Symptom.INITIALIZATION,
    )
