"""A parameter is initialized repeatedly."""

from __future__ import annotations

from collections import Counter

from traincheck.rules.base.rule import BuiltInRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import RANDOM_INITS

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

    def __init__(self, times: int = 4) -> None:
        super().__init__()
        self._times = times
        self._counts: Counter[tuple[int, str]] = Counter()
        self._names: dict[int, str] = {}

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
                if count >= self._times and identity in self._names:
                    name = self._names[identity]
                    function = api.rpartition(".")[2]
                    found.append(
                        self.violation(
                            event,
                            stage="init",
                            subject=Subject(api=api, variable=name),
                            symptom=Symptom.ADVICE,
                            message=f"{function} initializes {name} {count} times",
                            expected="at most one initialization after the constructor's",
                            observed=f"{count} calls of {function}",
                        )
                    )
            return found
        return []
