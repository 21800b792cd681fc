"""A resume does not restore the saved states of random generators."""

from __future__ import annotations

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class RandomStateNotRestored(EventRule, code="TC610", severity="info"):
    """random-state-not-restored: states of random generators are saved but not restored.

    What it checks:
        If model and optimizer are loaded from a file with the state of a random generator,
        torch.set_rng_state is called before training continues.

    Why it matters:
        The resumed run draws other numbers than the stopped run, or repeats those of its start.
        Orders and dropout masks repeat, and results are not reproducible.

    Fires on:
        - A resume that loads everything except the generators.

    Stays quiet on:
        - Files without such a state.
        - Fine-tuning from a file that this run does not write.
        - States of generators that are restored by their own set_state.

    Fix:
        Call torch.set_rng_state(checkpoint["rng"]).

    Source:
        https://pytorch.org/docs/stable/notes/randomness.html
    """

    title = "Random generators are not restored on resume"
    likely_cause = "The checkpoint holds their states, but torch.set_rng_state() is not called."
    fix = "Call torch.set_rng_state() with the saved state before training continues."
    needs = RESUME | Needs(calls=frozenset({Families.SET_RNG_STATE}))

    def __init__(self) -> None:
        super().__init__()
        self._resume = Resume()
        self._is_set = False
        self._is_reported = False

    def judge(self, event: Event) -> list[Violation]:
        resume = self._resume
        resume.observe(event)
        if isinstance(event, CheckpointEvent):
            self._is_set &= event.op != "load"
        elif isinstance(event, CallEvent):
            self._is_set |= event.api == Families.SET_RNG_STATE
        elif isinstance(event, StepEvent):
            return self._step()
        return []

    def _step(self) -> list[Violation]:
        resume = self._resume
        file = resume.file
        if file is None or resume.part("rng") is None or not resume.stepped:
            return []
        if resume.model is None or resume.optimizer is None:
            return []
        self.triggered += 1
        if self._is_reported or self._is_set or file.path not in resume.saved:
            return []
        self._is_reported = True
        call = next(iter(resume.stepped.values()))
        return [
            Violation(
                check_id=self.code,
                step=call.step,
                rank=call.rank,
                stage="train",
                subject=Subject(api=Families.SET_RNG_STATE),
                symptom=Symptom.ADVICE,
                message=(
                    f"model and optimizer were loaded from {file.path}, but its states of random "
                    "generators were not"
                ),
                expected="torch.set_rng_state() before training continues",
                observed="torch.set_rng_state() is not called",
                evidence=(file,),
            )
        ]
