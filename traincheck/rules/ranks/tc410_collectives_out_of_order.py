"""Ranks do not make the same collectives in the same order. Shapes are TC411's."""

from __future__ import annotations

from traincheck.rules.ranks.collectives import EnteredCallRule, Mismatch


class CollectivesOutOfOrder(EnteredCallRule, code="TC410", severity="error"):
    """collectives-out-of-order: ranks meet in different collectives.

    What it checks:
        The k-th collective that each rank makes in a process group is the same operation, and about
        the same parameter where its tensor is a parameter or a gradient.

    Why it matters:
        Collectives are paired by order alone. Where shapes happen to agree, tensors of different
        meaning are mixed without a message; where they do not, the job hangs.

    Fires on:
        A collective that only some ranks reach; all-reduces that are issued in another order on one
        rank, for instance by iterating over a set.

    Stays quiet on:
        send and recv; subgroups; a rank that ended earlier; runs whose steps are sampled.

    Fix:
        Issue collectives unconditionally, in an order that does not depend on the rank.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6714
    """

    title = "Ranks meet in different collectives"
    likely_cause = (
        "A condition or an order that depends on the rank decides which collective comes "
        "next: {observed}."
    )
    fix = "Issue the same collectives in the same order on every rank of the group."
    scope = "run"
    mismatch = Mismatch.ORDER
