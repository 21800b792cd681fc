"""The row "settings": learning rate, betas, decay."""

from __future__ import annotations

from tests.diff.run_pairs import Compare, edited, new_value, of, state, training
from traincheck.schema.events import Event, OptimizerEvent


def with_decay(decay: float, cls: str = "torch.optim.adam.Adam") -> list[Event]:
    """A run whose optimizer has a weight decay."""
    events = training()
    for index, event in enumerate(events):
        if isinstance(event, OptimizerEvent):
            groups = tuple(
                g.replace(hyper={**g.hyper, "weight_decay": decay}) for g in event.groups
            )
            events[index] = event.replace(groups=groups, cls=cls)
    return events


def test_fires_on_another_learning_rate(compare: Compare) -> None:
    found = compare(training(), edited(training(), of("step", 3), lr={"opt0": [0.5]}))
    assert found.cause is not None
    assert found.cause.code == "schedule"
    assert found.first is not None
    assert (found.first.step, found.first.name) == (3, "opt0.lr")


def test_fires_on_another_decay(compare: Compare) -> None:
    found = compare(with_decay(0.0), with_decay(0.1))
    assert found.cause is not None
    assert found.cause.code == "setting"
    assert "weight_decay" in found.cause.text


def test_fires_on_another_optimizer(compare: Compare) -> None:
    found = compare(with_decay(0.0), with_decay(0.0, "torch.optim.adamw.AdamW"))
    assert found.cause is not None
    assert found.cause.code == "optimizer-class"


def test_quiet_where_settings_agree(compare: Compare) -> None:
    name = "Net.fc1.weight/exp_avg"
    b = new_value(with_decay(0.1), state("optimizer_state", 2, name))
    found = compare(with_decay(0.1), b)
    assert found.cause is not None
    assert found.cause.code not in ("setting", "schedule", "optimizer-class")
