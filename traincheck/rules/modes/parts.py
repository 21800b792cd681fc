"""Parts of a model that are in the wrong mode."""

from __future__ import annotations

from traincheck.readings.modal_modules import AUXILIARY
from traincheck.readings.step_facts import DISCOVERY, GRADIENTS, MODES, Forward, StepFacts
from traincheck.rules.base.rule import Streak, extend, fresh
from traincheck.rules.base.step_rule import StepRule
from traincheck.schema.findings import Subject, Symptom, Violation
from traincheck.schema.words import joined


class DropoutInEvaluation(StepRule, code="TC303"):
    """dropout-in-evaluation: functional dropout ignores the mode of its module.

    What it checks:
        Dropout functions, and the dropout of scaled_dot_product_attention, drop nothing while the
        calling module is in evaluation mode.

    Why it matters:
        Evaluation and inference are random: two identical calls differ, and metrics are worse than
        the model.

    Fires on:
        - F.dropout(x) without training=self.training, in a module in evaluation mode.
        - Attention in such a module that gets dropout_p in every mode.
        - nn.Dropout(p)(x) in forward() of such a module: a new layer each time, which eval() never
          reaches.

    Stays quiet on:
        - Dropout modules that are put back into training mode (Monte Carlo dropout).
        - A module without parameters that always drops and does nothing else.
        - A probability of zero.

    Fix:
        Pass training=self.training to F.dropout, and dropout_p=self.p if self.training else 0.0 to
        scaled_dot_product_attention. Create nn.Dropout in __init__, as a separate attribute.

    Source:
        https://github.com/pytorch/pytorch/issues/26338, https://github.com/huggingface/transformers/pull/33844
    """

    title = "Dropout is on in evaluation mode in {subject}"
    likely_cause = "The call does not follow the mode of the model: {observed}."
    fix = (
        "Pass training=self.training to F.dropout. Pass dropout_p=p if self.training else 0.0 to "
        "scaled_dot_product_attention. Create nn.Dropout in __init__, not in forward."
    )
    needs = DISCOVERY | MODES

    def judge(self, facts: StepFacts) -> list[Violation]:
        found: list[Violation] = []
        for forward in facts.forwards:
            for path, call in forward.dropping.items():
                mode = call.training
                # Not a part of the model: uses the model's mode
                if mode is None or call.module is None:
                    mode = forward.is_training
                if mode:
                    continue
                self.triggered += 1
                if path not in self.reported:
                    below = f"{path}."
                    if path == forward.path or any(
                        name.startswith(below)
                        for parameter in self.ledger.parameters.values()
                        for name in parameter.names
                    ):
                        self.reported.add(path)
                        name = call.api.rpartition(".")[2]
                        p = call.args.get("dropout_p", call.args.get("p"))
                        # A module outside the model: its mode is known, but not its path
                        is_unowned = call.module is None and call.training is True
                        by = (
                            ", in a layer that eval() does not reach because it is not a submodule "
                        )
                        by = f"{by}of the model" if is_unowned else ""
                        found += self.proven(
                            facts,
                            subject=Subject(api=call.api, module=path),
                            symptom=Symptom.WRONG_VALUE,
                            message=f"{path} is in evaluation mode and calls {name}() that drops "
                            f"with p={p}{by}",
                            expected=f"{name}() drops nothing in evaluation mode",
                            observed=f"{name}() drops with p={p}{by}",
                            evidence=(call,),
                        )
            self.triggered += bool(forward.idle) and not forward.is_training
        return found


_CONFIRMED = 2


class PartLeftInEvalMode(StepRule, code="TC304"):
    """part-left-in-eval-mode: dropout of a trained part is off while training goes on.

    What it checks:
        Dropout that was active in training steps stays active, as long as the model around it is in
        training mode and the parameters beside it are trained.

    Why it matters:
        The part is no longer regularized, and nothing shows it: the model as a whole is in training
        mode.

    Fires on:
        - Two training steps in a row with a dropout layer in evaluation mode that was in training
          mode before. The model is in training mode, and the step updates parameters beside the
          layer.

    Stays quiet on:
        - Frozen parts in evaluation mode.
        - Batch normalization that is put into evaluation mode on purpose.
        - A whole model in evaluation mode (TC301).
        - Parts that were in evaluation mode from the start.

    Fix:
        Call train() on the whole model after evaluation, not only on a part of it.

    Source:
        https://github.com/joeynmt/joeynmt/issues/184
    """

    title = "{subject} stays in evaluation mode while it is trained"
    likely_cause = (
        "eval() may have been called on this part, and then train() only on another part."
    )
    fix = "Call train() on the whole model after evaluation."
    needs = DISCOVERY | GRADIENTS | MODES
    _active: set[str] = fresh(set)
    _streaks: dict[str, Streak] = fresh(dict)

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete:
            self._streaks.clear()
            return []
        applied = facts.applied
        if not applied:
            return []
        books = self.ledger.parameters
        names = {name for i in applied & books.keys() for name in books[i].names}
        found: list[Violation] = []
        for forward in facts.forwards:
            if forward.call.grad_enabled and forward.is_training:
                found += self._compare(forward, names, facts)
        return found

    def _compare(self, forward: Forward, names: set[str], facts: StepFacts) -> list[Violation]:
        for path in forward.dropping:
            self.triggered += 1
            self._active.add(path)
            self._streaks.pop(path, None)
        found: list[Violation] = []
        for path, call in forward.idle.items():
            beside = f"{path.rpartition('.')[0]}."
            if (
                path in forward.dropping
                or path not in self._active
                or call.training is not False
                or not any(name.startswith(beside) for name in names)
            ):
                continue
            streak = extend(self._streaks, path, facts.event.step)
            if streak.count == _CONFIRMED:
                found += self.proven(
                    facts,
                    step=streak.first,
                    subject=Subject(module=path),
                    symptom=Symptom.EVAL_MODE,
                    message=f"{path} is in evaluation mode while {forward.path} around it is "
                    "trained",
                    expected=f"{path} in training mode, as in the previous steps",
                    observed=f"the dropout of {path} is off",
                    evidence=(call, forward.call),
                )
        return found


_SCANS = 8  # scans before the model counts as unchanged


class FrozenModelInTrainingMode(StepRule, code="TC306"):
    """frozen-model-in-training-mode: a teacher drops units or normalizes by the batch.

    What it checks:
        A model that serves the training of another, and is not trained itself, runs in evaluation
        mode.

    Why it matters:
        With dropout, the output of a teacher, reference model or feature extractor is random. With
        batch normalization, it depends on the rest of the batch, and running statistics drift away
        from those it was trained with.

    Fires on:
        - Eight scans at steps in which an optimizer updates another model. Meanwhile a model that
          no optimizer holds, and whose weights do not change, is called without gradients in
          training mode, with dropout or batch normalization active. Example: model.train() reaches
          a teacher that is an attribute of the trained module.

    Stays quiet on:
        - model.eval().
        - Averages of the trained weights, and target networks copied from them (their weights
          change).
        - Several passes of one batch (Monte Carlo dropout).
        - Models without dropout and batch normalization.
        - A part that is called within the trained model's forward.

    Fix:
        Call eval() on it after every train() of a module that holds it.

    Source:
        https://discuss.pytorch.org/t/model-eval-vs-with-torch-no-grad/19615
    """

    title = "{subject}, which is not trained, is used in training mode"
    likely_cause = (
        "eval() is not called on it, or train() of a module that holds it switched it back: "
        "{observed}."
    )
    fix = "Call {subject}.eval() after every train() of a module that holds it."
    needs = DISCOVERY | GRADIENTS | MODES | AUXILIARY

    def judge(self, facts: StepFacts) -> list[Violation]:
        if not facts.is_complete or not facts.updates():
            return []
        found = []
        for forward in facts.forwards:
            model = self.ledger.auxiliary.by_name.get(forward.path)
            if forward.call.grad_enabled or not forward.is_training or model is None:
                continue
            self.triggered += 1
            if (
                model.looks < _SCANS
                or model.has_moved
                or forward.path in self.reported
                or forward.count not in (1, forward.fresh)
            ):
                continue
            active = forward.active
            if active:
                self.reported.add(forward.path)
                path = forward.path
                found += self.proven(
                    facts,
                    step=model.first,
                    subject=Subject(module=path),
                    symptom=Symptom.TRAINING_MODE,
                    message=f"{path} is not trained and is used without gradients, but in training "
                    "mode",
                    expected=f"{path} in evaluation mode, as no optimizer holds any of it",
                    observed=f"layers that behave as in training: {joined(active)}",
                    evidence=(forward.call,),
                )
        return found
