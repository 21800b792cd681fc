"""Torch warnings that may matter."""

from __future__ import annotations

from traincheck.rules.torch_warnings.warned import Known, WarningRule
from traincheck.schema.findings import Topic

KNOWN = (
    Known(
        name="scheduler-before-optimizer",
        text=r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`",
        title="The learning-rate scheduler steps before the optimizer",
        cause=(
            "scheduler.step() comes before the first optimizer.step(){where}, so the first "
            "value of the schedule is skipped; or the optimizer never steps at all."
        ),
        fix="Call optimizer.step() first, then scheduler.step().",
        topic=Topic.SCHEDULER,
        unless_scaled=True,
    ),
    Known(
        name="gradient-of-non-leaf",
        text=r"The \.grad attribute of a Tensor that is not a leaf Tensor is being accessed",
        title="The .grad of a tensor is read that never has one",
        cause=(
            "The .grad of a non-leaf tensor{where} is read, which is None: a parameter "
            "was moved or cast (.to(), .cuda()) after requires_grad was set."
        ),
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
    known = KNOWN
