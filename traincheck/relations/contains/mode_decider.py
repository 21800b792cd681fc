"""Decide whether models are trained in training mode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from traincheck.facts.mode_effects import ModeEffects
from traincheck.facts.variables import Variables
from traincheck.relations.base import counterexample
from traincheck.relations.contains.messages import mode_broken
from traincheck.relations.example_cache import Examples, PositiveExamples
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Example, Subject, Symptom
from traincheck.schema.torch_api import MODAL, Families
from traincheck.schema.values import tensors_in

_UPDATE = frozenset({Families.BACKWARD, Families.ZERO_GRAD, Families.OPTIMIZER_STEP})


class ModeDecider:
    """Decides when an optimizer applies the gradients of a forward.

    Attributes:
        claims: indices of the claims.
    """

    def __init__(self, claims: Sequence[int], variables: Variables) -> None:
        self.claims = claims
        self._variables = variables
        self._effects = ModeEffects()
        self._positives = PositiveExamples()
        self._roots: dict[str, CallEvent] = {}  # last training forward of each root module
        # The first of several steps in evaluation mode, by model; None once it was reported
        self._in_eval: dict[str, Example | None] = {}
        self._pending: list[tuple[int, Example]] = []  # until an optimizer applies the gradients

    def mark(self, event: Event) -> None:
        """Enter marks of models and loaded state."""
        self._effects.observe(event)

    def call(self, event: CallEvent) -> Examples | None:
        """Enter a call. Return examples if it belongs to an update, else None."""
        if event.api in MODAL:
            self._effects.call(event)
        elif event.family == Families.MODULE:
            if event.root and event.grad_enabled:
                self._roots[event.module or event.api] = event
        elif event.family in _UPDATE or event.api == Families.BACKWARD:
            return self._update(event)
        return None

    def skip(self, *, recorded: bool) -> None:
        """A step ended that is not judged."""
        self._roots.clear()
        self._pending.clear()
        if not recorded:
            self._in_eval.clear()

    def _update(self, event: CallEvent) -> Examples:
        """The examples that an optimizer step confirms.

        Gradients that are cleared first were computed to look where they point.
        """
        if event.family == Families.OPTIMIZER_STEP:
            pending, self._pending = self._pending, []
            return pending if event.exception is None else ()
        if event.family == Families.ZERO_GRAD:
            self._pending.clear()
        else:
            self._pending += self._judge(event)
        return ()

    def _judge(self, backward: CallEvent) -> list[tuple[int, Example]]:
        """Judge the last forward of each root module before a backward.

        Earlier forwards do not count: some programs evaluate with grad enabled before they train
        on. Models that no optimizer holds, such as a teacher, do not count either.
        """
        examples = []
        trained = self._variables.held_models()
        for root, call in self._latest():
            model = root.partition(".")[0]
            if model not in trained or not _may_require_grad(call.result):
                continue
            frozen = model in self._variables.frozen_models()
            example = self._positives.with_features(model=model, frozen=frozen)
            if call.training:
                self._effects.trained(root)
            elif not self._effects.change_training(root, self._names_below(root)):
                continue
            else:
                example = counterexample(
                    call,
                    Subject(module=root),
                    *mode_broken(root),
                    Symptom.EVAL_MODE,
                    context=example.context,
                    evidence=(call, backward),
                    stage=call.stage,
                )
            for one in self._confirmed(root, example):
                examples += [(index, one) for index in self.claims]
        self._roots.clear()
        return examples

    def _confirmed(self, root: str, example: Example) -> Iterator[Example]:
        """The examples that are certain: one step in evaluation mode proves nothing."""
        if example.holds:
            self._in_eval.pop(root, None)
        elif root not in self._in_eval:
            self._in_eval[root] = example
            return
        else:
            first, self._in_eval[root] = self._in_eval[root], None
            if first is not None:
                yield first
        yield example

    def _names_below(self, root: str) -> list[str]:
        """The parameters of a module that an optimizer holds."""
        held = self._variables.held_parameters()
        return [v.name for v in held if v.requires_grad and v.name.startswith(f"{root}.")]

    def _latest(self) -> Iterator[tuple[str, CallEvent]]:
        """Root modules and their calls, without parts that ran alone before the whole model."""
        seen: set[int] = set()
        for root, call in sorted(self._roots.items(), key=lambda item: -item[1].start_ns):
            below = self._variables.below(root) if len(self._roots) > 1 else set()
            if not below or not below <= seen:
                yield root, call
            seen |= below


def _may_require_grad(result: Any) -> bool:
    """Whether gradients may flow from a result; a result without known tensors may."""
    values = result["dict"] if isinstance(result, dict) and "dict" in result else {"": result}
    tensors = tensors_in(values).values()
    return not tensors or any(tensor.requires_grad for tensor in tensors)
