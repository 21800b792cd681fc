"""Replicas that differ because ranks use different learning rates."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


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
