"""A module returns something else from the same input, weights and random numbers."""

from __future__ import annotations

from traincheck.diff.causes.reading import arithmetic_facts
from traincheck.diff.difference import Explanation
from traincheck.diff.evidence import Evidence

_RANDOM = ("dropout", "rrelu", "gumbel", "bernoulli", "rand", "noise", "attention")
_SMALL = 1e-3  # relative: larger differences are no rounding


def explain(evidence: Evidence) -> Explanation | None:
    """The first difference is in the forward pass."""
    item = evidence.item
    call = item.call
    if item.what == "presence":
        return Explanation(
            code="other-calls",
            text="one run makes a call that the other does not: the model or the loop is another",
            fix="If a module was renamed, name both names with --map OLD=NEW.",
            where=item.where,
        )
    if item.note == "argument":
        return Explanation(
            code="model-input",
            text="the batches are alike, and the model is given something else: they are changed "
            "between the loader and the model",
            where=item.where,
        )
    if item.what in ("dtype", "shape", "form") or _autocasts(evidence):
        return Explanation(
            code="other-form",
            text=f"the output has another {item.what}: another dtype, autocast, or size of a layer",
            where=item.where,
        )
    name = f"{item.name} {getattr(call, 'api', '')}".lower()
    if any(word in name for word in _RANDOM):
        return Explanation(
            code="random-layer",
            text="the layer draws random numbers, and the generator is in another state",
            fix="Restore the states of all random generators, or seed them before the step.",
        )
    return _arithmetic(evidence)


def _autocasts(evidence: Evidence) -> bool:
    first = [
        {call.autocast for call in side.view.calls if call.root}
        for side in (evidence.a, evidence.b)
    ]
    return first[0] != first[1]


def _arithmetic(evidence: Evidence) -> Explanation:
    facts = arithmetic_facts(evidence)
    size = evidence.item.size
    if size is not None and size > _SMALL:
        return Explanation(
            code="other-computation",
            text="the module computes something else: too large a difference for rounding",
            details=tuple(facts),
        )
    if facts:
        text = f"arithmetic, not data: {facts[0]}"
        return Explanation(
            code="arithmetic",
            text=text,
            fix="Use the same number of threads, flags and versions, or compare with --rtol.",
            details=tuple(facts[1:]),
        )
    marked = any(mark.text == "process facts" for mark in evidence.b.facts.marks)
    details = () if marked else ("threads and flags of torch: not recorded (--view diff)",)
    return Explanation(
        code="not-deterministic",
        text="the same operation gives other bits in the same environment: it is not deterministic",
        fix="torch.use_deterministic_algorithms(True) names operations that are not deterministic.",
        details=details,
    )
