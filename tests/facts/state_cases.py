"""Runs in the classes of kinds about states: copies, loads, settings, gradients, evaluations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.builders import MLP, TraceBuilder
from tests.checking import net
from traincheck.schema.events import OptimizerEvent, ParamGroup
from traincheck.schema.observations.data import MetricUse
from traincheck.schema.observations.loads import (
    AverageDecay,
    IneffectiveWrite,
    LoadedHyperparameters,
    LoadFollowed,
    OverwrittenRates,
)
from traincheck.schema.observations.models import (
    AuxiliaryEval,
    AuxiliaryInitialNorms,
    AuxiliaryTraining,
    EvalEffects,
    ModelStructure,
)
from traincheck.schema.torch_api import Families

STEPS = 8
Make = Callable[[], TraceBuilder]


def healthy() -> TraceBuilder:
    return net().steps(STEPS, eval_every=4)


# -- copies


def loaded(*changed: int | None, shared: int = 0) -> TraceBuilder:
    run = net()
    for number in changed:
        run.step().load("Net", changed=number, entries=4, shared=shared, where="train.py:50")
    return run


def followed(**norms: float) -> TraceBuilder:
    values = {"Net.fc1.weight": norms}
    run = loaded(4).mark(
        LoadFollowed.text, model="Net", where="train.py:50", step=1, parameters=4, values=values
    )
    return run.step()


def averaged(decay: float, residual: float = 0.0) -> TraceBuilder:
    about = {"model": "Copy", "model_class": "__main__.Net", "of": "Net"}
    return net().step().mark(AverageDecay.text, **about, decay=decay, residual=residual)


def structured(name: str, *classes: str) -> dict[str, Any]:
    modules = {f"{name}.{place}": {"class": cls} for place, cls in enumerate(classes)}
    return {"name": name, "class": f"__main__.{name}", "modules": modules}


def beside(*weights: str, like: bool, text: str = AuxiliaryTraining.text) -> TraceBuilder:
    """A model that no optimizer holds is used once in a step, with these weights."""
    run = net().mark(ModelStructure.text, **structured("Net", "Linear", "Linear"))
    run.mark(ModelStructure.text, **structured("Other", "Linear", "Linear" if like else "GRU"))
    for one in weights:
        run.step().mark(text, model="Other", **{"class": "__main__.Other"}, weights=one)
    return run.step()


# -- settings


def grouped(*groups: tuple[float, str], **hyper: float) -> TraceBuilder:
    """An optimizer whose groups have this decay, and parameters whose names end like this."""
    run = TraceBuilder().process().model("Net", MLP)
    known = run.parameters()
    made = []
    for number, (decay, ends) in enumerate(groups):
        names = [name for name in known if ends and name.endswith(ends)]
        settings = {"lr": 1e-3, "weight_decay": decay} | (hyper if number else {})
        made.append(ParamGroup(settings, names, [known[name].identity for name in names]))
    return run.add(OptimizerEvent, id="opt0", cls="torch.optim.adamw.AdamW", groups=tuple(made))


def resumed(before: str, at_load: str, later: str, *, scheduler: bool = False) -> TraceBuilder:
    run = net().step()
    if scheduler:
        api = "torch.optim.lr_scheduler.StepLR.step"
        run.call(api, family=Families.SCHEDULER_STEP, owner="opt0")
    run.load("opt0", owner="opt0", changed=9, entries=4)
    setting = {"group": 0, "name": "lr", "before": before, "loaded": at_load, "later": later}
    run.step().mark(
        LoadedHyperparameters.text, owner="opt0", settings=[setting] if before else [], where=None
    )
    return run.step()


def written(place: str) -> TraceBuilder:
    return net().mark(
        IneffectiveWrite.text, owner="opt0", place=place, name="lr", before="0.1", written="0.01",
        in_force="0.1", where="train.py:9",
    )  # fmt: skip


def replaced() -> TraceBuilder:
    return net().mark(
        OverwrittenRates.text, owner="opt0", scheduler="torch.optim.lr_scheduler.StepLR",
        written=[0.01], used=[0.1], scheduled=[0.1], where="train.py:9",
    )  # fmt: skip


# -- gradients

FIRST = ("Net.fc1.weight", "Net.fc1.bias")
ALL = (*FIRST, "Net.fc2.weight", "Net.fc2.bias")


def staying(*names: str, steps: int = STEPS) -> TraceBuilder:
    """Nothing clears gradients, and those of these parameters get nothing new."""
    run = net().steps(2, omit=("zero_grad",))
    return run.steps(steps, omit=("zero_grad",), no_gradient=names).steps(2, omit=("zero_grad",))


def wiped(*wipes: bool) -> TraceBuilder:
    """In these steps, the gradients of a first pass are cleared for a second one."""
    run = net()
    for is_wiped in wipes:
        run.begin_step().batch().zero_grad().forward().backward()
        if is_wiped:
            run.zero_grad().forward().backward()
        run.optimizer_step()
    return run


def adversarial() -> TraceBuilder:
    """Each pass reaches the parameters of two optimizers, for one of them."""
    run = TraceBuilder().process().model("Net", MLP)
    run.optimizer(names=ALL[:2]).optimizer(names=ALL[2:])
    for _ in range(STEPS):
        run.begin_step().batch()
        for number in ("opt0", "opt1"):
            run.zero_grad("opt0").zero_grad("opt1").forward().backward().optimizer_step(number)
    return run


def held(*names: str, frozen: Sequence[str] = ()) -> TraceBuilder:
    run = TraceBuilder().process().model("Net", MLP, frozen=frozen)
    return run.optimizer(names=names).steps(STEPS)


# -- layers and evaluations


DROPOUT, FORWARD = "torch.nn.functional.dropout", "__main__.Net.forward"


def dropping(*on: bool, grad: bool = True, by_turns: bool = False) -> TraceBuilder:
    """The dropout layers of a model drop or are idle in each call, or in every second one."""
    run = net()
    for step in range(STEPS):
        run.step()
        is_training = any(on) and not (by_turns and step % 2)
        about: dict[str, Any] = {"grad_enabled": grad, "training": is_training}
        span = run.new_span()
        for number, is_on in enumerate(on):
            args = {"p": 0.1, "training": is_on and is_training}
            run.call(DROPOUT, args=args, module=f"Net.drop{number}", **about)
        family = Families.MODULE
        run.call(FORWARD, span=span, family=family, root=True, module="Net", **about)
    return run


def outside(*modules: str) -> TraceBuilder:
    run = net()
    for _ in range(STEPS):
        run.step()
        for module in modules:
            run.call(f"torch.nn.modules.{module}.forward", family=Families.MODULE, parent=1)
    return run


def effects(written: int, *drawn: str, buffers: int = 3) -> TraceBuilder:
    names = [f"Net.mean{number}" for number in range(written)]
    return healthy().mark(
        EvalEffects.text,
        model="Net",
        buffers=buffers,
        written=written,
        names=names,
        drawn=list(drawn),
    )


def metric(training: int, evaluation: int, computed: int = 0) -> TraceBuilder:
    return healthy().mark(
        MetricUse.text,
        metric="metric0",
        cls="torchmetrics.Accuracy",
        training=training,
        evaluation=evaluation,
        computed=computed,
        training_where=None,
        evaluation_where=None,
        where="train.py:70",
    )


STATE_CASES: Mapping[tuple[str, str], Make] = {
    ("copies.loads", "none"): healthy,
    ("copies.loads", "changes"): lambda: loaded(4, 4),
    ("copies.loads", "some change nothing"): lambda: loaded(4, 0),
    ("copies.loads", "change nothing"): lambda: loaded(0, 0),
    ("copies.loads", "its own state"): lambda: loaded(0, 0, shared=4),
    ("copies.loads", "not known"): lambda: loaded(None),
    ("copies.first update after a load", "none"): healthy,
    ("copies.first update after a load", "like the next"): lambda: followed(
        jump=5.0, moved=0.2, back=5.1, later=0.1
    ),
    ("copies.first update after a load", "far"): lambda: followed(
        jump=5.0, moved=4.0, back=5.1, later=0.1
    ),
    ("copies.first update after a load", "back"): lambda: followed(
        jump=5.0, moved=5.0, back=0.1, later=0.1
    ),
    ("copies.average", "none"): healthy,
    ("copies.average", "copied"): lambda: averaged(1e-9),
    ("copies.average", "short"): lambda: averaged(0.5),
    ("copies.average", "medium"): lambda: averaged(0.8),
    ("copies.average", "long"): lambda: averaged(0.999),
    ("copies.average", "another way"): lambda: averaged(0.999, 0.7),
    ("copies.other models", "none"): healthy,
    ("copies.other models", "written"): lambda: beside("a", "a", "b", like=True),
    ("copies.other models", "never written"): lambda: beside("a", "a", like=False),
    ("copies.other models", "never written, like the trained"): lambda: beside("a", "a", like=True),
    ("copies.other models", "seen once"): lambda: beside("a", like=True),
    ("copies.norm statistics", "none"): healthy,
    ("copies.norm statistics", "no initial ones"): lambda: beside(
        "a", "b", like=True, text=AuxiliaryEval.text
    ),
    ("copies.norm statistics", "initial"): lambda: beside(
        "a", "b", like=True, text=AuxiliaryInitialNorms.text
    ),
    ("signal.gradients that stay", "none"): healthy,
    ("signal.gradients that stay", "now and then"): lambda: staying(*FIRST, steps=1),
    ("signal.gradients that stay", "some"): lambda: staying(*FIRST),
    ("signal.gradients that stay", "all"): lambda: staying(*ALL),
    ("signal.gradients of nobody", "none"): healthy,
    ("signal.gradients of nobody", "some"): lambda: held(*FIRST),
    ("signal.frozen parameters in an optimizer", "none"): healthy,
    ("signal.frozen parameters in an optimizer", "some"): lambda: held(*ALL, frozen=FIRST),
    ("signal.frozen parameters in an optimizer", "all"): lambda: held(*FIRST, frozen=FIRST),
    ("loop.gradients that no update uses", "none"): healthy,
    ("loop.gradients that no update uses", "in part"): adversarial,
    ("loop.gradients that no update uses", "whole passes"): lambda: wiped(*[True] * 4),
    ("loop.gradients that no update uses", "now and then"): lambda: wiped(True, *[False] * 20),
    ("signal.dropout in training", "no dropout"): healthy,
    ("signal.dropout in training", "drops"): lambda: dropping(True, True),
    ("signal.dropout in training", "idle in part"): lambda: dropping(True, False),
    ("signal.dropout in training", "idle"): lambda: dropping(False, False),
    ("evaluation.dropout", "no dropout"): healthy,
    ("evaluation.dropout", "idle"): lambda: dropping(False, grad=False),
    ("evaluation.dropout", "drops"): lambda: dropping(True, grad=False),
    ("evaluation.dropout", "drops at times"): lambda: dropping(True, grad=False, by_turns=True),
    ("signal.layers of no model", "none"): lambda: outside("activation.ReLU", "linear.Identity"),
    ("signal.layers of no model", "some"): lambda: outside("batchnorm.BatchNorm1d"),
    ("evaluation.buffers", "none"): healthy,
    ("evaluation.buffers", "not written"): lambda: effects(0, "torch"),
    ("evaluation.buffers", "written"): lambda: effects(2),
    ("evaluation.random numbers", "none"): healthy,
    ("evaluation.random numbers", "not drawn"): lambda: effects(2),
    ("evaluation.random numbers", "drawn"): lambda: effects(0, "torch", "numpy"),
    ("evaluation.metrics", "none"): healthy,
    ("evaluation.metrics", "one phase"): lambda: metric(0, 5),
    ("evaluation.metrics", "both phases"): lambda: metric(10, 5),
    ("evaluation.metrics", "several evaluations"): lambda: metric(0, 15, computed=2),
    ("loop.weight decay", "none"): healthy,
    ("loop.weight decay", "all alike"): lambda: grouped((0.1, "")).optimizer(weight_decay=0.1),
    ("loop.weight decay", "weights alone"): lambda: grouped((0.1, "weight"), (0.0, "bias")),
    ("loop.weight decay", "weights, all of them"): lambda: grouped((0.1, "weight")),
    ("loop.weight decay", "biases in part"): lambda: grouped(
        (0.1, "weight"), (0.1, "fc1.bias"), (0.0, "fc2.bias")
    ),
    ("loop.weight decay", "biases alike"): lambda: grouped((0.1, "weight"), (0.1, "bias"), lr=0.1),
    ("loop.weight decay", "weights in part"): lambda: grouped(
        (0.1, "fc1.weight"), (0.0, "fc2.weight"), (0.0, "bias")
    ),
    ("loop.parameter groups", "one"): healthy,
    ("loop.parameter groups", "several"): lambda: grouped((0.1, "weight"), (0.0, "bias")),
    ("loop.parameter groups", "an empty one"): lambda: grouped((0.1, "t"), (0.1, "s"), (0.0, "")),
    ("loop.rate after a load", "no load"): healthy,
    ("loop.rate after a load", "the same"): lambda: resumed("", "", ""),
    ("loop.rate after a load", "loaded"): lambda: resumed("0.1", "0.01", "0.01", scheduler=True),
    ("loop.rate after a load", "loaded over a given one"): lambda: resumed("0.1", "0.01", "0.01"),
    ("loop.rate after a load", "given"): lambda: resumed("0.1", "0.01", "0.1"),
    ("loop.rate after a load", "another"): lambda: resumed("0.1", "0.01", "0.001"),
    ("loop.settings that are not used", "none"): healthy,
    ("loop.settings that are not used", "written elsewhere"): lambda: written("state_dict"),
    ("loop.settings that are not used", "replaced"): replaced,
}
