"""The table of causes: for each, what must be the same in both runs, and what must differ.

A cause is said if all that it needs is proven. If some of it is not known, it is a candidate. A
newcomer adds a function and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from traincheck.diff.causes import asked, computing, data, state
from traincheck.diff.causes.quantities import QUANTITIES
from traincheck.diff.difference import Candidate, Explanation
from traincheck.diff.evidence import Evidence
from traincheck.diff.generators import draws_from
from traincheck.diff.items import Phase
from traincheck.diff.messages import Told

MOST_CANDIDATES = 3
# The fields of an explanation, its code only if it is not that of the row; None if the row is for
# something else.
Explain: TypeAlias = Callable[[Evidence], "dict[str, Any] | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One row.

    Attributes:
        code: name of the row; an explanation may have a narrower one.
        phases: the phases it explains a first difference in.
        explain: finds what this row alone looks for.
        equal, differ: names of quantities that must be the same, and that must differ.
        may_be_equal: names of quantities that must not be known to differ.
        alone: names of quantities that must be the same, or else it is one of several that may
            have the effect.
    """

    code: str
    phases: tuple[Phase, ...]
    explain: Explain
    equal: tuple[str, ...] = ()
    differ: tuple[str, ...] = ()
    may_be_equal: tuple[str, ...] = ()
    alone: tuple[str, ...] = ()


_STATES = (Phase.PARAMETER, Phase.OPTIMIZER_STATE, Phase.BUFFER)
_UPDATED = (Phase.PARAMETER, Phase.OPTIMIZER_STATE)
_VALUES = tuple(phase for phase in Phase if phase is not Phase.SETTINGS)
_ALL_ASKED = ("the code", "the command", "the random numbers")
# In the order in which they are tried: what the traces show as such, then the code, then what may
# be behind it, then what is left.
CAUSES = (
    Cause(
        code="schedule-not-restored", phases=(Phase.SETTINGS,),
        explain=asked.schedule_not_restored, differ=("the load of the scheduler",),
    ),
    Cause(code="setting", phases=(Phase.SETTINGS,), explain=asked.setting),
    Cause(code="seed", phases=(Phase.RNG,), explain=asked.seed),
    Cause(
        code="generator-not-restored", phases=(Phase.RNG,), explain=asked.generator_not_restored
    ),
    Cause(code="sampler", phases=(Phase.BATCH,), explain=data.sampler),
    Cause(code="dataset-size", phases=(Phase.BATCH,), explain=data.dataset_size),
    Cause(code="loader-replays", phases=(Phase.BATCH,), explain=data.loader_replays),
    Cause(
        code="order-not-restored", phases=(Phase.BATCH,), explain=data.order_not_restored,
        differ=("the generators at loading",),
    ),
    Cause(
        code="worker-number", phases=(Phase.BATCH,), explain=data.worker_number,
        equal=("the code",), differ=("the number of workers",),
    ),
    Cause(
        code="worker-seeds", phases=(Phase.BATCH,), explain=data.worker_seeds, equal=("the code",)
    ),
    Cause(
        code="augmentation-not-restored", phases=(Phase.BATCH,),
        explain=data.augmentation_not_restored, equal=("the code",),
        differ=("the generators at loading",),
    ),
    Cause(code="rounded-in-checkpoint", phases=_STATES, explain=state.rounded_in_checkpoint),
    Cause(code="other-checkpoint", phases=_STATES, explain=state.other_checkpoint),
    Cause(code="loaded", phases=_STATES, explain=state.loaded),
    Cause(code="mode", phases=(Phase.FORWARD,), explain=computing.mode),
    Cause(
        code="autocast", phases=(Phase.FORWARD,), explain=computing.autocast, differ=("autocast",)
    ),
    Cause(code="ranks-not-reduced", phases=(Phase.GRADIENT,), explain=computing.not_reduced),
    Cause(
        code="reduction-missing", phases=(Phase.GRADIENT,), explain=computing.reduction_missing,
        equal=("the loss", "the number of backward passes"), differ=("reduction over ranks",),
    ),
    Cause(
        code="not-cleared", phases=(Phase.GRADIENT,), explain=computing.not_cleared,
        equal=("the loss", "the number of backward passes"), differ=("clearing of gradients",),
    ),
    Cause(
        code="clipping", phases=(Phase.GRADIENT,), explain=computing.clipping,
        equal=("the loss", "the number of backward passes"),
        differ=("clipping",),
    ),
    Cause(
        code="parameter-order", phases=(Phase.OPTIMIZER_STATE,), explain=state.parameter_order,
        equal=("the set of the parameters",), differ=("the order of the parameters",),
    ),
    Cause(
        code="optimizer-not-restored", phases=(Phase.OPTIMIZER_STATE,),
        explain=state.optimizer_not_restored, differ=("the load of the optimizer",),
    ),
    Cause(
        code="step-skipped", phases=_UPDATED, explain=state.step_skipped,
        equal=("the number of backward passes",), differ=("the number of updates",),
    ),
    Cause(code="ranks-drift", phases=(Phase.PARAMETER,), explain=state.ranks_drift),
    Cause(code="statistics-per-rank", phases=(Phase.BUFFER,), explain=state.statistics_per_rank),
    Cause(
        code="code", phases=_VALUES, explain=asked.code, differ=("the code",),
        alone=("the command", "the versions of libraries", "the arithmetic"),
    ),
    Cause(code="draws", phases=(Phase.RNG,), explain=asked.draws),
    Cause(code="replayed", phases=(Phase.BATCH,), explain=data.replayed),
    Cause(
        code="loader-generator", phases=(Phase.BATCH,), explain=data.loader_generator,
        equal=("the random numbers", "the generators at loading", "the code"),
    ),
    Cause(code="listing-order", phases=(Phase.BATCH,), explain=data.listing_order),
    Cause(code="building-order", phases=_STATES, explain=state.built_in_another_order),
    Cause(
        code="initialization", phases=_STATES, explain=state.initialized_otherwise,
        differ=("the initialization",),
    ),
    Cause(code="written-between-steps", phases=_STATES, explain=state.written_between_steps),
    Cause(
        code="model-input", phases=(Phase.FORWARD,), explain=computing.model_input,
        equal=("the batch",),
    ),
    Cause(
        code="loss-argument", phases=(Phase.LOSS,), explain=computing.loss_argument,
        equal=("the forward pass",),
    ),
    Cause(
        code="loss-scale", phases=(Phase.LOSS,), explain=computing.loss_scale,
        equal=("the forward pass",),
    ),
    Cause(
        code="gradient-scale", phases=(Phase.GRADIENT,), explain=computing.gradient_scale,
    ),
    Cause(
        code="state-of-another", phases=(Phase.OPTIMIZER_STATE,), explain=state.state_of_another
    ),
    Cause(
        code="update-arithmetic", phases=_UPDATED, explain=state.update_arithmetic,
        equal=("the gradients", "the settings"), differ=("the kind of update",),
        may_be_equal=("all but rounding",),
    ),
    Cause(
        code="written-outside", phases=(Phase.PARAMETER,), explain=state.written_outside,
        equal=("the gradients", "the settings", "the kind of update"),
        may_be_equal=("the arithmetic", "the versions of libraries"),
    ),
    Cause(
        code="arithmetic", phases=(Phase.FORWARD, Phase.LOSS, Phase.GRADIENT),
        explain=computing.arithmetic, equal=("the inputs", "all but rounding"),
        differ=("the arithmetic",),
    ),
    Cause(
        code="versions", phases=_VALUES, explain=asked.versions,
        differ=("the versions of libraries",), alone=("the code", "the command"),
    ),
    Cause(
        code="command", phases=_VALUES, explain=asked.command, differ=("the command",),
        alone=("the code", "the versions of libraries", "the arithmetic"),
    ),
    Cause(
        code="not-deterministic", phases=(Phase.FORWARD, Phase.LOSS, Phase.GRADIENT),
        explain=computing.not_deterministic,
        equal=(*_ALL_ASKED, "the arithmetic", "the inputs", "all but rounding"),
    ),
)  # fmt: skip


def explain(evidence: Evidence) -> tuple[Explanation | None, tuple[Candidate, ...]]:
    """The cause of a difference, if one is proven; else the candidates, three at most."""
    candidates: list[Candidate] = []
    for cause in CAUSES:
        if evidence.item.phase not in cause.phases:
            continue
        readings = [(name, QUANTITIES[name](evidence)) for name in cause.equal]
        if any(reading is False for _, reading in readings):
            continue
        wanted = [(name, QUANTITIES[name](evidence)) for name in cause.differ]
        if any(reading is True for _, reading in wanted):
            continue
        if any(QUANTITIES[name](evidence) is False for name in cause.may_be_equal):
            continue
        found = cause.explain(evidence)
        if found is None:
            continue
        said = {"text": Told(found["text"]), "details": tuple(map(Told, found.get("details", ())))}
        explanation = Explanation(**{"code": cause.code, **found, **said})
        others = [(name, QUANTITIES[name](evidence)) for name in cause.alone]
        known = (*readings, *wanted, *others)
        unknown = tuple(name for name, reading in known if reading is None)
        rivals = tuple(name for name, reading in others if reading is False)
        if not unknown and not rivals:
            return explanation, ()
        candidates.append(Candidate(explanation, unknown, rivals))
    for item in evidence.latent:
        # It is not known whether the part that differs draws from this generator.
        if item.phase is Phase.RNG and draws_from(item, evidence) is None:
            generator = Explanation(
                code="generator", text=Told(f"the {item.name} is in another state")
            )
            candidates.append(Candidate(generator, ("the random numbers it draws",)))
    return None, tuple(candidates[:MOST_CANDIDATES])
