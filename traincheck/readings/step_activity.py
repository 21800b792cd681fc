"""Which optimizers step, which modules run, and which parameters are trained in a step."""

from __future__ import annotations

from traincheck.readings.step_changes import StepChanges
from traincheck.readings.variables import Variable, Variables
from traincheck.schema.events import CallEvent, StepEvent
from traincheck.schema.marks import EVAL_STAGE
from traincheck.schema.torch_api import Families
from traincheck.schema.words import paired_weights


class StepActivity:
    """Follows one process, step by step.

    Attributes:
        updates: optimizer steps of this training step.
        modes: module -> mode in its last forward with grad.
        ungraphed: modules that ran without recording the graph.
        trained: names of the parameters that optimizers hold.
        trainable: of these, those that require grad.
        moved_at: parameter -> the last step that changed it.
    """

    def __init__(self, variables: Variables, changes: StepChanges) -> None:
        self._variables, self._changes = variables, changes
        self.updates: list[CallEvent] = []
        self.modes: dict[str, bool] = {}
        self.ungraphed: set[str] = set()
        self.trained: set[str] = set()
        self.trainable: set[str] = set()
        self.moved_at: dict[str, int] = {}
        self._have_stepped: set[str | None] = set()  # optimizers, before this step
        self._have_moved: set[str | None] = set()  # those in whose steps something changed

    def call(self, event: CallEvent) -> None:
        """Enter an update or a forward."""
        if event.family == Families.OPTIMIZER_STEP:
            if event.exception is None:
                self.updates.append(event)
        elif event.family == Families.MODULE and event.module:
            if event.grad_enabled:
                self.modes[event.module] = bool(event.training)
            elif event.stage != EVAL_STAGE:
                self.ungraphed.add(event.module)

    def refresh(self) -> None:
        """Read again which parameters optimizers hold."""
        held = self._variables.held_parameters()
        self.trained = {variable.name for variable in held}
        self.trainable = {variable.name for variable in held if variable.requires_grad}

    def end_step(self, event: StepEvent) -> None:
        """Close the step that ``event`` ends, while its changes can still be read."""
        owners = {update.owner for update in self.updates}
        moved = self._changes.changed["parameter"]
        if not self.trained.isdisjoint(moved):
            self._have_moved |= owners
        self.moved_at.update(dict.fromkeys(moved, event.step or 0))
        self._have_stepped |= owners
        self.modes.clear()
        self.ungraphed.clear()
        self.updates.clear()

    def mode_of(self, buffer: Variable) -> bool | None:
        """The mode of the module that owns a buffer, else of its model; None if neither ran."""
        model = self.modes.get(buffer.model)
        return self.modes.get(buffer.name.rpartition(".")[0], model)

    def is_stepped(self, variable: Variable) -> bool:
        """Whether an optimizer stepped that holds a variable; any, where none does."""
        holders = self._variables.holders(variable)
        return bool(self.updates) and (
            not holders or any(update.owner in holders for update in self.updates)
        )

    def is_idle(self, variable: Variable) -> bool:
        """Whether the variable is not being trained in this step.

        It may belong to a loss network: no optimizer holds any of its model, and perhaps only
        images are optimized. Or it belongs to an optimizer that does not step now: another one
        steps, and the variable gets no gradient, or one on its way to something else, as through a
        critic. Where nothing moves that an optimizer holds, this variable may be the one that
        should.
        """
        if variable.model not in self._variables.held_models():
            is_trained = not self.trained.isdisjoint(self._changes.changed["parameter"])
            return is_trained or not self._variables.optimizers.is_of_models
        stepped = {update.owner for update in self.updates}
        holders = self._variables.holders(variable)
        if not stepped or not holders or not stepped.isdisjoint(holders):
            return False
        alternates = not self._have_stepped.isdisjoint(holders)
        return alternates or variable.base not in self._changes.reached

    def is_uncalled(self, variable: Variable) -> bool:
        """Whether other models run in this step and its own does not: it is trained later."""
        called = {module.partition(".")[0] for module in self.modes}
        return bool(called) and variable.model not in called

    def may_be_warm_up(self) -> bool:
        """Whether a learning rate of zero may explain why the first step changed nothing at all.

        The rate is not known before the first step ends.
        """
        changes = self._changes
        return (
            not changes.rates
            and bool(self.updates)
            and self.trained.isdisjoint(changes.changed["parameter"])
            and not self.trained.isdisjoint(changes.reached - changes.zero)
        )

    def is_converged(self) -> bool:
        """Whether optimizers that search, such as LBFGS, find no better point any more."""
        return (
            bool(self.updates)
            and all(u.has_closure and u.owner in self._have_moved for u in self.updates)
            and self.trained.isdisjoint(self._changes.changed["parameter"])
        )

    def is_noise(self, parameter: Variable) -> bool:
        """Whether rounding may lose the update of a parameter while others move.

        A single number comes to rest where its update changes sign. A bias before a normalization
        has no effect: its gradient is noise, while the weight beside it moves. Or an average moves
        both, and neither is trained.
        """
        moved = self._changes.changed["parameter"]
        neighbours = paired_weights(parameter.name).intersection(moved)
        if not (self._variables.is_held(parameter) and parameter.name in self._changes.reached):
            found = map(self._variables.by_role["parameter"].get, neighbours)
            is_frozen = not any(one is None or one.requires_grad for one in found)
            return bool(neighbours) and is_frozen and not parameter.requires_grad
        return not self.trained.isdisjoint(moved) if parameter.is_single else bool(neighbours)
