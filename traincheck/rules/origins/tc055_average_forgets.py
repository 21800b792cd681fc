"""An average of weights whose memory is a few updates. Judged late, and at least twice."""

from __future__ import annotations

from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import AverageDecay
from traincheck.schema.observations.reading import observed
from traincheck.schema.words import AVERAGE_CLASS

_COPY = 0.02  # below: the model is copied, as target networks are
_SHORT = 0.7  # above: a memory of more than three updates
_LATE = 24  # step from which it is judged
_RISE = 0.02  # of the decay from one look to the next: a warm-up
_EXPLAINED = 0.1  # of a move: the rest is something else than averaging


class AverageForgets(EventRule, code="TC055", severity="info"):
    """average-forgets: an average of weights keeps only the last few updates.

    What it checks:
        A model that moves towards a trained model in each step keeps more than 70 % of its old
        values, once its warm-up is over.

    Why it matters:
        An average with a decay of 0.5 has a memory of two updates. It averages nothing: its weights
        are as noisy as the last ones. Usual decays are 0.99 and more.

    Fires on:
        - Two looks in a row after step 24, with a decay between 0.02 and 0.7 that does not rise.
          Example: self.decay = 1 - min(self.decay, ...), which writes over the setting in each
          update and settles at 0.5.
        - The same with a decay below 0.02, a copy, if the class of the model is that of an average.

    Stays quiet on:
        - Warm-ups, whose decay rises.
        - Averages that move by anything else than a share of the distance.
        - Copies of other classes, e.g. target networks and workers.
        - Models that an optimizer holds.

    Fix:
        Compute the decay of an update in a local variable, and keep the setting as it is.

    Source:
        https://github.com/huggingface/diffusers/issues/1864
    """

    title = "{subject} averages weights, but keeps only the last few updates"
    likely_cause = (
        "The decay is small, or an update writes its warmed-up decay over the setting: {observed}."
    )
    fix = (
        "Keep the setting and the decay of one update apart, e.g. decay = min(self.decay, "
        "(1 + n) / (10 + n)), with self.decay = 0.999."
    )
    needs = needs_of(AverageDecay)
    _last: dict[str, float] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, AverageDecay)
        if found is None or (event.step or 0) < _LATE or not found.residual <= _EXPLAINED:
            return []
        self.triggered += 1
        last, decay = self._last.get(found.model), found.decay
        self._last[found.model] = decay
        if last is None or found.model in self.reported:
            return []
        is_short = _is_short(last, found) and _is_short(decay, found) and decay - last <= _RISE
        if not is_short:
            return []
        self.reported.add(found.model)
        return self.found(
            event,
            subject=Subject(module=found.model),
            symptom=Symptom.ADVICE,
            message=f"{found.model} follows {found.of}: an update keeps {found.decay:.0%} of its "
            "values",
            expected="an average that keeps most of its values in an update, such as 99 %",
            observed=f"decays of {last:.2f} and {found.decay:.2f}, a memory of about "
            f"{1 / max(1 - found.decay, 1e-3):.1f} updates",
        )


def _is_short(decay: float, found: AverageDecay) -> bool:
    """Whether this is the decay of an average that forgets."""
    name = found.model_class.rpartition(".")[2]
    least = -_COPY if AVERAGE_CLASS.search(name) else _COPY
    return least <= decay <= _SHORT
