"""Copies and averages of weights that do not follow them."""

from __future__ import annotations

from traincheck.rules.base.model_rule import EMBEDDING, LINEAR, model_of
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import MIN_MATCHED_ELEMENTS, Needs
from traincheck.schema.events import Event, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import AverageDecay
from traincheck.schema.observations.models import ModelStructure
from traincheck.schema.observations.reading import observed
from traincheck.schema.words import AVERAGE_CLASS

_TABLE = 2  # dims of a weight
_UPDATES = 2  # steps with an update in which they differ
_TIED = "tie_word_embeddings"


# Compares fingerprints and identities.
class TiedCopiesDrift(EventRule, code="TC054"):
    """tied-copies-drift: a copy of a tied weight is trained apart from it.

    What it checks:
        A weight that two layers share, or that the configuration says they share, has no copy in
        the same model that training makes differ.

    Why it matters:
        The model computes with two matrices where it is defined with one. A save or a merge keeps
        one of them, and the result of training is lost in part when it is loaded.

    Fires on:
        - A weight that equals a tied weight of its model when it is found, has a single name, and
          differs after two updates. Example: LoraConfig(modules_to_save=["lm_head"]) with
          tied embeddings.
        - An embedding and an output layer that are equal when they are found and then differ, while
          config.tie_word_embeddings is True.

    Stays quiet on:
        - Copies of a whole model, whose own weights are tied, e.g. a teacher or an average.
        - Weights that differ from the beginning.
        - Weights of equal values without a sign that they should be tied.
        - Copies that stay equal.
        - Parameters without a fingerprint, e.g. on a GPU in a sampled recording.

    Fix:
        Train one of them only, or tie them again: ensure_weight_tying=True in LoraConfig.

    Source:
        https://github.com/huggingface/peft/issues/2777
    """

    title = "{subject} is a copy of a tied weight, and drifts apart from it"
    likely_cause = (
        "A layer whose weight is tied was copied to be trained, e.g. by modules_to_save: "
        "{observed}."
    )
    fix = (
        "Keep them tied: LoraConfig(ensure_weight_tying=True), or head.weight = embedding.weight "
        "after the copy. Otherwise set tie_word_embeddings=False and save both."
    )
    needs = needs_of(ModelStructure) | Needs(
        states=frozenset({"parameter@new", "parameter@step"}), kinds=frozenset({"step"})
    )
    _now: dict[str, StateEvent] = fresh(dict)
    _declared: set[tuple[str, str]] = fresh(set)  # an embedding and a layer of its shape
    _found: dict[str, list[StateEvent]] = fresh(dict)  # in this step, by fingerprint
    _equal: list[tuple[str, str]] = fresh(list)  # when they were found
    _pairs: dict[tuple[str, str], int] = fresh(dict)  # a copy and its source: updates that differ

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role != "parameter":
                return []
            if event.change == "gone":
                self._now.pop(event.name, None)
            elif event.summary is not None and len(event.summary.shape) == _TABLE:
                if event.change in ("new", "replaced"):
                    self._find(event)
                self._now[event.name] = event
        elif isinstance(event, StepEvent):
            return self._step(event) if event.counters.get("optimizer_step") else []
        elif (model := model_of(event)) is not None and model.tokens.get(_TIED) is True:
            embeddings = list(model.of_family(EMBEDDING))
            for path, layer in model.of_family(LINEAR):
                size = (layer.get("out_features"), layer.get("in_features"))
                for other, table in embeddings:
                    if size == (table.get("num_embeddings"), table.get("embedding_dim")):
                        self._declared.add((f"{path}.weight", f"{other}.weight"))
        return []

    def _find(self, event: StateEvent) -> None:
        """A parameter is found: which others have its content?"""
        content = event.summary.fingerprint if event.summary is not None else None
        if content is None:
            return
        others = self._found.setdefault(content, [])
        for other in others:
            if _are_equal(event, other):
                self._equal += [(event.name, other.name), (other.name, event.name)]
        others.append(event)

    def _settle(self) -> None:
        """A step ends: all names and the structure are known. Which of them should be tied?"""
        for copy, source in self._equal:
            is_copy = self._is_tied(source) and not self._is_tied(copy)
            if is_copy or (copy, source) in self._declared:
                self._pairs.setdefault((copy, source), 0)
        self._equal.clear()
        self._found.clear()

    def _is_tied(self, name: str) -> bool:
        """Whether layers of two kinds share a parameter."""
        own = self._now.get(name)
        sharing = [e for e in self._now.values() if own is not None and e.identity == own.identity]
        return len({event.module_class for event in sharing}) > 1

    def _step(self, step: StepEvent) -> list[Violation]:
        self._settle()
        found: list[Violation] = []
        for copy, source in list(self._pairs):
            mine, theirs = self._now.get(copy), self._now.get(source)
            if mine is None or theirs is None or mine.identity == theirs.identity:
                del self._pairs[copy, source]
                continue
            self.triggered += 1
            if _is_known(mine) and _is_known(theirs) and not _are_equal(mine, theirs):
                self._pairs[copy, source] += 1
            if self._pairs[copy, source] >= _UPDATES and copy not in self.reported:
                # The other copies of a weight: they have one finding.
                self.reported.update((copy for copy, other in self._pairs if other == source))
                trained = "both are trained" if theirs.requires_grad else "only the copy is trained"
                found += self.found(
                    step,
                    subject=Subject(variable=mine.name),
                    symptom=Symptom.SHARING_LOST,
                    message=f"{mine.name} began as a copy of {theirs.name}, which is tied, and "
                    f"moved away from it in {_UPDATES} updates",
                    expected="one matrix for tied layers",
                    observed=f"two matrices that were equal and differ now; {trained}",
                    evidence=(mine, theirs),
                )
        return found


def _is_known(event: StateEvent) -> bool:
    return event.summary is not None and event.summary.fingerprint is not None


def _are_equal(one: StateEvent, other: StateEvent) -> bool:
    """Whether two parameters of one model have the same content, which is not that of zeros."""
    mine, theirs = one.summary, other.summary
    if mine is None or theirs is None or mine.fingerprint is None or mine.zero is True:
        return False
    return (
        mine.fingerprint == theirs.fingerprint
        and one.identity != other.identity
        and one.name.partition(".")[0] == other.name.partition(".")[0]
        and mine.shape[0] * mine.shape[1] >= MIN_MATCHED_ELEMENTS
        and one.module_class != other.module_class
    )


_COPY = 0.02  # below: the model is copied, as target networks are
_SHORT = 0.7  # above: a memory of more than three updates
_LATE = 24  # step from which it is judged
_RISE = 0.02  # of the decay from one look to the next: a warm-up
_EXPLAINED = 0.1  # of a move: the rest is something else than averaging


# Judged late, and at least twice.
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
