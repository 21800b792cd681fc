"""A step bypasses the DDP wrapper. Names the call; TC401 reports the effect."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


class DdpBypassed(CauseRule, code="TC403", severity="error"):
    """ddp-bypassed: the model inside DistributedDataParallel is trained without the wrapper.

    What it checks:
        In a step after which parameters differ between ranks, the wrapper was called with gradients
        enabled, not only the model inside it.

    Why it matters:
        The forward of the wrapper arms the gradient exchange. Without it, each rank applies its own
        gradients without a message.

    Fires on:
        - A loss computed by ddp.module(x) or by a part of it.
        - A trainer that unwraps the model for some steps.

    Stays quiet on:
        - Evaluation and generation through ddp.module without gradients.
        - Scripts that reduce gradients by hand.
        - Steps that also call the wrapper.
        - Parameters that stay equal.

    Fix:
        Call the wrapper: loss = criterion(ddp(x), y). Put other methods that need gradients into
        the model's forward.

    Source:
        https://github.com/jingyaogong/minimind/pull/854,
        https://x.com/jxmnop/status/1778520637193240892
    """

    title = "{subject} is trained without its DistributedDataParallel wrapper"
    likely_cause = (
        "The loss of step {step} comes from {subject} itself, not from the wrapper{where}, so "
        "backward() does not exchange the gradients of {variables}."
    )
    fix = "Call the DistributedDataParallel object, not its .module, for every forward that trains."
    scope = "run"
    reason = Reason.BYPASSED
