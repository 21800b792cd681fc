"""Warnings of torch that mean that training does not do what the script says, or may matter."""

from __future__ import annotations

from dataclasses import replace

from traincheck.rules.torch_warnings.warned import Known, WarningRule
from traincheck.schema.findings import Topic

_AUTOCAST_OFF = Known(
    name="autocast-off",
    text=r"Disabling autocast",
    title="Autocast is disabled: its device or dtype is not available",
    cause="Autocast was requested{where}, but torch has disabled it: {observed}",
    fix="Use autocast with the device type of the model, and a dtype that the device supports.",
    topic=Topic.AUTOCAST,
)
TORCH_FAULTS = (
    Known(
        name="checkpoint-without-gradient",
        text=r"None of the inputs have requires_grad=True\. Gradients will be None",
        title="A checkpointed block gets no gradients",
        cause="Re-entrant checkpointing{where} received inputs that do not require grad. The block "
        "records no graph, and its parameters get no gradients.",
        fix="Use checkpoint(..., use_reentrant=False), or make an input require grad.",
        topic=Topic.REQUIRES_GRAD,
        in_training=True,
    ),
    Known(
        name="clip-of-nothing",
        text=r"`parameters` is an empty generator",
        title="Gradients are clipped over no parameters",
        cause="The generator passed to clip_grad_norm_{where} was already exhausted, so nothing is "
        "clipped.",
        fix="Pass a new model.parameters() in every call, or a list.",
        topic=Topic.CLIPPING,
    ),
    _AUTOCAST_OFF,
    replace(
        _AUTOCAST_OFF,
        text=r"device_type of '\w+', but \w+ is not available\. Disabling",
        topic=None,  # a separate finding
    ),
)


class TorchWarning(WarningRule, code="TC950"):
    """torch-warning: torch warned about a problem that spoils training.

    What it checks:
        Warnings, shown or filtered, against a list of those that mean that a part of training does
        not do what the script says.

    Why it matters:
        They are printed once among hundreds of lines, or filtered out, and are easily missed.

    Fires on:
        - Re-entrant checkpointing of inputs without grad.
        - Clipping over no parameters.
        - Autocast for a device or dtype that is not available.

    Stays quiet on:
        - All other warnings: deprecations, notes on speed, warnings of other libraries.
        - Warnings that are harmless in evaluation.
        - Losses that broadcast, whose shapes TC313 checks.
        - Warnings that may be harmless, which TC951 reports.

    Fix:
        Follow the warning. The finding names the line.

    Source:
        https://docs.pytorch.org/docs/stable/amp.html, https://github.com/huggingface/transformers/issues/26221
    """

    title = "Torch warned about a problem in training"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    known = TORCH_FAULTS


TORCH_ADVICE = (
    Known(
        name="scheduler-before-optimizer",
        text=r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`",
        title="The learning-rate scheduler steps before the optimizer",
        cause="scheduler.step() comes before the first optimizer.step(){where}, so the first value "
        "of the schedule is skipped; or the optimizer never steps at all.",
        fix="Call optimizer.step() first, then scheduler.step().",
        topic=Topic.SCHEDULER,
        unless_scaled=True,
    ),
    Known(
        name="gradient-of-non-leaf",
        text=r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        title="The .grad of a tensor is read that never has one",
        cause="The .grad of a non-leaf tensor{where} is read, which is None: a parameter was moved "
        "or cast (.to(), .cuda()) after requires_grad was set.",
        fix="Move the tensor first and then set requires_grad, or call retain_grad().",
        unless_at=r"[/\\]torch[/\\]_\w+[/\\]",  # the compiler reads all attributes of tensors
    ),
    Known(
        name="implicit-softmax-dim",
        text=r"Implicit dimension choice for (log_)?softm(ax|in) has been deprecated",
        title="softmax chooses its dim implicitly",
        cause=("softmax without dim{where} normalizes a 3-d tensor over its first dim, the batch."),
        fix="Pass dim=-1.",
    ),
    Known(
        name="scaler-off",
        text=r"GradScaler is enabled, but \w+ is not available\.\s+Disabling",
        title="GradScaler is disabled: its device is not available",
        cause="GradScaler{where} scales nothing because its device is not available.",
        fix="Create the GradScaler for the device of the model.",
    ),
    Known(
        name="scheduler-epoch",
        text=r"The epoch parameter in `scheduler\.step\(\)` was not necessary",
        title="scheduler.step() receives an epoch",
        cause="scheduler.step(epoch){where} uses a closed form, which not every scheduler has.",
        fix="Call scheduler.step() without an argument.",
    ),
    Known(
        name="array-not-writable",
        text=r"The given NumPy array is not writable",
        title="A tensor shares memory that must not be written to",
        cause="A read-only NumPy array was wrapped as a tensor{where}: writing to it is undefined.",
        fix="Copy the array first: torch.from_numpy(array.copy()).",
    ),
)


class TorchAdvice(WarningRule, code="TC951", severity="info"):
    """torch-advice: torch warned about a possible problem.

    What it checks:
        Warnings, shown or filtered, against a list of those that may or may not matter.

    Why it matters:
        They report defaults, settings without effect, and memory that must not be written to.

    Fires on:
        - A scheduler that steps before the optimizer.
        - .grad of a non-leaf tensor.
        - softmax without dim.
        - GradScaler for a device that is not available.
        - scheduler.step() with an epoch.
        - A tensor over read-only memory.

    Stays quiet on:
        - All other warnings.
        - Warnings that TC950 reports.
        - Schedulers whose first steps GradScaler skips.
        - .grad that torch.compile itself reads.

    Fix:
        Follow the warning. The finding names the line.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html
    """

    title = "Torch warned about a possible problem"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    known = TORCH_ADVICE
