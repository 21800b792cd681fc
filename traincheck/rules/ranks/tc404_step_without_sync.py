"""The last micro-batch before a step was not synchronized. Reads DDP's own flag."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


class StepWithoutSync(CauseRule, code="TC404", severity="error"):
    """step-without-sync: an optimizer steps on gradients that no_sync() kept local.

    What it checks:
        In a step after which parameters differ between ranks, the last forward of the wrapper
        before optimizer.step() ran outside no_sync() (with require_backward_grad_sync).

    Why it matters:
        The gradients of the window were not, or only in part, averaged over ranks. Every rank
        applies its own.

    Fires on:
        - no_sync() chosen by i % k instead of (i + 1) % k.
        - A flag set only around backward(), while DDP decides in forward.
        - no_sync() around the whole loop.

    Stays quiet on:
        - Accumulation whose last micro-batch is synchronized.
        - Local SGD and PostLocalSGD.
        - Gradients that the script reduces by hand.

    Fix:
        Leave no_sync() for the forward and backward of the last micro-batch before each step.

    Source:
        https://github.com/modelscope/FunASR/pull/3472,
        https://github.com/karpathy/build-nanogpt/pull/30
    """

    title = "optimizer.step() applies gradients that no_sync() kept local"
    likely_cause = (
        "The last forward of {subject} before optimizer.step(){where} at step {step} ran with "
        "require_backward_grad_sync=False, so backward() did not average the gradients of "
        "{variables} over ranks."
    )
    fix = (
        "Synchronize the last micro-batch of each window, forward and backward: use "
        "model.no_sync() only when (i + 1) % accumulation_steps != 0."
    )
    scope = "run"
    reason = Reason.UNSYNCHRONIZED
