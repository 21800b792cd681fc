"""A loaded weight is replaced by another one. Compares identity and content."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StateEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class LoadedWeightLostByTying(EventRule, code="TC606", aliases=("loaded-weight-given-up",)):
    """loaded-weight-lost-by-tying: weights are tied after a load with different values for them.

    What it checks:
        Two parameters with different values in a checkpoint do not become one parameter before the
        first step.

    Why it matters:
        One of the trained weights is discarded. The model starts with an output layer that does not
        belong to its body, without a message.

    Fires on:
        - head.weight = embedding.weight after load_state_dict() of a model in which they differ.

    Stays quiet on:
        - Checkpoints in which both are equal, or only one is present.
        - Weights that were tied before the load.
        - Layers that are replaced after the load.
        - Parameters on a GPU.

    Fix:
        Do not tie the weights (tie_word_embeddings=False), or load a checkpoint with tied weights.

    Source:
        https://github.com/huggingface/transformers/pull/42612
    """

    title = "The loaded {variables} {was|were} replaced by another weight"
    likely_cause = "Weights may be tied after load_state_dict(), which gave them different values."
    fix = "Leave the weights untied, as in the checkpoint."
    needs = Needs(
        calls=frozenset({Families.OPTIMIZER_STEP}),
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint", "step"}),
    )

    def __init__(self) -> None:
        super().__init__()
        self._loads: dict[str, CheckpointEvent] = {}  # root -> load of it
        self._names: dict[tuple[str, int], StateEvent] = {}  # (root, identity) -> its first name

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            if event.values and event.changed:
                self.triggered += 1
                self._loads[_root(next(iter(event.values)))] = event
        elif isinstance(event, CallEvent):
            self._loads.clear()
        elif isinstance(event, StateEvent) and event.role == "parameter":
            return self._look(event)
        return []

    def _look(self, event: StateEvent) -> list[Violation]:
        if event.change not in ("new", "replaced"):
            return []
        root = _root(event.name)
        other = self._names.setdefault((root, event.identity), event)
        load = self._loads.get(root)
        if load is None or other.name == event.name or event.summary is None:
            return []
        pair = (load.values.get(event.name), load.values.get(other.name))
        now = event.summary.fingerprint
        if None in pair or pair[0] == pair[1] or now not in pair:
            return []
        lost, kept = (event, other) if pair[1] == now else (other, event)
        return [
            self.violation(
                event,
                subject=Subject(variable=lost.name),
                symptom=Symptom.NOT_RESTORED,
                message=f"{lost.name}, loaded with other values, is now the same as {kept.name}",
                expected=f"{lost.name} and {kept.name} with different values, as loaded",
                observed="both names refer to one parameter",
                evidence=(load, lost),
            )
        ]


def _root(name: str) -> str:
    return name.partition(".")[0]
