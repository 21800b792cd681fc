"""Warnings of libraries that report a fault, or may matter."""

from __future__ import annotations

from traincheck.rules.torch_warnings.warned import WARNINGS, Known, WarningRule
from traincheck.schema.claims import Needs
from traincheck.schema.marks import Marks

LIBRARY_FAULTS = (
    Known(
        name="metric-without-update",
        text=r"``compute`` method of metric \w+ was called before the ``update`` method",
        title="A metric is computed without any update since its reset",
        cause="compute(){where} follows reset() or the constructor without an update() in between, "
        "so its value is that of no sample: {observed}",
        fix="Call metric.update() before metric.compute(), and metric.reset() after it.",
    ),
    Known(
        name="adapter-keys-missing",
        text=r"Found missing adapter keys while loading the checkpoint",
        title="A part of the adapter is not in its checkpoint",
        cause="These keys of the adapter{where} keep their initial values: {observed}",
        fix="Save the adapter with the config and the modules_to_save that it is loaded with.",
    ),
    Known(
        name="second-adapter",
        text=(
            r"You are trying to modify a model with PEFT for a second time|"
            r"Already found a `peft_config` attribute in the model"
        ),
        title="An adapter is added to a model that already has one",
        cause="The model{where} already contains an adapter, which stays in it: {observed}",
        fix="Call model.unload() or merge_and_unload() first, or load the base model again. To "
        "train on, use PeftModel.from_pretrained(..., is_trainable=True).",
    ),
    Known(
        name="tied-layer-adapted",
        text=r"tie_word_embeddings=True` and the .*are part of the adapter",
        title="An adapter changes one of two tied layers",
        cause="Embedding and output layer share one weight, and the adapter{where} changes one.",
        fix="Adapt both layers or none, or untie them: config.tie_word_embeddings = False.",
    ),
    Known(
        name="tied-weights-differ",
        text=(
            r"specifies to tie .* both are present in the checkpoints with different values|"
            r"specifies to tie .* both are absent from the checkpoint"
        ),
        title="Weights that the config ties are not tied",
        cause="The checkpoint{where} does not agree with the config: {observed}",
        fix="Set tie_word_embeddings as in the checkpoint, or save it with tied weights.",
    ),
    Known(
        name="right-padding-in-generation",
        text=r"A decoder-only architecture is being used, but right-padding was detected",
        title="Text is generated behind padding tokens",
        cause="The tokenizer{where} pads on the right, so new tokens follow the padding.",
        fix='Set tokenizer.padding_side = "left" for generation.',
    ),
    Known(
        name="no-shard",
        text=r"FSDP is switching to use `NO_SHARD`",
        title="FSDP shards nothing: its group has one rank",
        cause="The process group that FSDP{where} got has one rank: {observed}",
        fix="Pass the group or the mesh that contains all ranks.",
        in_group=True,
    ),
    Known(
        name="rate-update-skipped",
        text=r"conditioned on metric .* which is not available but strict is set to `False`",
        title="The learning rate is never reduced: its metric does not exist",
        cause="The scheduler{where} waits for a metric that is not logged: {observed}",
        fix="Log the metric with self.log() under the name in `monitor`.",
    ),
    Known(
        name="monitored-metric-missing",
        text=r"could not find the monitored key in the returned metrics",
        title="No best checkpoint is chosen: the monitored metric does not exist",
        cause="The callback{where} monitors a metric that is not logged: {observed}",
        fix="Log the metric with self.log() under the name in `monitor`.",
    ),
    Known(
        name="accumulation-mismatch",
        text=r"Gradient accumulation steps mismatch: GradientAccumulationPlugin has",
        title="Accelerate and DeepSpeed accumulate different numbers of batches",
        cause="The two configurations disagree: {observed}",
        fix="Set the same gradient_accumulation_steps in both configurations.",
    ),
    Known(
        name="forward-order-changes",
        text=r"Forward order differs from that of the first iteration on rank",
        title="FSDP meets modules in another order than in the first iteration",
        cause="Ranks may gather parameters of different modules: {observed}",
        fix="Call the same modules in the same order on all ranks and in all iterations.",
    ),
)


class LibraryWarning(WarningRule, code="TC075"):
    """library-warning: a library warned about a problem that spoils training.

    What it checks:
        Warnings and log records of transformers, peft, accelerate, torchmetrics, Lightning and FSDP
        against a list of those that mean that a part of training does not do what the script says.

    Why it matters:
        They are printed once among hundreds of lines, and often silenced.

    Fires on:
        - A metric that is computed before an update.
        - Adapters: missing keys, a second adapter, one of two tied layers.
        - Tied weights that a checkpoint unties.
        - Generation behind padding.
        - FSDP that switches to NO_SHARD.
        - A scheduler or a checkpoint that waits for a metric that is not logged.

    Stays quiet on:
        - All other warnings: deprecations, notes on speed, files that are missing.
        - Log records that the level of the logger drops.
        - FSDP in a program with one rank.
        - Warnings that may be harmless, which TC076 reports.

    Fix:
        Follow the warning. The finding names the line.

    Source:
        https://github.com/Lightning-AI/torchmetrics/issues/1450, https://github.com/huggingface/peft/issues/2018
    """

    title = "A library warned about a problem in training"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    needs = WARNINGS | Needs(kinds=frozenset({"mark"}), marks=frozenset({Marks.PROCESS_GROUP}))
    known = LIBRARY_FAULTS
    speaker = "a library"


LIBRARY_ADVICE = (
    Known(
        name="mask-not-passed",
        text=(
            r"The attention mask .*not set.* with a batched input|"
            r"We strongly recommend passing in an `attention_mask` since your input_ids"
        ),
        title="A padded batch is used without its attention mask",
        cause="The model{where} attends to padding: {observed}",
        fix="Pass attention_mask together with input_ids.",
    ),
    Known(
        name="loss-type-unknown",
        text=r"loss_type=(?!None).* was set in the config but it is unrecogni[sz]ed\. Using the",
        title="The model is trained with another loss than its config names",
        cause="transformers does not know this loss and uses that of causal models: {observed}",
        fix="Correct config.loss_type, or compute the loss in the program.",
    ),
    Known(
        name="batch-size-guessed",
        text=r"Trying to infer the `batch_size` from an ambiguous collection",
        title="Lightning guesses the batch size that weights a metric",
        cause="The mean over an epoch is weighted by a guessed batch size: {observed}",
        fix="Pass it: self.log(name, value, batch_size=batch_size).",
    ),
    Known(
        name="metric-not-reduced",
        text=r"It is recommended to use `self\.log\(.*, sync_dist=True\)` when logging on epoch",
        title="A metric is that of one rank only",
        cause="self.log(){where} logs the value of rank 0: {observed}",
        fix="Pass sync_dist=True to self.log().",
    ),
    Known(
        name="training-step-skipped",
        text=r"`training_step` returned `None`",
        title="training_step returns no loss, so the batch is not trained on",
        cause="A branch of training_step ends without a loss.",
        fix="Return the loss on every path of training_step.",
    ),
    Known(
        name="evaluation-shuffled",
        text=r"Your `(val|test|predict)_dataloader`'s sampler has shuffling enabled",
        title="Evaluation data are shuffled",
        cause="Results of evaluation come in another order each time: {observed}",
        fix="Pass shuffle=False to the DataLoader of the evaluation.",
    ),
    Known(
        name="no-evaluation",
        text=r"You defined a `validation_step` but have no `val_dataloader`",
        title="validation_step is never called: there is no val_dataloader",
        cause="Lightning skips the evaluation: {observed}",
        fix="Define val_dataloader(), or pass it to trainer.fit().",
    ),
    Known(
        name="no-optimizer",
        text=r"configure_optimizers` returned `None`, this fit will run with no optimizer",
        title="Lightning trains without an optimizer",
        cause="configure_optimizers() has no return value.",
        fix="Return the optimizer from configure_optimizers().",
    ),
    Known(
        name="labels-unknown",
        text=r"No label_names provided for model class",
        title="The evaluation has no labels, so it reports no loss",
        cause="The Trainer cannot find the names of labels in a wrapped model: {observed}",
        fix='Pass label_names=["labels"] to TrainingArguments.',
    ),
    Known(
        name="sequence-too-long",
        text=r"Token indices sequence length is longer than the specified maximum sequence length",
        title="A text is longer than the model allows",
        cause="The tokenizer{where} does not truncate: {observed}",
        fix="Pass truncation=True and max_length to the tokenizer.",
    ),
    Known(
        name="classes-without-samples",
        text=r"\d+ NaN values found in confusion matrix have been replaced with zeros",
        title="A metric replaces NaN by zero: a class has no samples",
        cause="Some classes do not occur in the evaluation: {observed}",
        fix="Evaluate on data with all classes, or average over those that occur.",
    ),
)


class LibraryAdvice(WarningRule, code="TC076", severity="info"):
    """library-advice: a library warned about a possible problem.

    What it checks:
        Warnings and log records of transformers, torchmetrics and Lightning against a list of those
        that may or may not matter.

    Why it matters:
        They report guessed sizes, skipped evaluations, and metrics of one rank only.

    Fires on:
        - A padded batch without its mask.
        - A loss type that transformers does not know.
        - A batch size that Lightning guesses.
        - A metric that is not reduced over ranks.
        - training_step without a loss.
        - Evaluation without data or labels.

    Stays quiet on:
        - All other warnings.
        - Warnings that TC075 reports.

    Fix:
        Follow the warning. The finding names the line.

    Source:
        https://lightning.ai/docs/pytorch/stable/extensions/logging.html
    """

    title = "A library warned about a possible problem"
    likely_cause = "{observed}."
    fix = "Change the call{where} as the warning says: {observed}."
    known = LIBRARY_ADVICE
    speaker = "a library"
