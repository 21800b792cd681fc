"""The same samples have other contents: files, augmentation, or the seeds of workers."""

from __future__ import annotations

from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence, Side
from traincheck.schema.events import BatchEvent

_SEEDS = (
    "Seed NumPy and random in worker_init_fn from torch.initial_seed(), and seed them in the main "
    "process too."
)


def explain(evidence: Evidence) -> Explanation | None:
    """The rows of a batch differ, and its indices do not."""
    a, b = evidence.item.a, evidence.item.b
    if (
        evidence.item.what not in ("rows", "leaves")
        or not isinstance(a, BatchEvent)
        or not isinstance(b, BatchEvent)
    ):
        return None
    if evidence.item.what == "leaves":
        return Explanation(
            code="batch-form", text="the tensors of a batch have another dtype or shape"
        )
    if a.workers != b.workers:
        return Explanation(
            code="worker-number",
            text=f"{a.workers} workers load the data in A, {b.workers} in B: each draws its own "
            "random numbers",
            fix=_SEEDS,
        )
    if _is_permuted(evidence, a, b):
        return Explanation(
            code="listing-order",
            text="the same rows under other indices: the dataset lists its files or records in "
            "another order",
            fix="Sort the list of files: sorted(os.listdir(path)).",
        )
    workers = _other_workers(evidence.a, evidence.b)
    if workers:
        return Explanation(
            code="worker-seeds",
            text="the generators of the loader's workers begin in other states",
            fix=_SEEDS,
            details=(workers,),
        )
    if evidence.resume is not None:
        return Explanation(
            code="augmentation-not-restored",
            text="the same samples with other contents: the augmentation draws other random "
            "numbers than in the run that goes on",
            fix="Restore the states of the generators after the batches that are skipped, and "
            "before the first one that is trained on.",
        )
    same = sum(x == y for x, y in zip(a.samples, b.samples, strict=False))
    rows = f"{len(a.samples) - same} of {len(a.samples)} rows differ"
    return Explanation(
        code="contents",
        text="other contents for the same samples: other files, or an augmentation whose random "
        "numbers differ",
        fix=_SEEDS,
        details=(rows,),
    )


def _is_permuted(evidence: Evidence, a: BatchEvent, b: BatchEvent) -> bool:
    """Whether rows of B are rows of A at other places: in this batch, or in another of A."""
    mine, yours = list(a.samples), list(b.samples)
    if not mine or not yours:
        return False
    if sorted(mine) == sorted(yours):
        return True
    own = evidence.a.view.number
    found = [
        row
        for row in yours[:4]
        if any(place.kind == "batch" for place in evidence.a.lookup.of_value(f'"{row}"'))
    ]
    return own >= 0 and len(found) == len(yours[:4]) and not set(mine) & set(yours[:4])


def _other_workers(a: Side, b: Side) -> str:
    """The generators of workers whose first states differ."""
    mine, yours = _starts(a), _starts(b)
    differing = sorted(
        f"{source} of worker {worker}"
        for (worker, source), state in mine.items()
        if yours.get((worker, source), state) != state
    )
    return ", ".join(differing[:4])


def _starts(side: Side) -> dict[tuple[int, str], str]:
    found: dict[tuple[int, str], str] = {}
    for mark in side.facts.marks:
        if mark.text == "worker":
            start = mark.data.get("start") or {}
            for source, state in (
                start.get("dict", start) if isinstance(start, dict) else {}
            ).items():
                found.setdefault((int(mark.data.get("worker", 0)), str(source)), str(state))
    return found
