"""The loader draws other samples: sampler, epoch, replicas, or a loader that begins again."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence
from traincheck.schema.events import BatchEvent

_RESTORE = (
    "Save torch.get_rng_state() in the checkpoint and set it before the loop, or give the loader a "
    "generator and save that (torchdata: StatefulDataLoader)."
)


def explain(evidence: Evidence) -> Explanation | None:
    """The indices of a batch differ."""
    a, b = evidence.item.a, evidence.item.b
    if (
        evidence.item.what != "indices"
        or not isinstance(a, BatchEvent)
        or not isinstance(b, BatchEvent)
    ):
        return None
    where = _found(evidence, b)
    if evidence.resume is not None:
        return _resumed(evidence, where)
    if a.sampler_epoch != b.sampler_epoch:
        return Explanation(
            code="sampler-epoch",
            text=f"the sampler is in epoch {b.sampler_epoch} in B and {a.sampler_epoch} in A",
            fix="Call sampler.set_epoch(epoch) with the same number before each epoch.",
            details=tuple(where),
        )
    if a.sampler != b.sampler or a.drawn != b.drawn:
        what = "batch size" if a.sampler == b.sampler else "sampler"
        mine, yours = (a.drawn, b.drawn) if what == "batch size" else (a.sampler, b.sampler)
        return Explanation(
            code="sampler", text=f"another {what}: {mine} in A, {yours} in B", details=tuple(where)
        )
    ranks = evidence.named("ranks")
    if ranks is not None:
        return Explanation(
            code="replicas", text=f"{ranks.a} ranks share the samples in A, {ranks.b} in B"
        )
    if where:
        return Explanation(
            code="replayed",
            text="B takes samples that A takes at another point",
            details=tuple(where),
        )
    return _shuffled(evidence, a)


def _resumed(evidence: Evidence, where: list[str]) -> Explanation:
    if where:
        text = "the loader begins with samples that were trained on before: its position or the "
        text += "state of the random generator was not restored"
        return Explanation(code="loader-replays", text=text, fix=_RESTORE, details=tuple(where))
    return Explanation(
        code="order-not-restored",
        text="the state of the random generator was not restored: the loader shuffles otherwise "
        "than the run that went on",
        fix=_RESTORE,
    )


def _shuffled(evidence: Evidence, a: BatchEvent) -> Explanation | None:
    if "Random" not in (a.sampler or "") and "Distributed" not in (a.sampler or ""):
        return Explanation(
            code="sampler-order", text="the sampler yields another order with the same settings"
        )
    known = [event for event in evidence.a.view.generators if event.change == "state"]
    text = (
        "the random generator was in another state when the loader began: one run drew more random "
        "numbers before"
    )
    details = () if known else ("generator states before the loader: not recorded (--view diff)",)
    return Explanation(
        code="draws-before-loader",
        text=text,
        fix="Give the loader a separate generator: "
        "DataLoader(..., generator=torch.Generator().manual_seed(0)).",
        details=details,
    )


def _found(evidence: Evidence, batch: BatchEvent) -> list[str]:
    """Where A has the batch of B."""
    found = []
    for place in evidence.a.lookup.of_batch(batch.samples, batch.indices):
        if place.step == evidence.a.view.number:
            continue
        epoch, index = place.record.get("epoch", 0), place.record.get("index", 0)
        found.append(
            f"B's batch is that of A at step {place.step}: {place.name}, epoch {epoch}, "
            f"batch {index}"
        )
    return found[:1]
