"""Replicas that differ because ranks step with different learning rates."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


class RanksUseDifferentLearningRates(
    CauseRule, code="TC406", severity="error", aliases=("ranks-use-other-rates",)
):
    """ranks-use-different-learning-rates: ranks update one model at different rates.

    What it checks:
        In a step whose parameters differ between ranks afterwards: all ranks used the same learning
        rates.

    Why it matters:
        DistributedDataParallel exchanges gradients, never weights. Ranks that apply equal gradients
        with different rates hold different models from then on, and only one of them is saved.

    Fires on:
        A scheduler that is stepped, or restored, on one rank only; ReduceLROnPlateau that is given
        the metric of each rank's own share of the data; a rate that is computed from the rank.

    Stays quiet on:
        Ranks with equal rates; ranks that train models of their own; local SGD.

    Fix:
        Step the scheduler on all ranks, with a value that all of them share.

    Source:
        https://docs.pytorch.org/docs/stable/generated/torch.optim.lr_scheduler.ReduceLROnPlateau.html
    """

    title = "Ranks update {variables} with different learning rates"
    likely_cause = (
        "A scheduler is stepped on one rank only, a checkpoint was loaded on one rank only, or "
        "each rank gives the scheduler its own metric: {observed}."
    )
    fix = (
        "Step the scheduler, and load its state, on all ranks alike; all_reduce the metric "
        "before it is given to ReduceLROnPlateau."
    )
    scope = "run"
    reason = Reason.RATES
