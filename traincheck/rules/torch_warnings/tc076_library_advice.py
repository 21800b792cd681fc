"""Warnings of training libraries that may matter."""

from __future__ import annotations

from traincheck.rules.torch_warnings.warned import Known, WarningRule

KNOWN = (
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
    known = KNOWN
    speaker = "a library"
