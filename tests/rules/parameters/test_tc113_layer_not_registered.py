"""TC113: layers that a model calls and does not own."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import MLP, TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from traincheck.schema.events import CallEvent
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LINEAR = "torch.nn.modules.linear.Linear.forward"
GRAPH = {"dtype": "float32", "shape": [64, 32], "device": "cpu", "requires_grad": True}
CONSTANT = {**GRAPH, "requires_grad": False}


def run(steps: int = 4, *, trace: TraceBuilder | None = None, **call: Any) -> TraceBuilder:
    """Steps whose forward calls a layer without a name before the model's own."""
    trace = net() if trace is None else trace
    given = {"family": Families.MODULE, "training": True, "result": GRAPH, **call}
    for _ in range(steps):
        trace.begin_step().zero_grad()
        inner = trace.call
        trace.call = _before_root(inner, given)  # type: ignore[method-assign]
        trace.forward()
        trace.call = inner  # type: ignore[method-assign]
        trace.backward().optimizer_step()
    return trace


def _before_root(call: Any, given: dict[str, Any]) -> Any:
    """As ``call``, but with the nameless layer just before the outermost call ends."""

    def with_stranger(api: str, **fields: Any) -> Any:
        if fields.get("root"):
            call(given.get("api", LINEAR), **{k: v for k, v in given.items() if k != "api"})
        return call(api, **fields)

    return with_stranger


BROKEN = run().build()


def test_fires_on_layers_without_a_name(golden: Golden) -> None:
    finding = fires("TC113", BROKEN)
    assert (finding.first_step, finding.violations) == (0, 1)
    assert finding.subject.module == "Net"
    golden(finding)
    assert mentions(finding, 1)


@pytest.mark.parametrize(
    "call",
    [
        {"module": "Net.fc1"},
        {"training": False},
        {"grad_enabled": False},
        {"result": CONSTANT},
        {"api": "torch.nn.modules.normalization.LayerNorm.forward"},
    ],
)
def test_quiet_on_calls_that_are_meant(call: dict[str, Any]) -> None:
    assert quiet("TC113", run(**call).build()) is Verdict.HELD


def test_quiet_on_two_steps_and_over_a_gap() -> None:
    assert quiet("TC113", run(2).steps(2).build()) is Verdict.HELD
    trace = run(2, trace=run(2).skipped_steps(1))
    assert quiet("TC113", trace.steps(1).build()) is Verdict.HELD


def test_quiet_on_parameters_given_to_the_optimizer_by_hand() -> None:
    trace = TraceBuilder().process().model("Net", MLP).optimizer(foreign={"opt0[0].4": 99})
    assert quiet("TC113", run(trace=trace).build()) is Verdict.HELD


def test_quiet_on_an_outermost_layer() -> None:
    assert quiet("TC113", run(root=True).build()) is Verdict.HELD


COMPILED = "torch._dynamo.eval_frame.OptimizedModule.forward"


def compiled(parent_of_strangers: int | None = None) -> list[Any]:
    """The broken run with a compiled model; its layers without a name run in it, or elsewhere."""
    made, waiting = [], []
    for event in BROKEN:
        if isinstance(event, CallEvent) and event.api == LINEAR and event.module is None:
            waiting.append(event)
        elif isinstance(event, CallEvent) and event.root:
            parent = parent_of_strangers or event.span
            made += [stranger.replace(parent=parent) for stranger in waiting]
            made.append(event.replace(api=COMPILED))
            waiting = []
        else:
            made.append(event)
    return made


def test_quiet_on_copies_that_a_compiled_model_runs() -> None:
    assert quiet("TC113", compiled()) is Verdict.HELD
    fires("TC113", compiled(parent_of_strangers=10_000))
