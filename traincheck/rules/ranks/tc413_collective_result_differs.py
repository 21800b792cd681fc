"""A collective delivers a wrong result. Compares fingerprints, call by call."""

from __future__ import annotations

from traincheck.readings.distributed.collectives import Meeting
from traincheck.rules.ranks.collectives import CollectiveRule
from traincheck.schema.claims import Needs
from traincheck.schema.events import CollectiveEvent
from traincheck.schema.findings import Subject, Symptom, Violation


class CollectiveResultDiffers(
    CollectiveRule, code="TC413", severity="error", aliases=("received-differs",)
):
    """collective-result-differs: a rank does not receive the data that was sent.

    What it checks:
        - recv returns the tensor that was passed to send.
        - After all_reduce, broadcast and all_gather_into_tensor, all ranks hold the same tensor.

    Why it matters:
        Links, drivers and peer-to-peer copies that lose data raise no error. Results are wrong now
        and then, and replicas drift apart.

    Fires on:
        - A tensor that arrives in part, as zeros, or late.

    Stays quiet on:
        - Asynchronous calls, whose results are not ready.
        - send and recv with tags.
        - Ranks that enter different collectives (TC410, TC411).
        - Tensors on a GPU.
        - Runs whose steps are sampled.

    Fix:
        Test the links, drivers and firmware. NCCL_P2P_DISABLE=1 shows whether peer-to-peer copies
        are the cause. Wait for asynchronous work before using its result.

    Source:
        https://github.com/baichuan-inc/Baichuan2/issues/86,
        https://github.com/pytorch/pytorch/issues/84803
    """

    title = "{subject} does not deliver the data that was sent"
    likely_cause = "A link between the devices of two ranks may lose data: {observed}."
    fix = "Test the links between devices; with NCCL, try NCCL_P2P_DISABLE=1."
    needs = Needs(
        states=frozenset({"collective@ranks"}), kinds=frozenset({"collective", "mark", "step"})
    )
    scope = "run"

    def judge(self, meeting: Meeting) -> list[Violation]:
        pair = meeting.pair
        contents = pair.contents if meeting.is_same else None
        if contents is None:
            return []
        self.triggered += 1
        if contents[0] == contents[1]:
            return []
        self.is_over = True
        first, other, receiver = pair.first, pair.other, pair.receiver
        return [
            self.violation(
                receiver,
                subject=Subject(api=f"torch.distributed.{receiver.op}", variable=receiver.variable),
                symptom=Symptom.RANKS_DIFFER,
                message=f"after {receiver.op}, rank {receiver.rank} does not hold the data that "
                f"{_others(receiver)}",
                expected="the same content on both ends",
                observed=f"content on rank {first.rank}: {_short(contents[0])}, "
                f"rank {other.rank}: {_short(contents[1])}",
                evidence=(first, other),
            )
        ]


def _others(event: CollectiveEvent) -> str:
    return "other ranks hold" if event.peer is None else f"rank {event.peer} sent"


def _short(digest: str) -> str:
    return digest.rpartition(":")[2][:8]
