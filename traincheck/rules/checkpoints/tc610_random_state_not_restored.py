"""A resume leaves the saved states of random generators in the file."""

from __future__ import annotations

from traincheck.rules.base.event_rule import EventRule
from traincheck.rules.checkpoints.resume import RESUME, Resume
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, CheckpointEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import Families


class RandomStateNotRestored(EventRule, code="TC610", severity="info"):
    """random-state-not-restored: states of generators are saved and never used.

    What it checks:
        When model and optimizer were loaded from a file that also holds the state of a random
        generator, torch.set_rng_state was called before training goes on.

    Why it matters:
        The resumed run draws other numbers than the one that was stopped, or the same as at its
        beginning: orders and dropout masks come again, and results cannot be repeated.

    Fires on:
        A resume that loads everything but the generators.

    Stays quiet on:
        Files without such a state; fine-tuning from a file that this run does not write; states
        of generators that are given back by their own set_state.

    Fix:
        Call torch.set_rng_state(checkpoint["rng"]).

    Source:
        https://pytorch.org/docs/stable/notes/randomness.html
    """

    title = "Random generators are not restored on resume"
    likely_cause = "The checkpoint holds their states, but torch.set_rng_state() is not called."
    fix = "Call torch.set_rng_state() with the saved state before training goes on."
    needs = RESUME | Needs(calls=frozenset({Families.SET_RNG_STATE}))

    def __init__(self) -> None:
        super().__init__()
        self._resume = Resume()
        self._is_set = False
        self._is_told = False

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
        if self._is_told or self._is_set or file.path not in resume.saved:
            return []
        self._is_told = True
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
                    f"model and optimizer were loaded from {file.path}, the states of random "
                    "generators in it were not"
                ),
                expected="torch.set_rng_state() before training goes on",
                observed="torch.set_rng_state() is not called",
                evidence=(file,),
            )
        ]
