"""Calls of torch.nn.init before the first step, and the parameters that they fill."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from traincheck.facts.programs import ProgramName
from traincheck.schema.events import CallEvent, Event, StateEvent, StepEvent

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
        self.program = ProgramName()
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
        else:
            self.program.observe(event)
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
