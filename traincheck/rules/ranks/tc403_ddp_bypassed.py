"""A step is trained past the DDP wrapper. Names the call; TC401 tells what comes of it."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


class DdpBypassed(CauseRule, code="TC403", severity="error"):
    """ddp-bypassed: the model inside DistributedDataParallel is trained past the wrapper.

    What it checks:
        In a step whose parameters differ between ranks afterwards: the wrapper, not only the model
        inside it, was called with gradients enabled.

    Why it matters:
        The forward of the wrapper arms the exchange of gradients. Without it each rank applies its
        own, and no message says so.

    Fires on:
        A loss that is computed by ddp.module(x) or by a part of it; a trainer that unwraps the
        model for some steps.

    Stays quiet on:
        Evaluation and generation through ddp.module without gradients; scripts that reduce
        gradients by hand; steps in which the wrapper is called too; parameters that stay equal.

    Fix:
        Call the wrapper: loss = criterion(ddp(x), y). Put other methods that need gradients into
        the model's forward.

    Source:
        https://github.com/jingyaogong/minimind/pull/854,
        https://x.com/jxmnop/status/1778520637193240892
    """

    title = "{subject} is trained past its DistributedDataParallel wrapper"
    likely_cause = (
        "The loss of step {step} comes from {subject} itself, not from the wrapper{where}, so "
        "backward() does not exchange its gradients: {variables}."
    )
    fix = "Call the DistributedDataParallel object, not its .module, wherever gradients follow."
    scope = "run"
    reason = Reason.BYPASSED
