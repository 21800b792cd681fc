"""TC708: weights that begin alike, or far too large."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tests.builders import LINEAR, MLP, TraceBuilder
from tests.checking import fires, quiet
from tests.golden import Golden, mentions
from tests.rules.numbers import numbered
from traincheck.schema.events import CheckpointEvent, Event
from traincheck.schema.findings import Verdict

SHAPES = {"Net.fc1.weight": (128, 784), "Net.fc2.weight": (10, 128)}
NORM = "torch.nn.modules.normalization.LayerNorm"


def constant(value: float, elements: int) -> dict[str, float]:
    size = abs(value) * math.sqrt(elements)
    return {"min": value, "max": value, "std": 0.0, "norm": size, "nonfinite": 0}


def spread(rms: float, elements: int) -> dict[str, float]:
    return {
        "min": -2 * rms, "max": 2 * rms, "std": rms, "norm": rms * math.sqrt(elements),
        "nonfinite": 0,
    }  # fmt: skip


def run(
    of: Callable[[str, int], dict[str, float]],
    model: Mapping[str, str] = MLP,
    shapes: dict[str, tuple[int, ...]] = SHAPES,
) -> list[Event]:
    trace = TraceBuilder().process().model("Net", model).optimizer().steps(2)

    def first(name: str, step: int) -> dict[str, float]:
        shape = shapes.get(name, (32, 10) if name.endswith("weight") else (32,))
        return of(name, math.prod(shape))

    return numbered(trace.build(), first=first, shapes=shapes)


def all_constant(name: str, elements: int) -> dict[str, float]:
    return constant(0.0 if name.endswith("bias") else 0.5, elements)


BROKEN = run(all_constant)


def test_fires_on_constant_weights(golden: Golden) -> None:
    finding = fires("TC708", BROKEN)
    assert finding.first_step == 0
    assert finding.subject.variable == "Net.fc1.weight"
    golden(finding)
    assert mentions(finding, 0.5)


def test_fires_on_weights_of_a_standard_normal_distribution(golden: Golden) -> None:
    finding = fires("TC708", run(lambda name, elements: spread(1.0, elements)))
    golden(finding)
    assert mentions(finding, "Net.fc1.weight", 28)


def test_quiet_on_the_usual_initialization() -> None:
    def usual(name: str, elements: int) -> dict[str, float]:
        return constant(0.0, elements) if name.endswith("bias") else spread(0.05, elements)

    assert quiet("TC708", run(usual)) is Verdict.HELD


def test_quiet_on_a_head_of_zeros() -> None:
    def head(name: str, elements: int) -> dict[str, float]:
        return constant(0.0, elements) if "fc2" in name else spread(0.05, elements)

    assert quiet("TC708", run(head)) is Verdict.HELD


def test_quiet_on_lora() -> None:
    model = {f"{part}.weight": LINEAR for part in ("base", "lora_A", "lora_B")}

    def lora(name: str, elements: int) -> dict[str, float]:
        return constant(0.0, elements) if "lora_B" in name else spread(0.05, elements)

    assert quiet("TC708", run(lora, model, {})) is Verdict.HELD


def test_quiet_on_one_layer() -> None:
    model = {"fc.weight": LINEAR, "fc.bias": LINEAR}
    assert quiet("TC708", run(all_constant, model, {})) is Verdict.NOT_TRIGGERED


def test_quiet_on_large_weights_in_front_of_a_normalization() -> None:
    model = {**MLP, "norm.weight": NORM}
    assert quiet("TC708", run(lambda n, elements: spread(1.0, elements), model)) is Verdict.HELD


def test_quiet_when_weights_are_loaded_afterwards() -> None:
    events = run(all_constant)
    load = CheckpointEvent(0, 0, 0, "init", 0, events[0].stream, op="load_state_dict")
    first = next(i for i, e in enumerate(events) if e.kind == "optimizer")
    assert quiet("TC708", [*events[:first], load, *events[first:]]) is Verdict.NOT_TRIGGERED
