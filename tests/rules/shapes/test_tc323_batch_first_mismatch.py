"""TC323: layers that read the samples of a batch as one sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.builders import TraceBuilder
from tests.checking import fires, net, quiet
from tests.golden import Golden, mentions
from tests.rules.loss_runs import F, tensor
from traincheck.schema.findings import Verdict
from traincheck.schema.torch_api import Families

LSTM = "torch.nn.modules.rnn.LSTM.forward"
Layer = Callable[[TraceBuilder], object]


def recurrent(first: int, second: int, batch: int, api: str = LSTM) -> Layer:
    """A call of a recurrent layer that takes the dim of ``batch`` for the batch."""
    state = tensor((1, batch, 8))
    return lambda trace: trace.call(
        api,
        family=Families.MODULE,
        module="Net.rnn",
        args={"0": tensor((first, second, 5))},
        result=[tensor((first, second, 8)), [state, state] if api == LSTM else state],
    )


def attention(length: int, columns: int) -> Layer:
    """A call of an attention layer, which makes its function read time first."""
    query = tensor((length, columns, 8))

    def call(trace: TraceBuilder) -> None:
        trace.call(F + "multi_head_attention_forward", args={"query": query}, result=[query, None])
        trace.call(
            "torch.nn.modules.activation.MultiheadAttention.forward",
            family=Families.MODULE,
            module="Net.attention",
            args={"0": query},
            result=[query, None],
        )

    return call


def steps(
    *layers: Layer,
    loss: str = "cross_entropy",
    outputs: tuple[int, ...] = (16, 3),
    target: tuple[int, ...] = (16,),
    count: int = 3,
) -> TraceBuilder:
    """Steps with calls of ``layers`` before the loss."""
    trace = net()
    for _ in range(count):
        trace.begin_step().batch().zero_grad().forward()
        for layer in layers:
            layer(trace)
        given: dict[str, Any] = {"input": tensor(outputs), "target": tensor(target, "int64")}
        trace.call(F + loss, args={**given, "reduction": "mean"}).backward().optimizer_step()
    return trace


SIDEWAYS = recurrent(16, 7, batch=7)
BROKEN = steps(SIDEWAYS).build()


def test_fires_on_a_recurrent_layer_without_batch_first(golden: Golden) -> None:
    finding = fires("TC323", BROKEN)
    assert (finding.first_step, finding.violations, finding.subject.module) == (0, 1, "Net.rnn")
    golden(finding)
    assert mentions(finding, 7, 16)
    fires("TC323", steps(recurrent(16, 7, 7, "torch.nn.modules.rnn.GRU.forward")).build())


def test_fires_on_attention_and_names_its_module() -> None:
    finding = fires("TC323", steps(attention(16, 7), attention(16, 7)).build())
    assert finding.subject.module == "Net.attention"
    assert mentions(finding, "Net.attention")


def test_fires_on_losses_with_one_value_for_each_sample() -> None:
    for outputs in ((16,), (16, 1)):
        trace = steps(SIDEWAYS, loss="mse_loss", outputs=outputs, target=outputs)
        fires("TC323", trace.build())


def test_quiet_on_batch_first_and_on_data_with_time_first() -> None:
    for layer in (recurrent(16, 7, batch=16), recurrent(7, 16, batch=16), attention(7, 16)):
        assert quiet("TC323", steps(layer).build()) is Verdict.HELD


def test_quiet_on_losses_over_every_position() -> None:
    trace = steps(recurrent(16, 7, batch=7), outputs=(112, 3), target=(112,))
    assert quiet("TC323", trace.build()) is Verdict.HELD
    for shape in ((16, 7), (16, 7, 1)):  # values of 7 sequences with time first
        trace = steps(recurrent(16, 7, batch=7), loss="mse_loss", outputs=shape, target=shape)
        assert quiet("TC323", trace.build()) is Verdict.HELD


def test_quiet_on_a_single_sequence_whose_elements_are_labelled() -> None:
    assert quiet("TC323", steps(recurrent(16, 1, batch=1)).build()) is Verdict.HELD


def test_quiet_where_sizes_are_equal() -> None:
    trace = steps(recurrent(16, 16, batch=16))
    assert quiet("TC323", trace.build()) is Verdict.HELD


def test_quiet_where_another_layer_reads_time() -> None:
    for layers in ((SIDEWAYS, attention(7, 16)), (attention(7, 16), SIDEWAYS)):
        assert quiet("TC323", steps(*layers).build()) is Verdict.HELD


def test_quiet_on_one_or_two_batches() -> None:
    assert quiet("TC323", steps(SIDEWAYS, count=2).build()) is Verdict.HELD
