"""The token that ends a text is excluded from the labels."""

from __future__ import annotations

from traincheck.rules.base.rule import BuiltInRule
from traincheck.rules.shared.loaders import BATCHES, DATA_LOADER, TrainingLoaders
from traincheck.schema.events import BatchEvent, Event, StepEvent
from traincheck.schema.findings import Subject, Symptom, Violation

_PROOF = 2  # batches in a row


class EndTokenNotLearned(BuiltInRule, code="TC319", severity="error"):
    """end-token-not-learned: rows end with a token that is never a label.

    What it checks:
        The token that ends the rows of a training batch (within the attention mask) occurs among
        the labels.

    Why it matters:
        The model never learns to stop: after fine-tuning it generates text until the length limit.

    Fires on:
        - A tokenizer whose padding token is its end token, with a collator that excludes all
          padding tokens from the loss. In two batches in a row, this token is -100 in all labels,
          and no other attended token is.

    Stays quiet on:
        - Rows that end with a labelled token.
        - Padding with a separate token.
        - Tags of words, since an end token has no tag.
        - Prompts that are excluded from the loss.
        - Masked language models.

    Fix:
        Use a separate padding token, or set labels by the attention mask, not by the token.

    Source:
        https://github.com/huggingface/transformers/issues/23530, https://github.com/huggingface/trl/issues/976
    """

    title = "The end token is excluded from the labels of {variables}"
    likely_cause = (
        "Padding and end of text may be the same token (pad_token = eos_token), so that the "
        "labels of both become -100: {observed}."
    )
    fix = "Use another padding token, or make labels from the attention mask."
    needs = BATCHES

    def __init__(self) -> None:
        super().__init__()
        self._lost: dict[str, list[BatchEvent]] = {}
        self._reported: set[str] = set()
        self._training = TrainingLoaders()

    def observe(self, event: Event) -> list[Violation]:
        self._training.observe(event)
        if isinstance(event, BatchEvent) and any(p.endswith(".labels") for p in event.leaves):
            self._enter(event)
        elif isinstance(event, StepEvent):
            return self._conclude(event.rank)
        return []

    def _enter(self, event: BatchEvent) -> None:
        self.triggered += 1
        token = event.tokens.get("lost_end")
        lost = self._lost.setdefault(event.loader, [])
        if token is None or (lost and lost[0].tokens["lost_end"] != token):
            lost.clear()
        elif len(lost) < _PROOF:
            lost.append(event)

    def _conclude(self, rank: int) -> list[Violation]:
        found = []
        for loader, lost in self._lost.items():
            is_training = (rank, loader) in self._training
            if len(lost) >= _PROOF and is_training and loader not in self._reported:
                self._reported.add(loader)
                found.append(self._violation(lost[0]))
        return found

    def _violation(self, event: BatchEvent) -> Violation:
        token = event.tokens["lost_end"]
        observed = f"token {token} ends most rows and is -100 in all labels"
        return Violation(
            check_id=self.code,
            step=event.step,
            rank=event.rank,
            stage="train",
            subject=Subject(api=DATA_LOADER, variable=event.loader),
            symptom=Symptom.LOSS_INPUT,
            message=f"the end token is never a label in batches of {event.loader}; {observed}",
            expected="the token that ends a row is a label like any other",
            observed=observed,
            evidence=(event,),
        )
