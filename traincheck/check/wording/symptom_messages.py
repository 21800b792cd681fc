"""Title, likely cause and fix of each symptom."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from traincheck.schema.findings import SEVERITIES, Symptom
from traincheck.schema.torch_api import Families

_S = Symptom


@dataclass(frozen=True, slots=True, kw_only=True)
class SymptomMessage:
    """The texts of a symptom, used where the check itself has none.

    ``{variables}`` and the like are filled in (`Template`). ``{is|are}`` chooses by the number of
    variables. ``{since}`` becomes ``from step 3 on``.

    Attributes:
        title: of a finding.
        likely_cause: of it.
        fix: what to change in the program.
        source: family of the call, or kind of the event, whose source line is shown.
        at_most: the highest severity, lower for a symptom that may be intended.
    """

    title: str
    likely_cause: str
    fix: str
    source: str | None = None
    at_most: str = SEVERITIES[-1]


SYMPTOM_MESSAGES: Mapping[Symptom, SymptomMessage] = {
    _S.MISSING_STEP: SymptomMessage(
        title="Gradients are computed but no optimizer step applies them",
        likely_cause=(
            "backward() runs, but optimizer.step() may be missing from the loop or is never "
            "reached, {since}."
        ),
        fix="Call optimizer.step() after loss.backward() in every iteration.",
        source=Families.BACKWARD,
    ),
    _S.MISSING_ZERO_GRAD: SymptomMessage(
        title="Gradients are not cleared between optimizer steps",
        likely_cause=(
            "optimizer.zero_grad() may be missing from the loop: step {step} also applies "
            "the gradients of the step before."
        ),
        fix="Call optimizer.zero_grad() once per optimizer step, before loss.backward().",
        source=Families.OPTIMIZER_STEP,
    ),
    _S.NO_BACKWARD: SymptomMessage(
        title="backward() is never called in these steps",
        likely_cause=(
            "Nothing computes gradients {since}: loss.backward() may be missing, lack its "
            "parentheses, or stand behind a condition that is not true."
        ),
        fix="Call loss.backward(), with parentheses, before optimizer.step().",
        source=Families.OPTIMIZER_STEP,
    ),
    _S.STEP_WITHOUT_GRADIENT: SymptomMessage(
        title="The optimizer steps when it has no gradient to apply",
        likely_cause=(
            "optimizer.step(){where} may come before loss.backward(), or zero_grad() "
            "between the two."
        ),
        fix="Order the loop as zero_grad(), forward, backward(), step().",
        source=Families.OPTIMIZER_STEP,
    ),
    _S.NOT_IN_OPTIMIZER: SymptomMessage(
        title="No optimizer holds {variables}",
        likely_cause=(
            "The optimizer{where} may have been built from other parameters: only a part of "
            "the model, or a model or layer that was replaced afterwards."
        ),
        fix=(
            "Build the optimizer after the model is final, from all parameters that are to be "
            "trained, {variables} among them."
        ),
        source="optimizer",
    ),
    _S.HOLDS_OTHERS: SymptomMessage(
        title="An optimizer updates parameters that no model has",
        likely_cause=(
            "The optimizer{where} may have been built from the parameters of a copy, or of "
            "a model that was replaced: {variables} belong to no model that runs."
        ),
        fix="Build the optimizer from the parameters of the very model that is trained.",
        source="optimizer",
    ),
    _S.EVAL_MODE: SymptomMessage(
        title="{subject} is in the wrong mode {since}",
        likely_cause=(
            "model.eval() may have been called for an evaluation, and no model.train() "
            "follows before training goes on."
        ),
        fix=(
            "Call model.train() at the start of every training epoch, and model.eval() only "
            "around evaluation."
        ),
    ),
    _S.TRAINING_MODE: SymptomMessage(
        title="{subject} is in training mode where it is only to be used",
        likely_cause=(
            "No eval() is called on {subject} before it is used: dropout drops, and statistics of "
            "batches are taken for those of the data."
        ),
        fix="Call eval() on {subject} before it is used, and train() before it is trained again.",
    ),
    _S.NO_GRADIENT: SymptomMessage(
        title="No gradient reaches {variables}",
        likely_cause=(
            "The graph may be cut between the loss and {variables}: a detach(), .data, "
            "no_grad() block or non-differentiable operation, or the module or its result "
            "is not used."
        ),
        fix=(
            "Remove what cuts the graph on the way to {variables}, let the loss use what they "
            "compute, or set requires_grad=False for what is not to be trained."
        ),
    ),
    _S.DETACHED: SymptomMessage(
        title="No gradient flows back through what {subject} returns",
        likely_cause=(
            "A result of {subject}{where} may have been detached, made of numbers, computed "
            "where gradients are off, or derived without create_graph=True; or all that it "
            "is computed from is frozen (requires_grad=False)."
        ),
        fix=(
            "Remove detach(), .data, item(), torch.tensor() and no_grad() on the way to what "
            "{subject} returns{where}, or call requires_grad_(True) on the model that computes its "
            "arguments. A loss of it trains nothing before it."
        ),
    ),
    _S.FROZEN: SymptomMessage(
        title="{variables} frozen (requires_grad is False)",
        likely_cause="requires_grad was set to False for {variables} before step {step}.",
        fix=(
            "Remove the line that freezes {variables}, or call requires_grad_(True) before the "
            "optimizer is built."
        ),
        at_most="warning",
    ),
    _S.UNFROZEN: SymptomMessage(
        title="{variables} {is|are} trained although {it is|they are} to stay as {it is|they are}",
        likely_cause=(
            "Nothing sets requires_grad to False for {variables}, or it may be set for "
            "another part."
        ),
        fix=(
            "Freeze {it|them} before the optimizer is built, and give the optimizer what is "
            "trained only."
        ),
        source="optimizer",
    ),
    _S.STRUCTURE: SymptomMessage(
        title="{subject} has other parameters or buffers than it should",
        likely_cause=(
            "A part of {subject} may be missing, have been added, stand in several places, "
            "or be kept where neither state_dict() nor named_parameters() sees it: "
            "{observed}."
        ),
        fix=(
            "Assign what is to be trained as an nn.Module or nn.Parameter, one for each place "
            "([layer] * 3 is one layer); register_buffer() is for what is only to be kept."
        ),
    ),
    _S.NOT_UPDATED: SymptomMessage(
        title="The optimizer step leaves {variables} as {it was|they were}",
        likely_cause=(
            "{variables} may not be held by the optimizer that steps, get no gradient, or "
            "their update is lost (learning rate, precision)."
        ),
        fix=(
            "Check that the optimizer was built from these very objects ({variables}), that they "
            "get gradients, and that the learning rate is not zero."
        ),
    ),
    _S.GRADIENT_LOST: SymptomMessage(
        title="Gradients are cleared before any step applies them",
        likely_cause="zero_grad(){where} comes between backward() and the optimizer step.",
        fix="Call zero_grad() once per optimizer step, after it.",
        source=Families.ZERO_GRAD,
    ),
    _S.APPLIED_TWICE: SymptomMessage(
        title="One gradient counts twice for {variables}",
        likely_cause="Two calls{where} apply or add the same gradient.",
        fix="Let one optimizer hold each parameter, and call backward() once for each loss.",
        source=Families.OPTIMIZER_STEP,
    ),
    _S.WRONG_ORDER: SymptomMessage(
        title="{subject} comes at the wrong place of the loop",
        likely_cause="{subject}{where} has no effect, or another one, where it stands: {observed}.",
        fix="Move {subject}{where} so that the order is: {expected}.",
    ),
    _S.STEPS_SKIPPED: SymptomMessage(
        title="GradScaler skips every optimizer step",
        likely_cause="The scaled gradients overflow at every step: {observed}.",
        fix="Lower init_scale, and find the operation in which the loss overflows.",
        source=Families.SCALER_STEP,
    ),
    _S.SCHEDULE: SymptomMessage(
        title="The learning rate does not follow the training",
        likely_cause=(
            "The scheduler{where} may be stepped more or less often than it expects to be; "
            "or, where the loop sets the rate, it no longer writes it to "
            "optimizer.param_groups."
        ),
        fix=(
            "Step the scheduler once for each unit that its schedule counts; write rates that are "
            "set by hand to every group of optimizer.param_groups."
        ),
        source=Families.SCHEDULER_STEP,
    ),
    _S.SILENT_WRITE: SymptomMessage(
        title="{variables} {changes|change} although {it is|they are} frozen",
        likely_cause="Something else than training writes to {variables}.",
        fix="Find what writes to {it|them}; take frozen parameters out of the optimizer.",
    ),
    _S.OVERWRITTEN: SymptomMessage(
        title="Something other than its optimizer writes to {variables}",
        likely_cause=(
            "The loop may write to {variables} between two steps: an average that is copied "
            "the wrong way round, or whose model is the trained one itself (no "
            "copy.deepcopy); a copy of an earlier state; a write in place."
        ),
        fix=(
            "Check source and target of each copy_() and load_state_dict() between two steps: "
            "copy from {variables} to the average, and not back."
        ),
        source=Families.OPTIMIZER_STEP,
    ),
    _S.OUT_OF_STEP: SymptomMessage(
        title="Ranks do not do the same in step {step}",
        likely_cause=(
            "A condition that depends on the rank or its data may let one rank skip what "
            "the others do: {observed}."
        ),
        fix="Let all ranks decide alike: agree on the condition by a collective first.",
    ),
    _S.NOT_SYNCHRONIZED: SymptomMessage(
        title="Gradients of {variables} are not exchanged between ranks",
        likely_cause="The step applies gradients that each rank has computed for itself.",
        fix="Let backward() run through the DDP wrapper outside no_sync() before each step.",
    ),
    _S.RANKS_DIFFER: SymptomMessage(
        title="Ranks no longer agree on {variables}",
        likely_cause="Gradients or updates of {variables} differ between ranks.",
        fix=(
            "Find what one rank does by itself in step {step}: another batch is fine, but not an "
            "optimizer step, a clipping or a change of gradients that the others do not make."
        ),
    ),
    _S.SHARING_LOST: SymptomMessage(
        title="{variables} no longer share one tensor",
        likely_cause="Another tensor was assigned to one of the names.",
        fix="Tie the weights again after the last assignment, before the optimizer is built.",
    ),
    _S.NOT_RESTORED: SymptomMessage(
        title="{subject} was not restored from the checkpoint",
        likely_cause="The state was saved, but it is not loaded on resume.",
        fix="Load the state of everything that was saved before training goes on.",
    ),
    _S.STATE_UNCHANGED: SymptomMessage(
        title="{variables} {does|do} not change where {it|they} should",
        likely_cause=(
            "What updates {variables} may not be reached: the module is in evaluation mode, "
            "is not used, or gets no gradient."
        ),
        fix="Check the mode of the module of {variables}, and that it takes part in forward.",
    ),
    _S.MISSING_CALL: SymptomMessage(
        title="{subject} is not called where it should be",
        likely_cause=(
            "The call to {subject} may be missing from the loop, or a condition around it "
            "is never true."
        ),
        fix="Restore the call to {subject} at this place of the loop.",
    ),
    _S.MADE_ANEW: SymptomMessage(
        title="The optimizer is built again, and loses its state",
        likely_cause=(
            "Another optimizer of the same class is made later, as in a loop, and trains the same "
            "parameters without the momentum and averages of the one before: {observed}."
        ),
        fix=(
            "Build the optimizer once, before the loop; to change its rate, write to "
            "optimizer.param_groups."
        ),
        source="optimizer",
    ),
    _S.EXTRA_CALL: SymptomMessage(
        title="{subject} is called more often than it should be",
        likely_cause=("{subject} may be called again, or its loop does not end where it did."),
        fix="Call {subject} as often as the reference does, or learn from a run of this version.",
    ),
    _S.LOSS_INPUT: SymptomMessage(
        title="{subject} is given what it is not made for",
        likely_cause="The arguments of {subject} do not have the form that it expects.",
        fix="Compare the arguments with what the documentation of {subject} asks for.",
    ),
    _S.REPEATED_DATA: SymptomMessage(
        title="{variables} {gives|give} the same again",
        likely_cause=(
            "What should differ between workers, ranks or epochs may start from one seed."
        ),
        fix="Seed each worker, rank and epoch differently.",
        source="batch",
    ),
    _S.UNMASKED: SymptomMessage(
        title="{subject} attends to what it should not see",
        likely_cause=(
            "The mask of attention may not reach {subject}{where}. Expected: {expected}. "
            "Here: {observed}."
        ),
        fix="Pass the mask, or is_causal=True, on to the call of attention{where}.",
    ),
    _S.BATCH_CONTENT: SymptomMessage(
        title="Tokens, mask and labels of {variables} do not fit together",
        likely_cause=("What collates samples to a batch may pad, mask or label them otherwise."),
        fix="Compare a batch with one of the reference: tokens, attention mask and labels.",
        source="batch",
    ),
    _S.PRECISION: SymptomMessage(
        title="The dtype of {variables} is not what it should be",
        likely_cause=("A cast, or an autocast region, may not do what was meant."),
        fix=(
            "Find the .to(), .half(), .float() or autocast that sets the dtype of {variables}, and "
            "remove it, or learn from a run with this dtype."
        ),
    ),
    _S.NON_FINITE: SymptomMessage(
        title="NaN or infinity spreads from {subject}",
        likely_cause="{subject} holds NaN or infinity at step {step}.",
        fix="Find where it comes from with torch.autograd.set_detect_anomaly(True).",
        source=Families.BACKWARD,
    ),
    _S.INITIALIZATION: SymptomMessage(
        title="{variables} {begins|begin} where nothing can be learned",
        likely_cause="The initial values of {variables} are constant, or far too large.",
        fix="Use the initialization of torch, or torch.nn.init.kaiming_normal_.",
    ),
    _S.GRADIENT_SIZE: SymptomMessage(
        title="Gradients of {subject} are too large or too small to learn from",
        likely_cause=(
            "The learning rate, the scale of the data or the depth may not fit; or a mask "
            "lets nothing of {subject} through."
        ),
        fix=(
            "Normalize the data, and check that masks have the right polarity. Then lower the "
            "learning rate or clip gradients."
        ),
        source=Families.BACKWARD,
    ),
    _S.DEAD_UNITS: SymptomMessage(
        title="Most units of {subject} pass nothing on",
        likely_cause=("Inputs of {subject} may lie on the flat side of its activation."),
        fix="Lower the learning rate and check the initialization of the layer before.",
    ),
    _S.NOT_LEARNING: SymptomMessage(
        title="The loss does not improve",
        likely_cause="Training goes on from step {step} without the loss getting better.",
        fix="Check the learning rate, the labels and what is given to the loss.",
        source=Families.BACKWARD,
    ),
    _S.ADVICE: SymptomMessage(
        title="There is a better way",
        likely_cause="{observed}",
        fix="Change it as the check expects: {expected}.",
    ),
    _S.WARNED: SymptomMessage(
        title="A warning says that training is not as it should be",
        likely_cause="{observed}",
        fix="Change the call{where} as the warning says: {observed}.",
        source="warning",
    ),
    _S.SETTING: SymptomMessage(
        title="{subject} has another setting: {observed}",
        likely_cause="It is {observed} here{where}, and {expected} in every reference run.",
        fix="Nothing is wrong if it was meant; learn from a run with it.",
        at_most="info",
    ),
    _S.WRONG_VALUE: SymptomMessage(
        title="{subject} is given or gives an unexpected value: {observed}",
        likely_cause=(
            "An argument or a result of {subject}{where} is not what it was in every reference "
            "run: {expected}. Here it is {observed}."
        ),
        fix=(
            "At step {step}{where}, change {subject} back to what it was: {expected}. If the new "
            "value is meant, learn from a run with it."
        ),
    ),
}
