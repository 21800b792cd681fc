"""Properties that the experiments of probes show: what must not matter does not."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from traincheck.readings.reading import MANY, EventReader, Reading
from traincheck.relations.property.base import Property
from traincheck.schema.claims import Needs
from traincheck.schema.events import Event
from traincheck.schema.findings import Subject, Symptom
from traincheck.schema.places import short
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments, Status

_NEEDS = Needs(kinds=frozenset({"probe"}))


def _read(experiment: str, seen: str, event: Event) -> Iterable[Reading]:
    if not isinstance(event, ProbeEvent) or event.name != experiment:
        return ()
    if event.status in (Status.NOT_OBSERVABLE, Status.FAILED):
        return ()
    numbers = {"change": 0.0, "ratio": 1.0, "loss": 0.0, "without": 0.0} | dict(event.numbers)
    text = seen.format_map(numbers)
    operation = event.detail.get("operation", "").rpartition(".")[2]
    place = short(event.place)
    where = event.where or event.model
    if operation:
        text += f", first in {operation}() of {where}{f' ({place})' if place else ''}"
    elif event.where:
        text += f" ({event.where})"
    if event.detail.get("recomputed"):
        how = "with other random numbers" if event.detail.get("without_state") else "in backward"
        text += f"; segments are recomputed {how}{f' ({place})' if place else ''}"
    if event.detail.get("fill"):
        text += f"; masked scores are set to {event.detail['fill']}, so padding keeps weight"
    at = Subject(module=where)
    return [
        Reading(
            what=experiment,
            of=event.model,
            value=event.status,
            seen=text,
            at=at,
            event=event,
            weight=MANY,
        )
    ]


def _property(
    experiment: str,
    claim: str,
    seen: str,
    *,
    headline: str,
    cause: str,
    fix: str,
    symptom: Symptom = Symptom.WRONG_VALUE,
) -> Property:
    return Property(
        name=experiment,
        needs=_NEEDS,
        reader=partial(EventReader, partial(_read, experiment, seen)),
        claims={Status.HELD: claim},
        headline=headline,
        cause=cause,
        fix=fix,
        symptom=symptom,
    )


EXPERIMENTS = (
    _property(
        Experiments.ROW_MIXING,
        "the result of {of} for one sample does not depend on the other samples of its batch",
        "changing one sample of the batch moved the others by {change:.2g} of the largest value",
        headline="The result for one sample now depends on the other samples of its batch",
        cause="A reduction such as mean(), or a reshape, may go over the batch dimension.",
        fix="Name the dimension of each reduction, such as mean(dim=1, keepdim=True).",
    ),
    _property(
        Experiments.BATCH_PLACE,
        "the result of {of} for a sample does not depend on its place in the batch",
        "rolling the batch moved results by {change:.2g} of the largest value",
        headline="The result for a sample now depends on its place in the batch",
        cause="Positions may be indexed by the batch dimension.",
        fix="Index positions by the dimension of the sequence: pos[:, : x.shape[1]].",
    ),
    _property(
        Experiments.PADDING,
        "padding takes no part in the results of {of}",
        "other padding moved the results of the rest by {change:.2g} of the largest value",
        headline="Padding now takes part in the result of a model that masks it",
        cause="The mask of padding may have another shape, or the masked scores another value.",
        fix="Fill masked scores with float('-inf'), and mask keys: mask[:, None, None, :].",
        symptom=Symptom.UNMASKED,
    ),
    _property(
        Experiments.PADDING_ROW,
        "the vector of the padding index takes no part in the loss of {of}",
        "zeroing the padding vector moves the loss from {loss:.4g} to {without:.4g}",
        headline="The vector of the padding index is not zero any more",
        cause=(
            "The embedding may have been initialized again after its padding vector was set "
            "to zero."
        ),
        fix="After the initialization: embedding.weight[embedding.padding_idx].zero_().",
        symptom=Symptom.INITIALIZATION,
    ),
    _property(
        Experiments.IN_PLACE,
        "no in-place activation of {of} overwrites a value that is used again",
        "without inplace, the loss differs by {change:.2g} of its value",
        headline="An in-place activation now overwrites a value that is used again",
        cause="An activation with inplace=True may change a tensor that other layers read.",
        fix="Use inplace=False for this layer.",
        symptom=Symptom.OVERWRITTEN,
    ),
    _property(
        Experiments.LATER_TOKENS,
        "the results of {of} do not depend on later tokens",
        "changing later tokens moved the results of earlier ones by {change:.2g} of the largest "
        "value",
        headline="The model now sees the tokens that it must predict",
        cause="The causal mask may be missing, or a layer may go over the sequence.",
        fix="Mask later positions in attention: is_causal=True.",
        symptom=Symptom.UNMASKED,
    ),
    _property(
        Experiments.EVAL_STATE,
        "running statistics of {of} stay as they are in evaluation",
        "between two evaluation forwards, a buffer changes by {change:.2g} of its largest value",
        headline="Running statistics now go on learning in evaluation",
        cause="A layer may update its statistics without a test of self.training.",
        fix="In the method that updates them: if not self.training: return.",
        symptom=Symptom.SILENT_WRITE,
    ),
    _property(
        Experiments.GRADIENT,
        "the gradient of {of} is that of its loss",
        "moving along the gradient changes the loss by {ratio:.3g} times what the gradient says",
        headline="The gradient is not that of the loss any more",
        cause=(
            "A custom backward() may be wrong, or recomputation may draw other random "
            "numbers than the "
            "forward pass."
        ),
        fix="Test each autograd.Function with torch.autograd.gradcheck.",
    ),
)
