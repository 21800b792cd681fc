"""Weights are initialized after they were loaded. Compares identity and content."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import RANDOM_INITS, Families

_INITS = RANDOM_INITS | {
    f"torch.nn.init.{name}_" for name in ("constant", "zeros", "ones", "eye", "dirac", "sparse")
}
_MATRIX = 2  # dims of a weight
_FEWEST = 2  # weights
_MOST = 100_000  # parameters that are initialized after a load


class InitializedAfterLoad(EventRule, code="TC613", severity="error"):
    """initialized-after-load: a model is initialized again after its weights were loaded.

    What it checks:
        torch.nn.init does not fill the weights of a model between load_state_dict() and the first
        step.

    Why it matters:
        The loaded weights are lost. Training starts from scratch with the learning rate of a
        fine-tuning. The load reported success, and the loss falls.

    Fires on:
        - A load after which four fifths of the loaded weights (at least two) are initialized and
          have other values when the first step ends.

    Stays quiet on:
        - A new head, or other small parts that are initialized after the load.
        - Weights that are loaded or copied once more.
        - An initialization before the load, or after a first step.
        - Parameters on a GPU.

    Fix:
        Initialize first, then load.

    Options:
        share: share of the loaded weights, in [0, 1], that counts as all of them.

    Source:
        https://github.com/open-mmlab/mmengine/pull/555
    """

    title = "{subject} is initialized after its weights were loaded"
    likely_cause = "An initialization runs after load_state_dict(): {observed}."
    fix = "Initialize first, then load."
    needs = Needs(
        calls=_INITS | {Families.OPTIMIZER_STEP},
        states=frozenset({"parameter@new"}),
        kinds=frozenset({"checkpoint", "step"}),
    )

    def __init__(self, share: float = 0.8) -> None:
        super().__init__()
        self.share = share
        self._loads: dict[str, CheckpointEvent] = {}  # by target
        self._filled: dict[int, CallEvent] = {}  # last initialization by identity
        self._looks: dict[str, StateEvent] = {}  # first record of each loaded weight since then
        self._is_over = False

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CheckpointEvent):
            if event.values and event.target is not None:
                self.triggered += 1
                self._loads[event.target] = event
                for name in event.values:
                    self._looks.pop(name, None)
        elif not self._loads:
            return []
        elif isinstance(event, CallEvent):
            self._call(event)
        elif isinstance(event, StateEvent):
            self._look(event)
        elif isinstance(event, StepEvent) and self._is_over:
            found = [v for load in self._loads.values() for v in self._conclude(load)]
            self._loads.clear()
            self._filled.clear()
            self._looks.clear()
            self._is_over = False
            return found
        return []

    def _call(self, event: CallEvent) -> None:
        if event.api not in _INITS:
            self._is_over = True  # the step ends soon, after the late records of states
            return
        result = event.result if isinstance(event.result, dict) else {}
        identity = result.get("identity")
        if not self._is_over and isinstance(identity, int) and len(self._filled) < _MOST:
            self._filled[identity] = event

    def _look(self, event: StateEvent) -> None:
        if event.role != "parameter" or event.summary is None or not event.summary.fingerprint:
            return
        if any(event.name in load.values for load in self._loads.values()):
            self._looks.setdefault(event.name, event)

    def _conclude(self, load: CheckpointEvent) -> list[Violation]:
        looks = [self._looks[name] for name in load.values if name in self._looks]
        weights = [look for look in looks if look.summary and len(look.summary.shape) >= _MATRIX]
        lost = [
            look
            for look in weights
            if (call := self._filled.get(look.identity)) is not None
            and call.time_ns > load.time_ns
            and look.summary is not None
            and look.summary.fingerprint != load.values[look.name]
        ]
        if len(lost) < max(_FEWEST, self.share * len(weights)):
            return []
        call = self._filled[lost[0].identity]
        return [
            Violation(
                check_id=self.code,
                step=lost[0].step,
                rank=load.rank,
                stage=lost[0].stage,
                subject=Subject(module=load.target, variable=lost[0].name),
                symptom=Symptom.NOT_RESTORED,
                message=f"{call.api} fills {lost[0].name} after the load",
                expected="the loaded values at the first step",
                observed=f"{call.api} fills {len(lost)} of {len(weights)} loaded weights",
                evidence=(load, call, lost[0]),
            )
        ]
