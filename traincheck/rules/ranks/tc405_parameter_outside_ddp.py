"""A trained parameter that is unknown to DDP. Compares with the parameters at its construction."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


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
