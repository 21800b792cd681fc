"""TC950: warnings of torch that mean that training is not what it seems."""

from __future__ import annotations

from traincheck.rules._warnings import WARNINGS, Known, Warned
from traincheck.schema.findings import CheckInfo

KNOWN = (
    Known(
        name="scheduler-before-optimizer",
        text=r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`",
        title="The learning-rate scheduler steps before the optimizer",
        cause=(
            "scheduler.step() comes before the first optimizer.step(){where}, so that the first "
            "value of the schedule is skipped; or no step of the optimizer takes place at all."
        ),
        fix="Call optimizer.step() first, then scheduler.step().",
        unless_scaled=True,
    ),
    Known(
        name="checkpoint-without-gradient",
        text=r"None of the inputs have requires_grad=True\. Gradients will be None",
        title="A checkpointed block gets no gradients",
        cause=(
            "Re-entrant checkpointing{where} is given inputs that do not require grad, so that the "
            "block records no graph and its parameters get no gradients."
        ),
        fix="Use checkpoint(..., use_reentrant=False), or let an input require grad.",
        in_training=True,
    ),
    Known(
        name="clip-of-nothing",
        text=r"`parameters` is an empty generator",
        title="Gradients are clipped over no parameter",
        cause=(
            "The generator passed to clip_grad_norm_{where} was used up before, so that nothing is "
            "clipped."
        ),
        fix="Pass model.parameters() afresh in every call, or a list.",
    ),
    Known(
        name="autocast-off",
        text=r"Disabling autocast|device_type of '\w+', but \w+ is not available\. Disabling",
        title="Autocast is switched off: its device or dtype is not there",
        cause="Autocast was asked for{where}, and torch has switched it off: {observed}",
        fix="Give autocast the device type the model is on, and a dtype that device supports.",
    ),
    Known(
        name="gradient-of-non-leaf",
        text=r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        title="The gradient of a tensor is read that never has one",
        cause=(
            "A tensor that is not a leaf{where} is read for its .grad, which is None: a parameter "
            "was moved or cast (.to(), .cuda()) after requires_grad was set."
        ),
        fix="Move the tensor first and then set requires_grad, or call retain_grad().",
    ),
)


class TorchWarning:
    """TC950 torch-warning: torch warned of something that spoils training.

    What it checks:
        Warnings, shown or not, against a list of those that mean that a part of training does not
        do what the script says.

    Why it matters:
        They are printed once among hundreds of lines, or filtered out, and nobody reads them.

    Fires on:
        A scheduler that steps before the optimizer; re-entrant checkpointing of inputs without
        grad; clipping over no parameter; autocast for a device or dtype that is not there; .grad of
        a tensor that is no leaf.

    Stays quiet on:
        All other warnings: deprecations, notes on speed, warnings of other libraries; what is
        harmless in evaluation; schedulers where GradScaler skips the first steps; losses that
        broadcast, which TC313 judges by their shapes.

    Fix:
        As the warning says; the finding names the line.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html, https://github.com/huggingface/transformers/issues/26221
    """

    info = CheckInfo(
        check_id="TC950",
        kind="rule",
        code="TC950",
        severity="warning",
        title="A warning of torch that matters",
        likely_cause="{observed}.",
        fix="Do what the warning asks for.",
    )
    needs = WARNINGS

    def monitor(self) -> Warned:
        return Warned("TC950", KNOWN)
