"""Ranks enter one collective with different shapes or dtypes."""

from __future__ import annotations

from traincheck.rules.ranks.collectives import EnteredCallRule, Mismatch


class CollectiveShapesDiffer(EnteredCallRule, code="TC411", severity="error"):
    """collective-shapes-differ: ranks enter a collective with unequal tensors.

    What it checks:
        The k-th collective that each rank makes in a process group has the same shape and dtype on
        all of them.

    Why it matters:
        Backends do not compare sizes. The rank with the smaller tensor may continue with a wrong
        result, or the job hangs without a message.

    Fires on:
        - A capacity or length that each rank computes from its own data and then uses in an
          all_to_all or all_reduce.

    Stays quiet on:
        - all_to_all with split sizes, lists of tensors, and objects, whose sizes may differ.
        - send and recv.
        - Subgroups.
        - Runs whose steps are sampled.

    Fix:
        Agree on the size first: all_reduce it with MAX and pad to it.

    Source:
        https://github.com/deepspeedai/DeepSpeed/issues/6809
    """

    title = "Ranks enter {subject} with different shapes"
    likely_cause = "Each rank may compute the size from its own data: {observed}."
    fix = "Agree on the size first (all_reduce it with MAX) and pad the tensor to it."
    scope = "run"
    mismatch = Mismatch.SHAPE
