"""TC601: a load that fits nothing. Judges single loads."""

from __future__ import annotations

from traincheck.rules._single import SingleEvents
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import CheckInfo, Subject, Symptom, Violation


class NothingLoaded:
    """TC601 nothing-loaded: load_state_dict(strict=False) takes nothing from the state it is given.

    What it checks:
        Of the keys given to a model's load_state_dict, at least one is the name of a parameter or
        buffer of that model.

    Why it matters:
        With strict=False a wrong prefix is no error. Training goes on from random weights while
        everyone believes it was fine-tuned or resumed.

    Fires on:
        State with a prefix such as module., model. or _orig_mod. given to a model without it.

    Stays quiet on:
        States that fit in part, as when a head is new; empty states; loads that raise.

    Fix:
        Strip the prefix from the keys, and look at the missing_keys that load_state_dict returns.

    Source:
        https://github.com/torchgeo/torchgeo/issues/4036,
        https://github.com/stefanopini/simple-HRNet/issues/79
    """

    info = CheckInfo(
        check_id="TC601",
        kind="rule",
        code="TC601",
        severity="error",
        title="load_state_dict takes nothing from the state given to {subject}",
        likely_cause="No key fits{where}, and strict=False hides it: {observed}.",
        fix=(
            "Strip the prefix (module., model., _orig_mod.) from the keys, and use strict=True or "
            "check the missing_keys that are returned."
        ),
    )
    needs = Needs(kinds=frozenset({"checkpoint", "step"}))

    def monitor(self) -> Loads:
        return Loads()


class Loads(SingleEvents):
    """Looks at each load of a model."""

    def judge(self, event: Event) -> list[Violation]:
        if not isinstance(event, CheckpointEvent) or event.matched is None:
            return []
        self.triggered += 1
        if event.matched or not event.entries or not event.missing:
            return []
        given = ", ".join(event.unexpected[:2]) or "other keys"
        wanted = ", ".join(event.missing[:2])
        return [
            Violation(
                check_id="TC601",
                step=event.step,
                rank=event.rank,
                stage=event.stage,
                subject=Subject(module=event.target),
                symptom=Symptom.NOT_RESTORED,
                message=(
                    f"none of the {event.entries} keys given to {event.target}.load_state_dict is "
                    f"one of its own: it was given {given}, and has {wanted}"
                ),
                expected=f"keys such as {wanted}",
                observed=f"keys such as {given}",
                evidence=(event,),
            )
        ]
