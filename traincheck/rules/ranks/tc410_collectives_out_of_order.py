"""Ranks do not make the same collectives in the same order. TC411 checks shapes."""

from __future__ import annotations

from traincheck.rules.ranks.collectives import EnteredCallRule, Mismatch


class CollectivesOutOfOrder(EnteredCallRule, code="TC410", severity="error"):
    """collectives-out-of-order: ranks enter different collectives.

    What it checks:
        The k-th collective that each rank makes in a process group is the same operation. If its
        tensor is a parameter or a gradient, it is the same parameter.

    Why it matters:
        Collectives are paired by order alone. If the shapes happen to agree, unrelated tensors are
        mixed without a message. If they differ, the job hangs.

    Fires on:
        - A collective that only some ranks reach.
        - All-reduces issued in another order on one rank, e.g. by iterating over a set.

    Stays quiet on:
        - send and recv.
        - Subgroups.
        - A rank that ended earlier.
        - Runs whose steps are sampled.

    Fix:
        Issue collectives unconditionally, in an order that does not depend on the rank.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6714
    """

    title = "Ranks enter different collectives"
    likely_cause = (
        "A condition or order that depends on the rank may determine which collective comes "
        "next: {observed}."
    )
    fix = "Issue the same collectives in the same order on every rank of the group."
    scope = "run"
    mismatch = Mismatch.ORDER
