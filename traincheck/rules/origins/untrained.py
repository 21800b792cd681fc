"""Rows and parts of a model that are new and not trained, and rows of padding that are not zero."""

from __future__ import annotations

from traincheck.readings.provider import RunStates
from traincheck.readings.step_facts import DISCOVERY
from traincheck.readings.training_state import TrainingState
from traincheck.rules.base.rule import EventRule, fresh
from traincheck.schema.claims import Needs
from traincheck.schema.events import CallEvent, Event
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.observations.base import needs_of
from traincheck.schema.observations.loads import EmbeddingRows, PartNotLoaded
from traincheck.schema.observations.reading import observed
from traincheck.schema.places import short
from traincheck.schema.torch_api import Families
from traincheck.schema.words import joined

_TIMES = 2  # observed steps
_MOST_ROWS = 6


class NewRowsFrozen(EventRule, code="TC056"):
    """new-rows-frozen: new tokens are looked up in rows that were initialized and stay frozen.

    What it checks:
        Rows that are added to an existing embedding and looked up in training are trained.

    Why it matters:
        New tokens keep their random vectors for ever. The rest of the model learns to ignore them,
        or the adapter learns to work with noise that the next initialization changes.

    Fires on:
        - An embedding whose first rows are those of an earlier, smaller one, with ids of the rows
          behind them in two observed training steps, while it is frozen, or in no optimizer, until
          the end. Example: resize_token_embeddings() before get_peft_model() without
          modules_to_save.

    Stays quiet on:
        - Embeddings that are trained, wholly or with trainable tokens, or by LoRA.
        - Rows that are never looked up, e.g. those that pad the vocabulary.
        - New rows that are copies of others, or zero.
        - Embeddings that are unfrozen before the end.

    Fix:
        Train the new rows, e.g. LoraConfig(modules_to_save=["embed_tokens", "lm_head"]) or
        trainable_token_indices.

    Source:
        https://github.com/huggingface/peft/issues/1689
    """

    title = "New rows of {subject} are looked up, but they are frozen as they were initialized"
    likely_cause = (
        "The embedding was resized for new tokens and then frozen, e.g. by get_peft_model() "
        "without modules_to_save: {observed}."
    )
    fix = (
        "Train the new rows: LoraConfig(modules_to_save=['embed_tokens', 'lm_head']), "
        "trainable_token_indices, or weight.requires_grad_(True) and the optimizer."
    )
    needs = needs_of(EmbeddingRows) | DISCOVERY
    uses = (TrainingState,)
    observes = needs_of(EmbeddingRows)
    _found: dict[str, list[tuple[Event, EmbeddingRows]]] = fresh(dict)

    def bind(self, run_states: RunStates) -> None:
        self._ledger = run_states.of(TrainingState)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, EmbeddingRows)
        if found is not None and found.frozen and found.earlier is not None and found.new_ids:
            self.triggered += 1
            seen = self._found.setdefault(found.name, [])
            if len(seen) < _TIMES:
                seen.append((event, found))
        return []

    def finish(self) -> list[Violation]:
        return [
            self._violation(*seen[0])
            for name, seen in self._found.items()
            if len(seen) >= _TIMES and not self._is_trained(name)
        ]

    def _is_trained(self, name: str) -> bool:
        """Whether an optimizer trains it at the end."""
        held = self._ledger.held()
        return any(
            name in parameter.names and parameter.requires_grad and identity in held
            for identity, parameter in self._ledger.parameters.items()
        )

    def _violation(self, event: Event, found: EmbeddingRows) -> Violation:
        rows = joined([str(row) for row in found.new_rows], _MOST_ROWS)
        return self.violation(
            event,
            subject=Subject(variable=found.name),
            symptom=Symptom.NOT_UPDATED,
            message=f"the first {found.earlier} of {found.rows} rows of {found.name} are those of "
            f"an earlier embedding; rows {rows} are new, looked up in training, and frozen",
            expected="new rows that are trained",
            observed=f"{found.new_ids} of {found.ids} ids of a batch are those of new rows "
            f"({rows}), which no optimizer trains",
        )


_LEAST = 0.02  # of the usual norm of a row
_TAKES_PART = 1e-3  # of the gradient of all results
_SAME = 0.05  # relative change of the norm between two observed steps: weight decay


class PaddingRowNotZero(EventRule, code="TC057"):
    """padding-row-not-zero: padding adds a random vector to the result that is never trained.

    What it checks:
        The row of padding_idx is zero if the results of padding take part in the loss.

    Why it matters:
        nn.Embedding(padding_idx=...) sets the row to zero when it is created, and gives it no
        gradient. An initialization of the whole weight fills it with random numbers, which stay for
        ever. Each padded position adds them to the sum, the mean or the state.

    Fires on:
        - Two observed steps in which ids of padding are looked up, a gradient reaches their
          results, and the row has the same norm, at least 2 % of that of other rows.

    Stays quiet on:
        - A row of zeros.
        - Padding that is masked, so that no gradient reaches it.
        - Weights that were loaded, or that are frozen.
        - Embeddings without padding_idx.

    Fix:
        Set the row to zero after the initialization, under torch.no_grad():
        embedding.weight[embedding.padding_idx].zero_().

    Source:
        https://github.com/pytorch/pytorch/issues/6411
    """

    title = "The padding row of {subject} is not zero, is never trained, and reaches the loss"
    likely_cause = (
        "The whole weight may have been initialized after nn.Embedding(padding_idx=...) had "
        "set the row to zero, e.g. by nn.init.normal_(weight): {observed}."
    )
    fix = (
        "After the initialization, under torch.no_grad(): "
        "embedding.weight[embedding.padding_idx].zero_(). Or mask the padding."
    )
    needs = needs_of(EmbeddingRows)
    _found: dict[str, tuple[Event, EmbeddingRows]] = fresh(dict)

    def judge(self, event: Event) -> list[Violation]:
        found = observed(event, EmbeddingRows)
        if found is None or not found.padding_ids:
            return []
        self.triggered += 1
        # Whether the row was filled, and matters.
        if not (
            not (found.is_loaded or found.frozen)
            and found.usual_norm > 0
            and found.padding_norm >= _LEAST * found.usual_norm
            and (found.padding_gradient or 0.0) > _TAKES_PART
        ):
            self._found.pop(found.name, None)
            return []
        first = self._found.setdefault(found.name, (event, found))
        before = first[1].padding_norm
        if first[0] is event or found.name in self.reported:
            return []
        if abs(found.padding_norm - before) > _SAME * before:  # something trains it
            self._found[found.name] = (event, found)
            return []
        self.reported.add(found.name)
        event, found = first
        share = found.padding_gradient or 0.0
        return self.found(
            event,
            subject=Subject(variable=found.name),
            symptom=Symptom.INITIALIZATION,
            message=f"row {found.padding} of {found.name} is that of padding (padding_idx), which "
            "gets no gradient, and it is not zero",
            expected="a padding row of zeros, or padding that is masked",
            observed=f"the row has norm {found.padding_norm:.3g} (other rows: "
            f"{found.usual_norm:.3g}), {found.padding_ids} of {found.ids} ids of a batch are "
            f"padding, and {share:.0%} of the norm of the gradient reaches their results",
        )


_MOST_NAMES = 3
_MOST_MODULES = 65_536


class MissingPartFrozen(EventRule, code="TC059"):
    """missing-part-frozen: a part that a checkpoint does not have is used, and stays random.

    What it checks:
        A parameter that load_state_dict(strict=False) left out is loaded from elsewhere or trained,
        if its module is called in training.

    Why it matters:
        A renamed or missing layer keeps its random initial weights. Frozen layers are never
        trained, so its outputs are noise for ever.

    Fires on:
        - A load that set at least half of the parameters of a model and left out others. In two
          updates after it, these are not loaded, do not require grad, are in no optimizer, and
          their module is called.

    Stays quiet on:
        - Parts that are trained, e.g. a new head, or an adapter beside a frozen model.
        - Parts that another load sets, before or after.
        - Parts of models that a library has loaded (from_pretrained).
        - Parts that are never called.
        - Constant parts, e.g. zeros.

    Fix:
        Print the result of load_state_dict(): rename its missing_keys, or train the part.

    Source:
        https://pytorch.org/tutorials/beginner/saving_loading_models.html
    """

    title = "{subject} was left out by a load, is frozen, and stays random"
    likely_cause = (
        "The load brings no values for it, e.g. as its keys have other names and strict=False "
        "hides it (load_state_dict(){where}), and the part is frozen: {observed}."
    )
    fix = (
        "Print load_state_dict(...).missing_keys and rename the keys, or train the part: "
        "requires_grad_(True), and give it to the optimizer."
    )
    needs = needs_of(PartNotLoaded) | Needs(calls=frozenset({Families.MODULE}))
    _called: set[str] = fresh(set)
    _open: list[tuple[Event, PartNotLoaded]] = fresh(list)

    def judge(self, event: Event) -> list[Violation]:
        if isinstance(event, CallEvent):
            if event.module is not None and len(self._called) < _MOST_MODULES:
                self._called.add(event.module)
            return []
        found = observed(event, PartNotLoaded)
        if found is not None:
            self.triggered += 1
            self._open.append((event, found))
        return []

    def finish(self) -> list[Violation]:
        found = []
        for event, part in self._open:
            names = [name for name in part.names if name.rpartition(".")[0] in self._called]
            if names:
                line = f" at {short(part.where)}" if part.where else ""
                told = joined(names, _MOST_NAMES)
                found += self.found(
                    event,
                    subject=Subject(module=names[0].rpartition(".")[0]),
                    symptom=Symptom.INITIALIZATION,
                    message=f"the load of {part.model}{line} sets {part.loaded} parameters and "
                    f"leaves out {told}, which are frozen with their initial values",
                    expected="parts that are loaded or trained",
                    observed=f"{part.parameters} parameters that no load has set and no optimizer "
                    f"trains ({told})",
                )
        return found
