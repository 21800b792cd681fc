"""TC715: a parameter whose gradient is zero at every step."""

from __future__ import annotations

from collections.abc import Callable

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from traincheck.schema.events import Event, StateEvent
from traincheck.schema.findings import Verdict

EMBEDDING = "torch.nn.modules.sparse.Embedding"


def run(is_zero: Callable[[str, int], bool], module_class: str | None = None) -> list[Event]:
    def changed(event: Event) -> Event:
        if not isinstance(event, StateEvent) or event.role != "gradient" or event.summary is None:
            return event
        zero = is_zero(event.name, event.step or 0)
        kind = module_class or event.module_class
        return event.replace(summary=event.summary.replace(zero=zero), module_class=kind)

    return [changed(event) for event in net().steps(22).build()]


BROKEN = run(lambda name, step: name == "Net.fc1.weight")


def test_fires_as_advice() -> None:
    finding = fires("TC715", BROKEN)
    assert (finding.severity, finding.first_step) == ("info", 0)
    assert finding.variables == ("Net.fc1.weight",)


def own(name: str, module_class: str = "__main__.Net") -> list[Event]:
    """A run with a parameter of one dim whose gradient is zero."""
    trace = TraceBuilder().process().model("Net", {**MLP, name: module_class}).optimizer()

    def changed(event: Event) -> Event:
        if not isinstance(event, StateEvent) or not event.summary or event.name != f"Net.{name}":
            return event
        zero = event.role == "gradient"
        return event.replace(summary=event.summary.replace(zero=zero, shape=(2,)))

    return [changed(event) for event in trace.steps(22).build()]


def test_fires_on_parameters_of_the_users_own_modules() -> None:
    assert fires("TC715", own("log_vars")).variables == ("Net.log_vars",)
    assert quiet("TC715", own("out_bias")) is Verdict.HELD
    assert quiet("TC715", own("weight", "torch.nn.modules.activation.PReLU")) is Verdict.HELD


def test_quiet_when_it_is_used_now_and_then() -> None:
    events = run(lambda name, step: name == "Net.fc1.weight" and step % 9 != 8)
    assert quiet("TC715", events) is Verdict.HELD


def test_quiet_on_lora() -> None:
    assert quiet("TC715", run(lambda name, step: "fc1" in name and step == 0)) is Verdict.HELD


def test_quiet_on_embeddings() -> None:
    events = run(lambda name, step: name == "Net.fc1.weight", EMBEDDING)
    assert quiet("TC715", events) is Verdict.HELD


def test_a_flat_loss_is_left_to_another_rule() -> None:
    events = run(lambda name, step: name.removeprefix("Net.") in MLP)
    assert quiet("TC715", events) is Verdict.NOT_TRIGGERED


def test_quiet_on_biases_that_a_difference_cancels() -> None:
    # the last bias of a Wasserstein critic
    assert quiet("TC715", run(lambda name, step: name == "Net.fc2.bias")) is Verdict.HELD
