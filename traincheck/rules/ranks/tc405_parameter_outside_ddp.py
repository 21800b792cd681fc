"""A trained parameter that DDP does not know. Goes by what it was built with."""

from __future__ import annotations

from traincheck.rules.ranks.replicas import CauseRule, Reason


class ParameterOutsideDdp(CauseRule, code="TC405", severity="error"):
    """parameter-outside-ddp: a parameter became trainable after DDP was built.

    What it checks:
        A parameter of a wrapped model that differs between ranks after a step is one whose gradient
        the wrapper exchanges: it required grad when DistributedDataParallel was built, and it is
        still the same object.

    Why it matters:
        DDP looks at requires_grad once. What is unfrozen, added or replaced later is trained by
        each rank for itself, without a message.

    Fires on:
        Layers that are unfrozen after the wrapper was built; a head that is replaced inside
        ddp.module.

    Stays quiet on:
        Frozen parameters; parameters that DDP was told to ignore; gradual unfreezing that builds
        the wrapper anew; parameters that stay equal on all ranks.

    Fix:
        Set requires_grad, and replace layers, before DistributedDataParallel is built; build it
        anew after a change.

    Source:
        https://github.com/pytorch/pytorch/issues/12603
    """

    title = "DistributedDataParallel does not exchange gradients of {variables}"
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
