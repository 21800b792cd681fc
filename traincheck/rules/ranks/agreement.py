"""Reasons why replicas go apart, each known by its cause."""

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


class ParameterOutsideDdp(CauseRule, code="TC405", severity="error"):
    """parameter-outside-ddp: a parameter became trainable after DDP was built.

    What it checks:
        A parameter of a wrapped model that differs between ranks after a step required grad when
        DistributedDataParallel was built, and is still the same object. Only then does the wrapper
        exchange its gradient.

    Why it matters:
        DDP reads requires_grad once. A parameter that is unfrozen, added or replaced later is
        trained by each rank separately, without a message.

    Fires on:
        - Layers that are unfrozen after the wrapper was built.
        - A head that is replaced inside ddp.module.

    Stays quiet on:
        - Frozen parameters.
        - Parameters that DDP is configured to ignore.
        - Gradual unfreezing that rebuilds the wrapper.
        - Parameters that stay equal on all ranks.

    Fix:
        Set requires_grad and replace layers before DistributedDataParallel is built. Rebuild it
        after a change.

    Source:
        https://github.com/pytorch/pytorch/issues/12603
    """

    title = "DistributedDataParallel does not exchange the gradients of {variables}"
    likely_cause = (
        "{variables} did not require grad, or {was another object|were other objects}, when "
        "DistributedDataParallel was built{where}."
    )
    fix = (
        "Unfreeze and replace layers before DistributedDataParallel is built, or build it "
        "again afterwards."
    )
    scope = "run"
    reason = Reason.OUTSIDE


class RanksUseDifferentLearningRates(
    CauseRule, code="TC406", severity="error", aliases=("ranks-use-other-rates",)
):
    """ranks-use-different-learning-rates: ranks update one model at different rates.

    What it checks:
        In a step after which parameters differ between ranks, all ranks used the same learning
        rates.

    Why it matters:
        DistributedDataParallel exchanges gradients, never weights. Ranks that apply equal gradients
        with different learning rates hold different models from then on. Only one of them is saved.

    Fires on:
        - A scheduler that is stepped, or restored, on one rank only.
        - ReduceLROnPlateau with the metric of each rank's own share of the data.
        - A learning rate computed from the rank.

    Stays quiet on:
        - Ranks with equal learning rates.
        - Ranks that train separate models.
        - Local SGD.

    Fix:
        Step the scheduler on all ranks, with a value that all of them share.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
    """

    title = "Ranks update {variables} with different learning rates"
    likely_cause = (
        "A scheduler may be stepped on one rank only, a checkpoint loaded on one rank only, "
        "or each rank passes its own metric to the scheduler: {observed}."
    )
    fix = (
        "Step the scheduler, and load its state, on all ranks alike. all_reduce the metric "
        "before passing it to ReduceLROnPlateau."
    )
    scope = "run"
    reason = Reason.RATES
