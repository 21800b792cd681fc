"""Causes in the state: how variables begin, what an update makes of them, who else writes them."""

from __future__ import annotations

from typing import Any

from traincheck.diff.causes.quantities import (
    calls_of,
    elsewhere,
    fingerprint,
    flags,
    norm,
    orders,
)
from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.items import Phase
from traincheck.diff.messages import A, B
from traincheck.schema.events import CheckpointEvent
from traincheck.schema.torch_api import Families

# A weight in bfloat16 is at most 2^-8 from that in float32, and most are 2^-10 from it or farther.
_ROUNDING = 1e-6, 4e-3
_RUNNING = ("running_mean", "running_var", "num_batches_tracked")


def rounded_in_checkpoint(evidence: Evidence) -> dict[str, Any] | None:
    """All loaded weights are other values, and their norms are close."""
    if not evidence.item.is_opening or evidence.resume is None:
        return None
    opening = [one for one in evidence.of(Phase.PARAMETER) if one.is_opening]
    after = [one for one in evidence.of(Phase.PARAMETER) if not one.is_opening]
    norms = [(norm(one.a), norm(one.b)) for one in after]
    apart = max((abs(a - b) / max(a, b) for a, b in norms if a and b), default=0.0)
    parameters = sum(role == "parameter" for role, _ in evidence.b.values)
    if not _ROUNDING[0] <= apart <= _ROUNDING[1] or len(opening) < parameters:
        return None
    return {
        "text": "the loaded weights are close to those of the run that goes on, and no value is "
        "equal: the checkpoint holds them rounded, such as in bfloat16",
        "fix": "Save the weights in the dtype in which the optimizer keeps them.",
        "details": (f"after the step, norms of parameters differ by at most {apart:.2g}",),
    }


def other_checkpoint(evidence: Evidence) -> dict[str, Any] | None:
    """A resumed run begins with a value that the other has in another step."""
    if not evidence.item.is_opening or evidence.resume is None:
        return None
    found = elsewhere(evidence, evidence.item.b, evidence.item.name)
    if not found:
        return None
    return {
        "text": "the loaded values are not those of the run that goes on",
        "fix": "Load the checkpoint that was written at this step, with its full precision.",
        "details": (found,),
    }


def loaded(evidence: Evidence) -> dict[str, Any] | None:
    """The value comes from a load, and the files are others."""
    item = evidence.item
    if not item.is_opening or evidence.b.view.number or evidence.resume is not None:
        return None
    if item.what == "presence":  # no load makes a variable
        return None
    mine, yours = (_load_of(side, item.name) for side in (evidence.a, evidence.b))
    if mine is None and yours is None:
        return None
    if mine is None or yours is None:
        side, load = (B, yours) if mine is None else (A, mine)
        text = f"only {side} loads it"
        return {"text": text, "where": (load.where if load else None) or ""}
    files = [_files(side) for side in (evidence.a, evidence.b)]
    if files[0] == files[1]:
        return None
    return {
        "text": f"it is loaded from other files: {files[0]} in {A}, {files[1]} in {B}",
        "where": yours.where or "",
    }


def _load_of(side: Side, name: str) -> CheckpointEvent | None:
    """The last load that gave a variable its value."""
    found = [load for load in [*side.facts.loads, *side.view.checkpoints] if name in load.values]
    return found[-1] if found and found[-1].op != "save" else None


def _files(side: Side) -> str:
    events = [*side.facts.loads, *side.view.checkpoints]
    names = dict.fromkeys(e.path.rpartition("/")[2] for e in events if e.op == "load" and e.path)
    return ", ".join(list(names)[:2]) or "none"


def built_in_another_order(evidence: Evidence) -> dict[str, Any] | None:
    """Both runs begin with the same values, under other names."""
    differing = [item for item in evidence.items if item.is_opening and item.what == "bits"]
    mine = sorted(filter(None, (fingerprint(item.a) for item in differing)))
    yours = sorted(filter(None, (fingerprint(item.b) for item in differing)))
    if evidence.b.view.number or len(mine) < 2 or mine != yours:  # noqa: PLR2004
        return None
    return {
        "text": "the same initial values stand under other names: modules are built in another "
        "order",
        "fix": "Build the modules in the same order, or set the seed before each.",
    }


def initialized_otherwise(evidence: Evidence) -> dict[str, Any] | None:
    """Parameters are initialized by other calls."""
    if not evidence.item.is_opening or evidence.b.view.number or evidence.resume is not None:
        return None
    a, b = evidence.a.view.inits, evidence.b.view.inits
    number = next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x.api != y.api), None)
    if number is None and len(a) == len(b):
        return None
    if number is None:
        text = f"parameters are initialized by {len(a)} calls in {A} and by {len(b)} in {B}"
        return {"text": text}
    names = [calls[number].api.rpartition(".")[2] for calls in (a, b)]
    return {
        "text": f"parameters are initialized otherwise: call {number + 1} is {names[0]} in {A} and "
        f"{names[1]} in {B}",
        "where": b[number].where or "",
    }


def written_between_steps(evidence: Evidence) -> dict[str, Any] | None:
    """One run writes a variable between two steps, and the other does not."""
    item = evidence.item
    if not item.is_opening or not evidence.b.view.number or evidence.resume is not None:
        return None
    wrote = [
        any(record.name == item.name for record in side.view.opening)
        for side in (evidence.a, evidence.b)
    ]
    if wrote[0] == wrote[1]:
        return None
    side = A if wrote[0] else B
    return {"text": f"only {side} writes it between two steps, outside of the optimizer"}


def parameter_order(evidence: Evidence) -> dict[str, Any] | None:
    """The optimizer holds the same parameters in another order, and a state was loaded."""
    if evidence.item.is_opening or not any(load.owner for load in evidence.b.facts.loads):
        return None
    found = elsewhere(evidence, evidence.item.b, evidence.item.name)
    mine, yours = (
        next((group[0] for group in orders(side) if group), "none")
        for side in (evidence.a, evidence.b)
    )
    return {
        "text": "the optimizer holds the parameters in another order, so loaded states belong to "
        "other parameters",
        "fix": "Build the optimizer from list(model.parameters()), not from a set.",
        "details": (
            f"first parameter: {mine} in {A}, {yours} in {B}",
            *((found,) if found else ()),
        ),
    }


def optimizer_not_restored(evidence: Evidence) -> dict[str, Any] | None:
    """A resumed run loads no state of its optimizer."""
    if evidence.resume is None:
        return None
    return {
        "text": f"the state of the optimizer was not restored: {B} loads none",
        "fix": "Save optimizer.state_dict() in the checkpoint and load it.",
    }


def state_of_another(evidence: Evidence) -> dict[str, Any] | None:
    """The state is one that the other run has under another name or in another step."""
    if evidence.item.is_opening:
        return None
    found = elsewhere(evidence, evidence.item.b, evidence.item.name)
    if not found:
        return None
    return {"text": "the state is that of another parameter or step", "details": (found,)}


def step_skipped(evidence: Evidence) -> dict[str, Any] | None:
    """No optimizer steps in one of the runs."""
    steps = [len(calls_of(side, Families.OPTIMIZER_STEP)) for side in (evidence.a, evidence.b)]
    if evidence.item.is_opening or bool(steps[0]) == bool(steps[1]):
        return None
    side, one = (A, evidence.a) if not steps[0] else (B, evidence.b)
    if calls_of(one, Families.SCALER_STEP):
        return {
            "text": f"no optimizer steps in {side}, where GradScaler.step() is called: it skipped "
            "the step",
            "fix": "Compare the scale of the scaler in both runs; restore scaler.state_dict().",
        }
    return {"text": f"no optimizer steps in {side}"}


def update_arithmetic(evidence: Evidence) -> dict[str, Any] | None:
    """The update is computed by another implementation."""
    if evidence.item.is_opening:
        return None
    chosen = (
        next((f"with {name}=True" for name, value in flags(side).items() if value), "")
        for side in (evidence.a, evidence.b)
    )
    mine, yours = (words or "with the default" for words in chosen)
    return {
        "text": f"arithmetic, not data: the update is computed {mine} in {A} and {yours} in {B}",
        "fix": "Set the same fused= and foreach=, or compare with --rtol.",
    }


def ranks_drift(evidence: Evidence) -> dict[str, Any] | None:
    """Parameters of a rank leave those of another, and their gradients do not."""
    if not evidence.is_ranks:
        return None
    return {
        "text": f"{_parameters(evidence)} from those of rank 0: written on one rank, or updated "
        "from gradients that are not reduced",
        "fix": "Wrap all trained modules in DistributedDataParallel, and write parameters on all "
        "ranks alike.",
    }


def written_outside(evidence: Evidence) -> dict[str, Any] | None:
    """The update has the same gradients, states and settings, and the parameters differ after it.

    Only for classes of torch: the code of another optimizer may be what differs.
    """
    item = evidence.item
    classes = [event.cls for side in (evidence.a, evidence.b) for event in side.facts.optimizers]
    if item.is_opening or evidence.is_ranks or item.phase is not Phase.PARAMETER:
        return None
    if not all(name.startswith("torch.optim.") for name in classes):
        return None
    return {
        "text": f"{_parameters(evidence)} after the same gradients, optimizer states and settings: "
        "written outside of the optimizer, between the gradient and the end of the step",
        "fix": "Look for code under torch.no_grad() that writes parameters, such as a clamp, an "
        "average or a copy.",
    }


def _parameters(evidence: Evidence) -> str:
    count = len(evidence.of(Phase.PARAMETER))
    return "1 parameter differs" if count == 1 else f"{count} parameters differ"


def statistics_per_rank(evidence: Evidence) -> dict[str, Any] | None:
    """Buffers of the ranks of one run differ."""
    if not evidence.is_ranks:
        return None
    if evidence.item.name.endswith(_RUNNING):
        return {
            "text": "each rank keeps the statistics of its samples: they are not broadcast",
            "fix": "Use SyncBatchNorm or broadcast_buffers=True, or save the buffers of one rank.",
        }
    return {
        "text": "each rank computes this buffer from its samples",
        "fix": "Reduce the buffer over the ranks.",
    }
