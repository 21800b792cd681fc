"""The gradient is not that of the loss."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from traincheck.rules.probes.probe_rule import ProbeRule, line_of
from traincheck.schema.findings import Subject, Symptom, Topic, Violation
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments

_LEAST = 0.01


class GradientNotOfLoss(ProbeRule, code="TC002"):
    """gradient-not-of-loss: moving along the gradient changes the loss by another amount.

    What it checks:
        In copies of the process, parameters are moved along their gradients by two sizes to both
        sides, and the program computes its loss again. The loss changes by what the gradient says.
        Values that leave the graph on purpose, such as detached targets, stay constant.

    Why it matters:
        The optimizer follows the gradient of another function than the loss that is printed. The
        loss often falls all the same, but more slowly or to a higher value.

    Fires on:
        A relative error above 1 % that is far above rounding, kinks and the difference of the two
        sizes, in two steps.

        - Activation checkpointing that recomputes with other random numbers.
        - A wrong backward of an autograd.Function.
        - A value that is changed between forward and backward.

    Stays quiet on:
        - Straight-through estimators, detached targets, advantages, computations under no_grad.
        - autograd.Function whose gradient is another one by design: it returns its input, jumps or
          saturates, or passes on a gradient that was given to it. The rest is still compared.
        - Parameters with hooks, and those used before the first forward of the step.
        - Losses with kinks, and parameters in half precision.

    Fix:
        Checkpoint with preserve_rng_state=True. Test a custom function with
        torch.autograd.gradcheck.

    Source:
        https://github.com/openai/guided-diffusion/issues/167
    """

    title = "The gradient is not that of the loss"
    likely_cause = (
        "A custom backward() may be wrong, checkpointing may recompute with other random "
        "numbers, or what the forward pass read may have been changed before backward()."
    )
    fix = (
        "Test each autograd.Function with torch.autograd.gradcheck, and change nothing between "
        "forward and backward that the forward has read."
    )
    experiment: ClassVar[str] = Experiments.GRADIENT
    confirmed: ClassVar[int] = 2

    def is_fault(self, event: ProbeEvent) -> bool:
        return abs(event.numbers.get("ratio", 1.0) - 1) > _LEAST

    def judged(self, event: ProbeEvent) -> Violation:
        numbers, detail = event.numbers, event.detail
        ratio = numbers.get("ratio", 1.0)
        side = "less" if ratio < 1 else "more"
        text = (
            f"moving along the gradient changes the loss {abs(ratio - 1):.1%} {side} than the "
            f"gradient says (two step sizes agree to {numbers.get('spread', 0.0):.2%})"
        )
        if "worst_ratio" in numbers:
            text += f", most in {event.where}: {numbers['worst_ratio']:.2f} times what it says"
        found = self.violation(
            event,
            subject=Subject(module=event.where or event.model),
            symptom=Symptom.WRONG_VALUE,
            message="the gradient is not that of the loss",
            expected="a change of the loss as the gradient says",
            observed=text + _reason(event),
        )
        fix = ""
        if detail.get("without_state"):
            fix = "Call checkpoint() with preserve_rng_state=True, which is its default."
        elif detail.get("functions"):
            first = detail["functions"].partition(",")[0]
            fix = f"Correct {first}.backward, and test it with torch.autograd.gradcheck."
        return replace(found, topic=Topic.MAGNITUDE, fix=fix)


def _reason(event: ProbeEvent) -> str:
    detail = event.detail
    if detail.get("recomputed"):
        count = detail["recomputed"]
        how = "with other random numbers (preserve_rng_state=False)"
        how = how if detail.get("without_state") else "in the backward pass"
        segments = "1 segment is" if count == "1" else f"{count} segments are"
        return f"; {segments} recomputed {how}{line_of(event)}"
    if detail.get("functions"):
        names = detail["functions"]
        return f"; backward is not the derivative of forward in {names}"
    return ""
