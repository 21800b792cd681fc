"""Weight decay that is coupled, or acts on parameters that should not decay."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from traincheck.rules.base.model_rule import EMBEDDING, MODELS, NORMS, Model, about, model_of
from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Violation
from traincheck.schema.values import number

_LEAST = 1e-6  # a smaller decay has no effect within a training
DECAY = MODELS | Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"optimizer", "step"}))


class DecayRule(BuiltInRule):
    """Compares decaying parameters with the structure of the models at the end of a step."""

    _models: dict[str, Model] = fresh(dict)
    _waiting: list[OptimizerEvent] = fresh(list)
    _reported: set[str] = fresh(set)  # lines that create optimizers, or optimizer ids
    _frozen: set[str] = fresh(set)  # optimizers skip parameters without a gradient

    def observe(self, event: Event) -> Sequence[Violation]:
        model = model_of(event)
        if model is not None:
            self._models[model.name] = model
        elif isinstance(event, StateEvent):
            if event.role == "parameter" and event.change in ("new", "replaced", "flags"):
                (self._frozen.discard if event.requires_grad else self._frozen.add)(event.name)
        elif isinstance(event, OptimizerEvent):
            self._waiting.append(event)
        elif isinstance(event, StepEvent) and self._waiting:
            waiting, self._waiting = self._waiting, []
            return [found for optimizer in waiting for found in self._judge(optimizer)]
        return ()

    @abstractmethod
    def should_not_decay(self, name: str, family: str | None) -> bool:
        """Whether a parameter with this full name, in a layer of this family, should not decay."""

    def _judge(self, event: OptimizerEvent) -> Sequence[Violation]:
        if not event.cls.startswith("torch.optim."):  # custom optimizers may exclude them
            return ()
        decaying = [
            name
            for group in event.groups
            if (number(group.hyper.get("weight_decay")) or 0.0) >= _LEAST
            for name in group.params
            if name not in self._frozen
        ]
        place = event.where or event.id  # trials and folds create theirs in one line
        if not decaying or place in self._reported:
            return ()
        self.triggered += 1
        found = sorted(filter(self._is_wrong, decaying))
        if not found:
            return ()
        self._reported.add(place)
        violation = about(
            self.info,
            event,
            found,
            expected="weight_decay=0 for these parameters",
            observed=f"decayed by {event.id} ({event.cls.rpartition('.')[2]})",
        )
        return [replace(violation, subject=Subject(variable=found[0]))]

    def _is_wrong(self, name: str) -> bool:
        module = name.rpartition(".")[0]
        model = self._models.get(name.partition(".")[0])
        family = model.modules.get(module, {}).get("family") if model is not None else None
        return self.should_not_decay(name, family)


_ADAM = "torch.optim.adam.Adam"


class AdamWithDecay(BuiltInRule, code="TC906", severity="info"):
    """adam-with-decay: Adam uses weight decay that is not decoupled.

    What it checks:
        Adam has no weight_decay that it adds to the gradient.

    Why it matters:
        The decay passes through Adam's scaling, so weights with large gradients hardly decay. AdamW
        decays all weights alike.

    Fires on:
        - Adam(parameters, weight_decay=0.01).

    Stays quiet on:
        - AdamW.
        - Adam with decoupled_weight_decay=True.
        - A decay of zero.
        - Other optimizers.

    Fix:
        Use torch.optim.AdamW.

    Source:
        https://arxiv.org/abs/1711.05101
    """

    title = "Adam uses coupled weight decay"
    likely_cause = "The decay may have been written for AdamW or SGD."
    fix = "Use torch.optim.AdamW, and tune the decay again."
    needs = Needs(kinds=frozenset({"optimizer"}))

    def observe(self, event: Event) -> Sequence[Violation]:
        if not isinstance(event, OptimizerEvent) or event.cls != _ADAM:
            return ()
        made = event.where or event.id  # one line may create many, e.g. for one model after another
        if made in self.reported:
            return ()
        self.triggered += 1
        coupled = [
            group.hyper["weight_decay"]
            for group in event.groups
            if group.hyper.get("weight_decay") and not group.hyper.get("decoupled_weight_decay")
        ]
        if not coupled:
            return ()
        self.reported |= {made, event.id}
        return [
            about(
                self.info,
                event,
                [event.id],
                expected="decay that is not scaled by Adam",
                observed=f"weight_decay={coupled[0]} is added to the gradient",
            )
        ]


class DecayOnBiasOrNorm(DecayRule, code="TC907", severity="info"):
    """decay-on-bias-or-norm: weight decay is applied to biases or norms.

    What it checks:
        Parameter groups with weight decay contain no biases and no parameters of norms.

    Why it matters:
        Decay pulls scales and offsets to zero. This does not regularize and only costs accuracy.

    Fires on:
        - AdamW(model.parameters()) with its default weight_decay over a model with biases or norms.
          There is one finding for each optimizer.

    Stays quiet on:
        - Groups without decay.
        - Optimizers over weights alone.

    Fix:
        Use two parameter groups: decay for weights, weight_decay=0 for biases and norms.

    Source:
        https://arxiv.org/abs/1812.01187
    """

    title = "Weight decay is applied to biases or norms"
    likely_cause = "Biases and norms are in a parameter group with the weight decay of weights."
    fix = "Put biases and the parameters of norms into a group with weight_decay=0."
    needs = DECAY

    def should_not_decay(self, name: str, family: str | None) -> bool:
        return name.endswith(".bias") or family in NORMS


# All rows get gradients in every step.
_OF_POSITIONS = re.compile(r"(^|[._])(wpe|pos(ition(s|al)?)?)([._]|$)")


class DecayOnEmbedding(DecayRule, code="TC908", severity="info"):
    """decay-on-embedding: weight decay is applied to embeddings.

    What it checks:
        Parameter groups with weight decay contain no embeddings.

    Why it matters:
        Rows of rare tokens get no gradient, so only the decay changes them.

    Fires on:
        - An optimizer with weight decay over a model with an embedding. There is one finding for
          each optimizer.

    Stays quiet on:
        - Groups without decay.
        - Models without embeddings.
        - Position embeddings.

    Fix:
        Use a separate parameter group with weight_decay=0.

    Source:
        https://arxiv.org/abs/2005.14165
    """

    title = "Weight decay is applied to embeddings"
    likely_cause = "Embeddings are in a group with weight decay."
    fix = "Put embeddings into a group with weight_decay=0."
    needs = DECAY

    def should_not_decay(self, name: str, family: str | None) -> bool:
        return family == EMBEDDING and _OF_POSITIONS.search(name) is None
