"""Causes in the data: the samples that a loader draws, and their contents."""

from __future__ import annotations

from typing import Any

from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.messages import A, B
from traincheck.schema.events import BatchEvent
from traincheck.schema.observations.data import WorkerRng

_RESTORE = (
    "Save torch.get_rng_state() in the checkpoint and set it before the loop, or give the loader a "
    "generator and save that (torchdata: StatefulDataLoader)."
)
_SEEDS = (
    "Seed NumPy and random in worker_init_fn from torch.initial_seed(), and seed them in the main "
    "process too."
)
_RANDOM_SAMPLER = "torch.utils.data.sampler.RandomSampler"


def _pair(evidence: Evidence, *what: str) -> tuple[BatchEvent, BatchEvent] | None:
    """Both batches, if the difference is of one of these kinds."""
    a, b = evidence.item.a, evidence.item.b
    if evidence.item.what not in what:
        return None
    return (a, b) if isinstance(a, BatchEvent) and isinstance(b, BatchEvent) else None


def sampler(evidence: Evidence) -> dict[str, Any] | None:
    """The sampler, its epoch, its batch size or its replicas are others."""
    pair = _pair(evidence, "indices")
    if pair is None:
        return None
    a, b = pair
    if a.sampler_epoch != b.sampler_epoch:
        return {
            "code": "sampler-epoch",
            "text": f"the sampler is in epoch {b.sampler_epoch} in {B} and "
            f"{a.sampler_epoch} in {A}",
            "fix": "Call sampler.set_epoch(epoch) with the same number before each epoch.",
        }
    if a.sampler != b.sampler:
        return {"text": f"another sampler: {a.sampler} in {A}, {b.sampler} in {B}"}
    if a.drawn != b.drawn:
        return {
            "code": "batch-size",
            "text": f"another batch size: {a.drawn} samples in {A}, {b.drawn} in {B}",
        }
    ranks = evidence.named("ranks")
    if ranks is not None:
        text = f"{ranks.a} ranks share the samples in {A}, {ranks.b} in {B}"
        return {"code": "replicas", "text": text}
    return None


def dataset_size(evidence: Evidence) -> dict[str, Any] | None:
    """The order is drawn over another number of samples."""
    pair = _pair(evidence, "indices")
    if pair is None:
        return None
    a, b = (batch.dataset_size for batch in pair)
    if a == b or not a or not b:
        return None
    return {"text": f"the data set has {a} samples in {A} and {b} in {B}"}


def loader_replays(evidence: Evidence) -> dict[str, Any] | None:
    """A resumed run begins with a batch that the other has in an earlier step."""
    found = replayed(evidence) if evidence.resume is not None else None
    if found is None:
        return None
    return {
        **found,
        "text": "the loader begins with samples that were trained on before: its position or the "
        "state of its random generator was not restored",
        "fix": _RESTORE,
    }


def replayed(evidence: Evidence) -> dict[str, Any] | None:
    """The batch of B is one that A has in another step."""
    pair = _pair(evidence, "indices", "rows")
    for place in evidence.a.lookup.of_batch(pair[1].samples, pair[1].indices) if pair else ():
        if place.step != evidence.a.view.number:
            epoch, index = place.record.get("epoch", 0), place.record.get("index", 0)
            where = (
                f"{B}'s batch is that of {A} at step {place.step}: {place.name}, epoch {epoch}, "
                f"batch {index}"
            )
            return {
                "text": f"{B} takes samples that {A} takes at another point",
                "details": (where,),
            }
    return None


def order_not_restored(evidence: Evidence) -> dict[str, Any] | None:
    """A resumed run draws other samples, and its generators are in other states."""
    if evidence.resume is None or _pair(evidence, "indices") is None:
        return None
    return {
        "text": "the loader draws other samples than the run that goes on: the state of a random "
        "generator was not restored",
        "fix": _RESTORE,
    }


def loader_generator(evidence: Evidence) -> dict[str, Any] | None:
    """A RandomSampler draws another order while torch's generator is in the same state."""
    pair = _pair(evidence, "indices")
    if pair is None or evidence.resume is not None or pair[0].sampler != _RANDOM_SAMPLER:
        return None
    if pair[0].dataset_size != pair[1].dataset_size or not pair[0].dataset_size:
        return None
    if sorted(pair[0].indices) == sorted(pair[1].indices) and pair[0].drawn == pair[1].drawn:
        return None
    return {
        "text": "the loader draws the order from a generator other than torch's, and it is in "
        "another state: torch's is the same",
        "fix": "Give DataLoader(generator=...) the same seed in both runs.",
    }


def worker_number(evidence: Evidence) -> dict[str, Any] | None:
    """Another number of workers loads the same samples, with other contents."""
    pair = _pair(evidence, "rows")
    if pair is None:
        return None
    return {
        "text": f"{pair[0].workers} workers load the data in {A}, {pair[1].workers} in {B}, and "
        "each draws other random numbers",
        "fix": _SEEDS,
    }


def listing_order(evidence: Evidence) -> dict[str, Any] | None:
    """The same rows come under other indices."""
    pair = _pair(evidence, "rows")
    if pair is None or evidence.item.leaf:
        return None
    mine, yours = list(pair[0].samples), list(pair[1].samples)
    if not mine or not yours or len(set(yours)) < len(yours):
        return None
    if sorted(mine) != sorted(yours):  # else they are at other places in this batch
        of_value = evidence.a.lookup.of_value
        are_found = all(
            any(place.kind == "batch" for place in of_value(f'"{row}"')) for row in yours[:4]
        )
        if not are_found or set(mine) & set(yours[:4]):
            return None
    return {
        "text": "the same rows come under other indices: the data set holds its records in "
        "another order",
        "fix": "If it lists files, sort the list: sorted(os.listdir(path)).",
    }


def worker_seeds(evidence: Evidence) -> dict[str, Any] | None:
    """The generators of workers begin in other states."""
    mine, yours = _starts(evidence.a), _starts(evidence.b)
    differing = sorted(
        f"{source} of worker {worker}"
        for (worker, source), state in mine.items()
        if yours.get((worker, source), state) != state
    )
    if _pair(evidence, "rows") is None or not differing:
        return None
    return {
        "text": "the generators of the loader's workers begin in other states",
        "fix": _SEEDS,
        "details": (", ".join(differing[:4]),),
    }


def augmentation_not_restored(evidence: Evidence) -> dict[str, Any] | None:
    """A resumed run has the same samples with other contents, and its generators differ."""
    if evidence.resume is None or _pair(evidence, "rows") is None:
        return None
    return {
        "text": "the same samples with other contents: the augmentation draws other random numbers "
        "than in the run that goes on",
        "fix": "Restore the states of the generators after the batches that are skipped, before "
        "the first one that is trained on.",
    }


def _starts(side: Side) -> dict[tuple[int, str], str]:
    """The first state of each generator of each worker."""
    found: dict[tuple[int, str], str] = {}
    for mark in side.facts.marks:
        start = mark.data.get("start") if mark.text == WorkerRng.text else None
        if isinstance(start, dict):
            for source, state in start.get("dict", start).items():
                found.setdefault((int(mark.data.get("worker", 0)), str(source)), str(state))
    return found
