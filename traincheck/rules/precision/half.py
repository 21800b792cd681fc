"""Values that are in half precision and should not be."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traincheck.readings.losses import BCE_LOGITS, CROSS_ENTROPY, NLL, F, as_loss, given, loss_needs
from traincheck.readings.step_facts import DISCOVERY
from traincheck.rules.base.rule import BuiltInRule, EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CheckpointEvent, Event, OptimizerEvent, StateEvent, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

# Usual names of rotary frequencies, and of tables of positions or time steps.
_POSITIONS = re.compile(
    r"(^|[._])(inv_?freqs?|original_inv_freq|rope_freqs?|rotary_freqs?|position_?ids|positions"
    r"|timesteps?|timescales?)$"
)
_HALF = frozenset({"float16", "bfloat16"})


class PositionBufferInHalf(BuiltInRule, code="TC802"):
    """position-buffer-in-half: a buffer of positions or frequencies has too little precision.

    What it checks:
        Buffers named like rotary frequencies, positions or time steps are not in bfloat16 or
        float16.

    Why it matters:
        bfloat16 has eight significant bits. Positions beyond 256 coincide, and rounded frequencies
        shift the angles of late positions by whole radians. No error is raised.

    Fires on:
        - model.to(torch.bfloat16) or .half() on a model with such a buffer.

    Stays quiet on:
        - Buffers in float32.
        - Integers.
        - Other buffers in half precision.
        - Models loaded with their buffers left in float32.

    Fix:
        Cast only the parameters, or restore these buffers to float32 after the cast.

    Source:
        https://github.com/huggingface/transformers/issues/25681, https://github.com/EleutherAI/gpt-neox/issues/1003
    """

    title = "{variables} {is|are} in half precision"
    likely_cause = (
        "The whole model may have been cast (.to(torch.bfloat16) or .half()), including "
        "{variables}: positions or frequencies are rounded."
    )
    fix = "Load or cast only the parameters, or recompute {variables} in float32 after the cast."
    needs = Needs(states=frozenset({"buffer@new"}), kinds=frozenset({"step"}))

    def observe(self, event: Event) -> list[Violation]:
        if not isinstance(event, StateEvent) or event.summary is None:
            return []
        if event.change not in ("new", "flags", "replaced") or not _POSITIONS.search(event.name):
            return []
        self.triggered += 1
        dtype = event.summary.dtype
        if dtype not in _HALF:
            return []
        return self.found(
            event,
            subject=Subject(variable=event.name),
            symptom=Symptom.PRECISION,
            message=f"a cast to {dtype} rounds the positions in {event.name}",
            expected="float32",
            observed=dtype,
        )


_BFLOAT16 = "bfloat16"  # TC803 checks float16
_NAMED = 8


class ParametersInHalf(BuiltInRule, code="TC805", severity="info"):
    """parameters-in-half: an optimizer updates half-precision parameters directly.

    What it checks:
        Parameters that require grad and are held by an optimizer are not in bfloat16.

    Why it matters:
        An update smaller than 1/256 of a bfloat16 weight is lost entirely. With usual learning
        rates, most updates late in training are that small.

    Fires on:
        - A model cast to bfloat16 whose parameters are passed to the optimizer.

    Stays quiet on:
        - Parameters in float32, also under autocast.
        - Frozen parameters in half precision.

    Fix:
        Keep parameters in float32 and use autocast, or an optimizer with float32 copies.

    Source:
        https://docs.pytorch.org/docs/stable/notes/amp_examples.html
    """

    title = "{variables} {is|are} trained in half precision"
    likely_cause = "The model may have been cast to {observed} before the optimizer was built."
    fix = "Keep parameters in float32 and use autocast, or an optimizer with float32 copies."
    needs = DISCOVERY
    _half: dict[int, StateEvent] = fresh(dict)
    _held: set[int] = fresh(set)

    def observe(self, event: Event) -> list[Violation]:
        if isinstance(event, OptimizerEvent):
            self._held |= {identity for group in event.groups for identity in group.ids}
        elif isinstance(event, StateEvent):
            if event.role == "parameter" and event.summary is not None:
                if event.summary.dtype == _BFLOAT16 and event.requires_grad:
                    self._half[event.identity] = event
                else:
                    self._half.pop(event.identity, None)
        elif isinstance(event, StepEvent) and event.counters.get("optimizer_step", 0):
            self.triggered += 1
            found = sorted(self._held & self._half.keys() - self.reported)
            self.reported.update(found)
            return [self._violation(self._half[identity], event) for identity in found[:_NAMED]]
        return []

    def _violation(self, state: StateEvent, step: StepEvent) -> Violation:
        dtype = "half precision" if state.summary is None else state.summary.dtype
        return self.violation(
            step,
            stage="train",
            subject=Subject(variable=state.name),
            symptom=Symptom.PRECISION,
            message=f"the optimizer updates {state.name} in {dtype}",
            expected="float32 parameters, or float32 copies of them",
            observed=dtype,
            evidence=(state, step),
        )


_LOSSES = (CROSS_ENTROPY, NLL, BCE_LOGITS, f"{F}mse_loss", f"{F}kl_div", f"{F}l1_loss")


class LossInHalf(BuiltInRule, code="TC806", severity="info"):
    """loss-in-half: a loss is accumulated in half precision.

    What it checks:
        Losses are computed in float32.

    Why it matters:
        A mean over many elements, or the logarithm of a small probability, has two or three digits
        in half precision. The loss changes in visible steps, and small differences between samples
        vanish.

    Fires on:
        - A loss whose input is bfloat16 or float16, outside of autocast.

    Stays quiet on:
        - Autocast, which computes losses in float32.
        - float32 inputs.
        - Losses without gradients.

    Fix:
        Cast before the loss: loss(logits.float(), target).

    Source:
        https://docs.pytorch.org/docs/stable/amp.html
    """

    title = "{subject} is computed in half precision"
    likely_cause = "The output of the model is in {observed}, and autocast is off at the loss."
    fix = "Cast before the loss: loss(logits.float(), target)."
    needs = loss_needs(*_LOSSES, numbers=False)

    def observe(self, event: Event) -> list[Violation]:
        call = as_loss(event, _LOSSES)
        tensor = None if call is None else given(call, "input")
        if call is None or tensor is None:
            return []
        self.triggered += 1
        if tensor.dtype not in _HALF or call.autocast is not None or call.api in self.reported:
            return []
        self.reported.add(call.api)
        return self.found(
            call,
            subject=Subject(api=call.api, module=call.module),
            symptom=Symptom.PRECISION,
            message=f"{call.api.rpartition('.')[2]} is computed in {tensor.dtype}",
            expected="float32",
            observed=tensor.dtype,
        )


class OptimizerStateInHalf(EventRule, code="TC807", severity="info"):
    """optimizer-state-in-half: moments are stored in half precision and weights are not.

    What it checks:
        The optimizer state in a checkpoint has the precision of the parameters of the model.

    Why it matters:
        Second moments are squares of gradients. In float16 most of them are zero. In bfloat16 an
        average with beta2 = 0.999 hardly ever changes. Updates become too large or stop.

    Fires on:
        - State that was converted with the model (state_dict cast to half to save space), saved or
          loaded beside float32 weights.

    Stays quiet on:
        - Weights that are also in half precision (TC805).
        - Integer states, e.g. of 8-bit optimizers.

    Fix:
        Save and load optimizer.state_dict() without a conversion.

    Source:
        https://github.com/pytorch/pytorch/issues/40497
    """

    title = "The state of the optimizer is in half precision"
    likely_cause = "The saved state may have been converted{where}, but the weights were not."
    fix = "Store moments in float32: save and load the optimizer's state without a conversion."
    needs = Needs(states=frozenset({"parameter@new"}), kinds=frozenset({"checkpoint", "step"}))
    _dtypes: set[str] = fresh(set)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, StateEvent):
            if event.role == "parameter" and event.summary is not None:
                self._dtypes.add(event.summary.dtype)
        elif isinstance(event, CheckpointEvent) and not self.is_over and self._dtypes:
            for part in event.parts.values():
                if not isinstance(part, Mapping) or part.get("kind") != "optimizer":
                    continue
                found = set(map(str, part.get("dtypes") or ()))
                self.triggered += bool(found)
                half = sorted(found & _HALF)
                if not half or not self._dtypes.isdisjoint(_HALF):
                    continue
                self.is_over = True
                return self.found(
                    event,
                    subject=Subject(api="torch.optim.Optimizer.state_dict"),
                    symptom=Symptom.ADVICE,
                    message=f"the optimizer state in {event.path or 'the file'} is {half[0]}, but "
                    f"the weights are {min(self._dtypes)}",
                    expected=f"moments in {min(self._dtypes)}",
                    observed=f"moments in {', '.join(half)}",
                )
            return []
        return []
