"""A model calls layers that are not its submodules. No other event shows their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from traincheck.rules.base.rule import BuiltInRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event, OptimizerEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.torch_api import COMPILED, Families
from traincheck.schema.values import tensor_summary
from traincheck.schema.words import counted, is_unowned

_CONFIRMED = 3
_WITH_WEIGHTS = tuple(
    f"torch.nn.modules.{name}" for name in ("linear.", "conv.", "rnn.", "sparse.Embedding")
)

# Up to torch 2.5, some backends of a compiled model run copies of the model's own layers.


class LayerNotRegistered(BuiltInRule, code="TC113"):
    """layer-not-registered: a model calls layers that are not among its modules.

    What it checks:
        Linear, convolutional, recurrent and embedding layers that run inside the forward pass of a
        trained model are submodules of it.

    Why it matters:
        model.parameters() and state_dict() omit unregistered layers: they are neither trained nor
        saved, and train(), eval() and to() do not reach them. The rest learns on top of random
        features.

    Fires on:
        - Three training steps in a row in which such layers, in training mode, compute results that
          require grad. Causes are a Python list, dict or tuple of layers, or a layer that is
          created in forward().

    Stays quiet on:
        - nn.ModuleList and nn.ModuleDict.
        - Parts in evaluation mode or without gradients, e.g. teachers and feature networks that are
          hidden on purpose.
        - Layers that a compiled model runs.
        - Optimizers that were given parameters of no module.

    Fix:
        Keep layers in nn.ModuleList or nn.ModuleDict, or as attributes, and create them in
        __init__(). Put parts that are not to be trained into evaluation mode.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html
    """

    title = "{subject} calls layers that it does not register"
    likely_cause = (
        "Layers may be kept in a Python list, dict or tuple, or be created in forward(): "
        "{observed}."
    )
    fix = (
        "Keep layers in nn.ModuleList or nn.ModuleDict, or as attributes, and create them in "
        "__init__(). Put parts that are not to be trained into evaluation mode."
    )
    needs = Needs(
        calls=frozenset({Families.MODULE, Families.OPTIMIZER_STEP}),
        kinds=frozenset({"optimizer", "step"}),
    )
    _loose: set[str] = fresh(set)  # optimizers that hold tensors of no module
    _has_stepped = False
    _nameless: list[CallEvent] = fresh(list)  # calls since the last outermost call ended
    _models: dict[str, _Model] = fresh(dict)

    def observe(self, event: Event) -> Sequence[Violation]:
        if isinstance(event, CallEvent):
            if event.family == Families.OPTIMIZER_STEP:
                self._has_stepped |= event.exception is None
                return ()
            if event.api == COMPILED:
                self._nameless = [call for call in self._nameless if call.parent != event.span]
            if event.root:
                nameless, self._nameless = self._nameless, []
                if not event.module or not (event.grad_enabled and event.training):
                    return ()
                self.triggered += 1
                model = self._models.setdefault(event.module, _Model())
                model.strangers += nameless  # inner calls ran within it
            elif event.module is None and _is_trained(event):
                self._nameless.append(event)
        elif isinstance(event, OptimizerEvent):
            names = (name for group in event.groups for name in group.params)
            if any(map(is_unowned, names)):
                self._loose.add(event.id)
        elif isinstance(event, StepEvent):
            return self._judge(event)
        return ()

    def _judge(self, event: StepEvent) -> list[Violation]:
        self._nameless.clear()
        has_stepped, self._has_stepped = self._has_stepped, False
        is_proof = event.recorded and event.complete and has_stepped and not self._loose
        found = []
        for name, model in sorted(self._models.items()):
            strangers, model.strangers = model.strangers, []
            if not strangers or not is_proof:
                model.steps = 0
                continue
            model.steps += 1
            model.first = event.step if model.steps == 1 else model.first
            if model.steps >= _CONFIRMED and not model.is_reported:
                model.is_reported = True
                kinds = sorted(
                    {call.api.removesuffix(".forward").rpartition(".")[2] for call in strangers}
                )
                calls = f"{counted(len(strangers), 'call')} of {', '.join(kinds)} in a step"
                found += self.found(
                    event,
                    step=model.first,
                    stage="train",
                    symptom=Symptom.NOT_IN_OPTIMIZER,
                    subject=Subject(api=strangers[0].api, module=name),
                    message=f"{name} makes {calls} of layers that are not its submodules",
                    expected=f"each layer that {name} calls is a submodule of it",
                    observed=f"it makes {calls} of layers that {name} does not own",
                    evidence=tuple(strangers[:1]),
                )
        return found


@dataclass(slots=True)
class _Model:
    """State of one outermost module.

    Attributes:
        strangers: calls of unregistered layers in its forward passes of this step.
    """

    strangers: list[CallEvent] = field(default_factory=list)
    steps: int = 0
    first: int | None = None
    is_reported: bool = False


def _is_trained(event: CallEvent) -> bool:
    result = tensor_summary(event.result)
    is_of_graph = result is None or result.requires_grad
    is_on = event.grad_enabled and event.training and event.exception is None
    return bool(is_on and is_of_graph and event.api.startswith(_WITH_WEIGHTS))
