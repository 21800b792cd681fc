"""property: what experiments and observations show, in traces by hand and in a real program."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.builders import MLP, TraceBuilder
from tests.golden import Golden, mentions
from tests.learning import claims, decide, learn, report_of, values_of
from tests.rules.origins.programs import recorded, small
from tests.rules.origins.test_tc053_worst_state_kept import kept
from tests.rules.ranks.test_tc085_accumulated_gradients_rescaled import run as accumulated
from traincheck.relations.property import PROPERTIES
from traincheck.schema.events import Event
from traincheck.schema.observations.loads import FollowedValue
from traincheck.schema.probes.event import ProbeEvent
from traincheck.schema.probes.names import Experiments
from traincheck.schema.probes.words import EXPERIMENTS

Events = list[Event]


def training(each: Callable[[TraceBuilder, int], object], steps: int = 10) -> Events:
    trace = TraceBuilder().process().model("Net", MLP).optimizer()
    for number in range(steps):
        trace.begin_step().zero_grad().forward().backward()
        each(trace, number)
        trace.optimizer_step()
    return trace.begin_step().build()


def probed(name: str, status: str, **fields: Any) -> Events:
    """A run with two experiments."""

    def each(trace: TraceBuilder, number: int) -> None:
        if number in (2, 9):
            numbers = {"change": 0.25, "ratio": 0.8, "loss": 2.0, "without": 1.0}
            trace.add(ProbeEvent, name=name, model="Net", status=status, numbers=numbers, **fields)

    return training(each)


def marked(text: str, at: int = 3, **data: Any) -> Events:
    return training(lambda trace, n: trace.mark(text, **data) if n == at else None)


def sums(*dropped: str) -> Events:
    found = {"where": "train.py:9", "trained": ["mse_loss (train.py:8)"], "dropped": dropped}
    data = {"sums": [{**found, "is_used": not dropped}], "at": 1}
    return training(lambda trace, _: trace.mark("loss sums", **data))


def handed(times: int) -> Events:
    def each(trace: TraceBuilder, number: int) -> None:
        if number < times:
            trace.mark("gradients replaced", owner="opt0")

    return training(each)


def followed(back: float) -> Events:
    value = FollowedValue(jump=2.0, moved=2.0 - back, back=back, later=0.1)
    found = {"model": "Net", "where": None, "step": 3, "parameters": 1}
    return marked("load followed", **found, values={"Net.w": value})


def generators(*, restored: bool) -> Events:
    found = {"key": "rng", "generator": "torch", "seeded": False, "drawn": True, "owned": False}
    states = [{**found, "restored": restored}]
    return marked("loaded generators", where="train.py:9", states=states)


def recomputed(share: float) -> Events:
    one = {"function": "Block.forward", "where": "train.py:9", "reentrant": False}
    differing = [{**one, "preserves_rng": False, "share": share}] if share else []
    return training(lambda trace, _: trace.mark("recomputed", segments=3, differing=differing))


def embedded(norm: float) -> Events:
    found = {"name": "Net.embed.weight", "rows": 40, "frozen": False, "earlier": None}
    found |= {"new_ids": 0, "new_rows": [], "ids": 960, "padding": 0, "padding_ids": 438}
    found |= {"padding_norm": norm, "usual_norm": 2.3, "padding_gradient": 0.6, "is_loaded": False}
    return marked("embedding rows", **found)


def setting(later: str) -> Events:
    found = {"group": 0, "name": "lr", "before": "0.1", "loaded": "0.01", "later": later}
    return marked("hyperparameters loaded", owner="opt0", settings=[found])


def written(place: str = "") -> Events:
    if not place:
        return training(lambda *_: None)
    numbers = {"name": "lr", "before": "0.1", "written": "0.01", "in_force": "0.1"}
    return marked("hyperparameter written elsewhere", owner="opt0", place=place, **numbers)


def metric(training_updates: int) -> Events:
    cls = "torchmetrics.classification.MulticlassAccuracy"
    found = {"metric": "metric0", "cls": cls, "evaluation": 4}
    return marked("metric computed", **found, training=training_updates)


def reads(differing: int) -> Events:
    found = {"cls": "data.Images", "epoch": 1, "compared": 64, "differing": differing}
    return marked("dataset reads", **found)


RUNS: dict[str, tuple[Events, Events]] = {
    **{e.name: (probed(e.name, "held"), probed(e.name, "moved")) for e in EXPERIMENTS.values()},
    "trained_sums": (sums(), sums("kl_div (train.py:7)")),
    "rescaled_sums": (accumulated(1.0, steps=10), accumulated(0.25)),
    "handed_over": (handed(10), handed(1)),
    "recomputed": (recomputed(0.0), recomputed(0.4)),
    "padding_vector": (embedded(0.0), embedded(2.2)),
    "loaded_weights": (followed(2.0), followed(0.1)),
    "restored_random_state": (generators(restored=True), generators(restored=False)),
    "kept_state": (kept(place=4), kept(place=0)),
    "loaded_setting": (setting("0.1"), setting("0.01")),
    "written_setting": (written(), written("state_dict")),
    "metric_phases": (metric(0), metric(12)),
    "dataset_reads": (reads(0), reads(60)),
}
every = pytest.mark.parametrize("what", PROPERTIES)


def test_each_property_is_tried() -> None:
    assert RUNS.keys() == PROPERTIES.keys()


@every
def test_a_property_is_learned_and_its_loss_is_told(what: str, golden: Golden) -> None:
    healthy, broken = RUNS[what]
    learned = claims(learn(healthy), "property", what=what)
    [finding] = report_of(learned, broken).findings
    assert golden(finding).severity == "warning"


@every
def test_a_healthy_run_is_quiet(what: str) -> None:
    healthy, _ = RUNS[what]
    learned = claims(learn(healthy), "property", what=what)
    assert len(learned) == 1
    assert not report_of(learned, healthy).findings


@every
def test_what_does_not_hold_in_the_reference_is_not_claimed(what: str) -> None:
    _, broken = RUNS[what]
    bad = {"loaded_setting": ["loaded"]}  # a load that changes the rate may be meant
    assert values_of(learn(broken), "property", "value", what=what) == bad.get(what, [])


def test_each_experiment_has_one_row_of_words() -> None:
    names = {value for name, value in vars(Experiments).items() if name.isupper()}
    assert EXPERIMENTS.keys() == names - {Experiments.REPLAY} <= PROPERTIES.keys()


@pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=lambda each: each.name)
def test_what_could_not_be_observed_says_nothing(experiment: Any) -> None:
    unknown = probed(experiment.name, "not_observable", reason="the model is compiled")
    assert not claims(learn(unknown), "property", what=experiment.name)
    learned = claims(learn(probed(experiment.name, "held")), "property", what=experiment.name)
    assert not report_of(learned, unknown).findings
    assert learned == claims(
        learn(probed(experiment.name, "held"), unknown), "property", what=experiment.name
    )


def test_the_operation_and_its_line_are_told() -> None:
    found = {"detail": {"operation": "torch.Tensor.mean"}, "where": "Net.head"}
    broken = probed("row_mixing", "moved", place="/src/model.py:31", **found)
    [finding] = report_of(learn(probed("row_mixing", "held")).invariants, broken).findings
    assert mentions(finding, "first in mean() of Net.head (model.py:31)")


def test_unknown_claims_are_refused() -> None:
    for params in ({"what": "color", "of": "red", "value": "held"}, {"what": "gradient"}):
        with pytest.raises(ValueError, match="nothing is known of"):
            decide("property", params, [])


# -- a real program


def keeping(better: Callable[[float, float], bool]) -> Callable[[nn.Module, Tensor, Tensor], None]:
    """Training that restores one of the states that it has evaluated."""

    def train(net: nn.Module, x: Tensor, y: Tensor) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        best: tuple[float, dict[str, Any]] | None = None
        for _ in range(6):
            for _ in range(3):
                optimizer.zero_grad()
                F.cross_entropy(net(x), y).backward()
                optimizer.step()
            net.eval()
            with torch.no_grad():
                loss = F.cross_entropy(net(x), y).item()
            net.train()
            if best is None or better(loss, best[0]):
                best = loss, copy.deepcopy(net.state_dict())
        assert best is not None
        net.load_state_dict(best[1])

    return train


def trained(folder: Path, better: Callable[[float, float], bool]) -> Events:
    torch.manual_seed(0)
    x, y = torch.randn(64, 6), torch.arange(64) % 3
    return recorded(folder, lambda: keeping(better)(small(), x, y))


def test_the_best_state_of_a_real_program(tmp_path: Path) -> None:
    learned = claims(learn(trained(tmp_path / "a", lambda new, old: new < old)), "property")
    assert "kept_state" in {each.hypothesis.params["what"] for each in learned}
    report = report_of(learned, trained(tmp_path / "b", lambda new, old: new > old))
    [broken] = (one for one in learned if one.hypothesis.params["what"] == "kept_state")
    assert [finding.check for finding in report.findings] == [broken.id]
    assert not report_of(learned, trained(tmp_path / "c", lambda n, o: n < o)).findings
