"""The relation *initialization*: what fills the parameters of a program before its first step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.words import listed

INIT = "torch.nn.init."
FUNCTIONS = tuple(
    f"{name}_"
    for name in (
        "constant", "dirac", "eye", "kaiming_normal", "kaiming_uniform", "normal", "ones",
        "orthogonal", "sparse", "trunc_normal", "uniform", "xavier_normal", "xavier_uniform",
        "zeros",
    )
)  # fmt: skip
THEN = " then "
_MAX_FILLS = 4  # calls for one parameter that are compared
Kind = tuple[str, str]  # class of the module and name in it


class InitCalls:
    """Follows one process until its first step ends."""

    def __init__(self) -> None:
        self.calls: list[str] = []  # names of functions, in order
        self.is_over = False
        self._fills: dict[int, list[CallEvent]] = defaultdict(list)
        self._parameters: dict[str, StateEvent] = {}

    def observe(self, event: Event) -> StepEvent | None:
        """The first step, once it has ended and was recorded."""
        if isinstance(event, CallEvent):
            name = event.api.removeprefix(INIT)
            if name in FUNCTIONS and name != event.api:
                self.calls.append(name)
                identity = event.result.get("identity") if isinstance(event.result, dict) else None
                if identity is not None:
                    self._fills[identity].append(event)
        elif isinstance(event, StateEvent):
            if event.role == "parameter" and event.change in ("new", "replaced"):
                self._parameters[event.name] = event
        elif isinstance(event, StepEvent):
            self.is_over = True
            return event if event.recorded else None
        return None

    def filled(self) -> Iterator[tuple[StateEvent, Sequence[CallEvent]]]:
        """Each parameter with the calls that filled it; nothing if none is known.

        Of names that stand for one tensor, the first.
        """
        if any(event.identity in self._fills for event in self._parameters.values()):
            first: set[int] = set()
            for _, event in sorted(self._parameters.items()):
                if event.identity not in first:
                    first.add(event.identity)
                    yield event, self._fills.get(event.identity, ())


def functions_text(calls: Sequence[CallEvent]) -> str:
    """The functions in order: ``kaiming_uniform_ then normal_``."""
    return THEN.join(call.api.removeprefix(INIT) for call in calls[:_MAX_FILLS])


def kind_of(event: StateEvent) -> Kind:
    """Class of the module and name of the parameter in it."""
    return event.module_class or "", event.name.rpartition(".")[2]


class Initialization(RelationBase):
    """Functions of torch.nn.init fill the parameters as in the reference.

    Claims:
        One of two, for a program as a whole: which functions are called before the first step; or
        which of them fill each kind of parameter (a name in a class of modules), in order.

    Example:
        ``In train.py, torch.nn.init fills dt_bias of Mixer with uniform_, weight of Linear with
        kaiming_uniform_.`` It breaks when another function is called, or when the initialization
        misses some parameters.

    Evidence:
        One example for each call that fills a parameter, when the first step ends. A parameter that
        no function of torch.nn.init filled counts only if others of the run were filled.

    Chance:
        A coin for each example.

    Not claimed:
        - The numbers that fill them.
        - Anything about other programs.
        - Kinds whose parameters are filled in different ways, or by other means.
        - Parameters that are filled after the first step.
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
            text = f"torch.nn.init fills parameters with {listed(params['functions'])}"
            return in_program(params, f"{text} before the first step")
        by_function: dict[str, list[str]] = defaultdict(list)
        for module_class, leaf, function in params["kinds"]:
            by_function[function].append(f"{leaf} of {module_class.rpartition('.')[2]}")
        text = "; ".join(f"{listed(kinds)} with {name}" for name, kinds in by_function.items())
        return in_program(params, f"torch.nn.init fills {text}")

    def implies(self, claim: Hypothesis, other: Hypothesis) -> bool:
        """Neither form implies the other: a function may fill a tensor without a name."""
        return claim == other

    def words(self, claim: Hypothesis) -> Mapping[str, str]:
        return {
            "severity": "warning",
            "headline": "{variables} {is|are} initialized in another way than in the reference",
            "likely_cause": "The initialization may have been changed, or not reach {variables}.",
            "fix": "Compare the initialization of {variables} with the reference.",
        }


class InitializationProposer(ProposerBase):
    """Proposes the calls of the run."""

    observes = asked("step", "parameter@new") | Needs(
        calls=frozenset(f"{INIT}{name}" for name in FUNCTIONS)
    )

    def __init__(self) -> None:
        self._init_calls = InitCalls()

    def observe(self, event: Event) -> None:
        if not self._init_calls.is_over:
            self._init_calls.observe(event)

    def hypotheses(self) -> Iterator[Hypothesis]:
        calls_made, program = self._init_calls, self._program.name
        if not calls_made.is_over or program is None:
            return
        if calls_made.calls:
            yield _claim(program, functions=sorted(set(calls_made.calls)))
        found: dict[Kind, set[str]] = defaultdict(set)
        for event, calls in calls_made.filled():
            found[kind_of(event)].add(functions_text(calls))
        kinds = [
            [module_class, leaf, function]
            for (module_class, leaf), functions in sorted(found.items())
            for function in functions
            if len(functions) == 1 and function
        ]
        if kinds:
            yield _claim(program, kinds=kinds)


def _claim(program: str, **params: Any) -> Hypothesis:
    return Hypothesis(relation="initialization", params={"program": program, **params})


class InitializationDecider(OfProgram, DeciderBase):
    """Decides everything when the first step ends.

    At the end of a run nothing: a run without a step does not train.
    """

    def __init__(self, claims: Sequence[Hypothesis]) -> None:
        self._init_calls = InitCalls()
        self._params = [claim.params for claim in claims]
        for params in self._params:
            names = params.get("functions") or [
                name for kind in params.get("kinds", ()) for name in kind[2].split(THEN)
            ]
            if not names or not set(names) <= set(FUNCTIONS):
                raise ValueError(f"nothing is known of {dict(params)}")

    def observe(self, event: Event) -> Examples:
        if self._init_calls.is_over:
            return ()
        step = self._init_calls.observe(event)
        if step is None:
            return ()
        return [
            (index, example)
            for index, params in enumerate(self._params)
            if self._program.fits(params)
            for example in self._judge(params, step)
        ]

    def _judge(self, params: Mapping[str, Any], step: StepEvent) -> Iterator[Example]:
        if "functions" in params:
            wanted = params["functions"]
            for name in self._init_calls.calls:
                if name in wanted:
                    yield SATISFIED
            for name in sorted(set(wanted) - set(self._init_calls.calls)):
                subject = Subject(api=INIT + name)
                seen = (
                    listed(sorted(set(self._init_calls.calls)))
                    if self._init_calls.calls
                    else "none"
                )
                yield _negative(step, subject, "it is called before the first step", seen)
            return
        kinds = {(module_class, leaf): name for module_class, leaf, name in params["kinds"]}
        for event, calls in self._init_calls.filled():
            expected, found = kinds.get(kind_of(event)), functions_text(calls)
            if expected is None:
                continue
            if expected == found:
                yield from [SATISFIED] * len(calls)
            else:
                subject = Subject(variable=event.name, api=calls[-1].api if calls else None)
                seen = found or "no function of torch.nn.init"
                wanted = f"it is filled by {expected}"
                yield _negative(step, subject, wanted, seen, *calls[-1:], event)


def _negative(
    step: StepEvent, subject: Subject, expected: str, seen: str, *evidence: Event
) -> Example:
    is_call = subject.variable is None
    return counterexample(
        step,
        subject,
        expected,
        f"called instead: {seen}" if is_call else f"it was filled by {seen}",
        Symptom.MISSING_CALL if is_call else Symptom.INITIALIZATION,
        evidence=evidence or (step,),
        stage="init",
    )
