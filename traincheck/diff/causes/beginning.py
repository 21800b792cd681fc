"""The parameters differ before the first batch: another file, rounding, or order of building."""

from __future__ import annotations

import msgspec

from traincheck.diff.causes.reading import elsewhere, fingerprint, norm
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence, Side
from traincheck.diff.phases import STATE_PHASES, Phase

_ROUNDING = 4e-3  # a weight in bfloat16 is at most 2^-8 from that in float32


def explain(evidence: Evidence) -> Explanation | None:
    """A variable differs before the first batch of a step."""
    item = evidence.item
    if not item.is_opening or item.phase not in STATE_PHASES:
        return None
    if item.what == "presence":
        side = "A" if item.b is None else "B"
        return Explanation(
            code="other-model",
            text=f"the model or optimizer of {side} has a variable that the other has not",
            fix="If it was renamed, name both names with --map OLD=NEW.",
        )
    if evidence.resume is not None:
        return _resumed(evidence)
    if evidence.b.view.number:
        return Explanation(
            code="written-between-steps",
            text="it was written between two steps, outside of the optimizer",
        )
    return _initial(evidence)


def _resumed(evidence: Evidence) -> Explanation:
    apart = _norms_apart(evidence)
    if apart is not None and 0 < apart <= _ROUNDING:
        return Explanation(
            code="rounded-in-checkpoint",
            text="the loaded weights are close to those of the run that goes on, and no value is "
            "equal: the checkpoint holds them rounded, such as in bfloat16",
            fix="Save the weights in the dtype in which the optimizer keeps them.",
            details=(f"after the step, norms of parameters differ by at most {apart:.2g}",),
        )
    found = elsewhere(evidence, evidence.item.b, evidence.item.name)
    return Explanation(
        code="other-checkpoint",
        text="the loaded weights are not those of the run that goes on",
        fix="Load the checkpoint that was written at this step, with its full precision.",
        details=(found,) if found else (),
    )


def _norms_apart(evidence: Evidence) -> float | None:
    """The largest relative difference of the norms of parameters after the step."""
    after = [item for item in evidence.of(Phase.PARAMETER) if not item.is_opening]
    norms = [(norm(item.a), norm(item.b)) for item in after]
    found = [abs(a - b) / max(a, b) for a, b in norms if a and b]
    return max(found, default=None)


def _initial(evidence: Evidence) -> Explanation | None:
    a, b = evidence.a.facts.loads, evidence.b.facts.loads
    files_a = [event.path for event in a if event.path]
    files_b = [event.path for event in b if event.path]
    if files_a != files_b or bool(a) != bool(b):
        return Explanation(
            code="loaded",
            text=f"other files are loaded: {_files(files_a)} in A, {_files(files_b)} in B",
            details=tuple(filter(None, [elsewhere(evidence, evidence.item.b, evidence.item.name)])),
            where=next((event.where for event in (*b, *a) if event.where), None) or "",
        )
    names = [call.api for call in evidence.a.view.inits], [c.api for c in evidence.b.view.inits]
    shapes = [_shapes(evidence.a), _shapes(evidence.b)]
    if names[0] != names[1] or shapes[0] != shapes[1]:
        return Explanation(
            code="built-otherwise",
            text="the models are built in another order, or by other initializations: "
            f"{len(names[0])} calls in A, {len(names[1])} in B",
            fix="Build the modules in the same order, or set the seed before each.",
        )
    if _permuted(evidence):
        return Explanation(
            code="built-otherwise",
            text="the same initial values under other names: modules are built in another order",
            fix="Build the modules in the same order, or set the seed before each.",
        )
    return Explanation(
        code="initial-state",
        text="the parameters are drawn from another state of the random generator",
        fix="Set the seed right before the model is built.",
    )


def _shapes(side: Side) -> list[object]:
    found: list[object] = []
    for call in side.view.inits:
        arguments = msgspec.json.decode(call.args)
        tensor = arguments.get("tensor") if isinstance(arguments, dict) else None
        found.append(tensor.get("shape") if isinstance(tensor, dict) else None)
    return found


def _permuted(evidence: Evidence) -> bool:
    """Whether both runs begin with the same values, under other names."""
    differing = [item for item in evidence.items if item.is_opening and item.what == "bits"]
    mine = sorted(filter(None, (fingerprint(item.a) for item in differing)))
    yours = sorted(filter(None, (fingerprint(item.b) for item in differing)))
    return bool(mine) and mine == yours


def _files(paths: list[str]) -> str:
    return ", ".join(path.rpartition("/")[2] for path in paths[:2]) or "none"
