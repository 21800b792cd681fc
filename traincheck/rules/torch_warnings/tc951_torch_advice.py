"""Warnings of torch that may matter."""

from __future__ import annotations

from traincheck.rules.torch_warnings.warned import Known, WarningRule
from traincheck.schema.findings import Topic

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
        topic=Topic.SCHEDULER,
        unless_scaled=True,
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
        unless_at=r"[/\\]torch[/\\]_\w+[/\\]",  # the compiler looks at all that tensors have
    ),
    Known(
        name="implicit-softmax-dim",
        text=r"Implicit dimension choice for (log_)?softm(ax|in) has been deprecated",
        title="softmax chooses its dim by itself",
        cause=(
            "softmax without dim{where} normalizes a tensor of three dims over the first one, "
            "which is the batch."
        ),
        fix="Pass dim=-1.",
    ),
    Known(
        name="scaler-off",
        text=r"GradScaler is enabled, but \w+ is not available\.\s+Disabling",
        title="GradScaler is switched off: its device is not there",
        cause="GradScaler{where} scales nothing, because its device is not available.",
        fix="Make the GradScaler for the device that the model is on.",
    ),
    Known(
        name="scheduler-epoch",
        text=r"The epoch parameter in `scheduler\.step\(\)` was not necessary",
        title="scheduler.step() is given an epoch",
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
    """torch-advice: torch warned of something that is worth a look.

    What it checks:
        Warnings, shown or not, against a list of those that may or may not matter.

    Why it matters:
        They tell of defaults, of settings without effect and of memory that must not be written to.

    Fires on:
        A scheduler that steps before the optimizer; .grad of a tensor that is no leaf; softmax
        without dim; GradScaler for a device that is not there; scheduler.step() with an epoch; a
        tensor over read-only memory.

    Stays quiet on:
        All other warnings; those that TC950 reports; schedulers where GradScaler skips the first
        steps; .grad that torch.compile itself reads.

    Fix:
        As the warning says; the finding names the line.

    Source:
        https://docs.pytorch.org/docs/stable/optim.html
    """

    title = "A warning of torch that is worth a look"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    known = KNOWN
