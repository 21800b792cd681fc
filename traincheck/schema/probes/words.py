"""The words of each experiment: one row, for the summary of a run, for claims and for findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.schema.findings import Symptom
from traincheck.schema.probes.names import Experiments


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The words for one experiment: whether what must not matter does.

    Attributes:
        name: one of `Experiments`.
        summary: that it held, in a few words.
        claim: that it held for a model ``{of}``, as a clause.
        seen: what was measured where it did not, with numbers of the event.
        headline, cause, fix, symptom: of a finding where it held before.
    """

    name: str
    summary: str
    claim: str
    seen: str
    headline: str
    cause: str
    fix: str
    symptom: Symptom = Symptom.WRONG_VALUE


_ALL = (
    Experiment(
        name=Experiments.ROW_MIXING,
        summary="other samples do not matter",
        claim="the result of {of} for one sample does not depend on the other samples of its batch",
        seen="changing one sample of the batch moved the others by {change:.2g} of the "
        "largest value",
        headline="The result for one sample now depends on the other samples of its batch",
        cause="A reduction such as mean(), or a reshape, may go over the batch dimension.",
        fix="Name the dimension of each reduction, such as mean(dim=1, keepdim=True).",
    ),
    Experiment(
        name=Experiments.BATCH_PLACE,
        summary="the place in the batch does not matter",
        claim="the result of {of} for a sample does not depend on its place in the batch",
        seen="rolling the batch moved results by {change:.2g} of the largest value",
        headline="The result for a sample now depends on its place in the batch",
        cause="Positions may be indexed by the batch dimension.",
        fix="Index positions by the dimension of the sequence: pos[:, : x.shape[1]].",
    ),
    Experiment(
        name=Experiments.PADDING,
        summary="padding does not matter",
        claim="padding takes no part in the results of {of}",
        seen="other padding moved the results of the rest by {change:.2g} of the largest value",
        headline="Padding now takes part in the result of a model that masks it",
        cause="The mask of padding may have another shape, or the masked scores another value.",
        fix="Fill masked scores with float('-inf'), and mask keys: mask[:, None, None, :].",
        symptom=Symptom.UNMASKED,
    ),
    Experiment(
        name=Experiments.PADDING_ROW,
        summary="the padding vector does not matter",
        claim="the vector of the padding index takes no part in the loss of {of}",
        seen="zeroing the padding vector moves the loss from {loss:.4g} to {without:.4g}",
        headline="The vector of the padding index is not zero any more",
        cause=(
            "The embedding may have been initialized again after its padding vector was set "
            "to zero."
        ),
        fix="After the initialization: embedding.weight[embedding.padding_idx].zero_().",
        symptom=Symptom.INITIALIZATION,
    ),
    Experiment(
        name=Experiments.IN_PLACE,
        summary="in-place activations do not matter",
        claim="no in-place activation of {of} overwrites a value that is used again",
        seen="without inplace, the loss differs by {change:.2g} of its value",
        headline="An in-place activation now overwrites a value that is used again",
        cause="An activation with inplace=True may change a tensor that other layers read.",
        fix="Use inplace=False for this layer.",
        symptom=Symptom.OVERWRITTEN,
    ),
    Experiment(
        name=Experiments.LATER_TOKENS,
        summary="later tokens do not matter",
        claim="the results of {of} do not depend on later tokens",
        seen="changing later tokens moved the results of earlier ones by {change:.2g} of the "
        "largest value",
        headline="The model now sees the tokens that it must predict",
        cause="The causal mask may be missing, or a layer may go over the sequence.",
        fix="Mask later positions in attention: is_causal=True.",
        symptom=Symptom.UNMASKED,
    ),
    Experiment(
        name=Experiments.EVAL_STATE,
        summary="evaluation changes no statistics",
        claim="running statistics of {of} stay as they are in evaluation",
        seen="between two evaluation forwards, a buffer changes by {change:.2g} of its "
        "largest value",
        headline="Running statistics now go on learning in evaluation",
        cause="A layer may update its statistics without a test of self.training.",
        fix="In the method that updates them: if not self.training: return.",
        symptom=Symptom.SILENT_WRITE,
    ),
    Experiment(
        name=Experiments.GRADIENT,
        summary="the gradient is that of the loss",
        claim="the gradient of {of} is that of its loss",
        seen="moving along the gradient changes the loss by {ratio:.3g} times what the "
        "gradient says",
        headline="The gradient is not that of the loss any more",
        cause=(
            "A custom backward() may be wrong, or recomputation may draw other random numbers "
            "than the forward pass."
        ),
        fix="Test each autograd.Function with torch.autograd.gradcheck.",
    ),
)
EXPERIMENTS: Mapping[str, Experiment] = {each.name: each for each in _ALL}
