"""Reports of checksums: fkat's keys, every statistic, and what is missing is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.builders import TraceBuilder
from traincheck.errors import UsageError
from traincheck.schema.checksums import NUMBERS, StepSchedule, parse_schedule
from traincheck.schema.events import ChecksumEvent, Event, StepEvent
from traincheck.schema.values import TensorSummary
from traincheck.store.checksum_layout import (
    CHECKSUMS,
    STATISTICS,
    ChecksumReport,
    read_reports,
    to_json,
    to_layout,
    to_yaml,
)
from traincheck.store.columnar import export_parquet, read_parquet
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

HASH = "0123456789abcdef0123456789abcdef"


def summary(*shape: int, dtype: str = "float32", digest: str = HASH) -> TensorSummary:
    return TensorSummary(dtype, shape, fingerprint=f"xxh3-128:{digest}")


def checksum(group: str, name: str, step: int = 3, rank: int = 0, **fields: Any) -> ChecksumEvent:
    if "data" not in fields or group == "batch":
        fields.setdefault("summary", summary(2, 3))
        fields.setdefault("numbers", {key: i + 0.5 for i, key in enumerate(NUMBERS)})
    return ChecksumEvent(0, 0, step, "train", rank, "p1-t0", group=group, name=name, **fields)


def report(*events: ChecksumEvent) -> dict[str, Any]:
    return to_layout(ChecksumReport(step=3, rank=0, events=events))


ALL = (
    checksum("batch", "batch.x", owner="loader0", data={"index": 7}),
    checksum("parameter", "Net.fc.weight"),
    checksum("gradient", "Net.fc.weight"),
    checksum("local_gradient", "Net.fc.weight"),
    checksum("parameter", "Net.frozen.weight"),
    checksum("buffer", "Net.norm.mean"),
    checksum(
        "optimizer",
        "opt0",
        owner="opt0",
        data={
            "type": "torch.optim.adam.Adam",
            "defaults": {"lr": 0.1},
            "param_groups": [{"lr": 0.1, "params": ["Net.fc.weight"]}],
        },
    ),
    checksum("optimizer_state", "Net.fc.weight/exp_avg", owner="opt0"),
    checksum("optimizer_state", "Net.fc.weight/calls", owner="opt0", data={"value": 4}),
    checksum("generator", "torch", summary=summary(5056, dtype="uint8")),
    checksum("generator", "torch.cuda", summary=summary(2, 16, dtype="uint8")),
    checksum("generator", "numpy", data={"algo": "MT19937", "state": f"xxh3-128:{HASH}", "pos": 9}),
    checksum("generator", "python", data={"version": 3, "state": "xxh3-128:aa", "gaussian": None}),
)


def test_the_keys_are_those_of_fkat() -> None:
    found = report(*ALL)
    assert list(found) == ["__about__", "parameters", "buffers", "optimizers", "rngs", "batch"]
    parameters = found["parameters"]
    assert list(parameters["fc.weight"]) == ["data", "grad", "local_grad"]
    assert parameters["frozen.weight"]["grad"] is None
    assert {"__all_data__", "__all_grads__"} <= parameters.keys()
    assert list(found["buffers"]) == ["norm.mean", "__all_buffers__"]
    (optimizer,) = found["optimizers"]
    assert list(optimizer) == [
        "__type__", "defaults", "__all_defaults__", "param_groups", "__all_param_groups__",
        "state", "__all_state__",
    ]  # fmt: skip
    assert optimizer["__type__"] == "Adam"
    assert optimizer["param_groups"] == [{"lr": 0.1, "params": ["fc.weight"]}]
    assert optimizer["state"]["fc.weight"]["calls"] == 4
    assert found["rngs"]["torch"] == found["rngs"]["torch.cuda"] == HASH
    assert found["rngs"]["numpy"] == {"algo": "MT19937", "state": HASH, "pos": 9}
    assert found["rngs"]["python"]["state"] == "aa"
    assert found["batch"]["__batch_idx__"] == 7
    assert list(found["batch"]["__batch__"]) == ["x"]


def test_a_tensor_has_all_17_statistics_in_order() -> None:
    text = report(*ALL)["buffers"]["norm.mean"]
    assert text == (
        "2×3|fp32|0.5∞̟|1.5∞̠|2.5⚠|3.5⌀|4.5m̃|5.5μ|6.5μ⁺|7.5σ|8.5σ²|9.5s²|10.5γ₁|11.5γ₂|12.5Mo"  # noqa: RUF001
        f"|13.5↤|14.5↦|{HASH}"
    )
    assert len(STATISTICS) == 17


@pytest.mark.parametrize(
    ("dtype", "short"),
    [
        ("bfloat16", "bf16"), ("int64", "i64"), ("uint8", "u8"), ("bool", "b"),
        ("complex64", "c64"), ("float8_e4m3fn", "fp8_e4m3fn"), ("quint8", "quint8"),
    ],
)  # fmt: skip
def test_dtypes_are_short(dtype: str, short: str) -> None:
    event = checksum("buffer", "Net.b", summary=summary(dtype=dtype), numbers={})
    made = ChecksumReport(step=0, rank=0, events=(event,))
    text = to_layout(made, statistics=["shape", "dtype", "zeros"])["buffers"]["b"]
    assert text == f"()|{short}|?⌀"


def test_only_what_is_chosen_is_reported() -> None:
    made = ChecksumReport(step=0, rank=0, events=ALL)
    found = to_layout(made, statistics=["hash"], checksums=["params"])
    assert list(found) == ["__about__", "parameters"]
    assert found["parameters"]["fc.weight"] == {"data": HASH}
    assert "__all_grads__" not in found["parameters"]
    with pytest.raises(UsageError, match="no statistic is called 'sum'"):
        to_layout(made, statistics=["sum"])
    with pytest.raises(UsageError, match="no group of checksums is called 'weights'"):
        to_layout(made, checksums=["weights"])


@pytest.mark.parametrize("place", range(len(ALL)))
def test_a_changed_hash_changes_the_digest_of_its_group_alone(place: int) -> None:
    event = ALL[place]
    if event.summary is None:
        return
    changed = event.replace(summary=event.summary.replace(fingerprint="xxh3-128:ff"))
    before = report(*ALL)
    after = report(*ALL[:place], changed, *ALL[place + 1 :])
    differing = {key for key, text in flat(before).items() if flat(after)[key] != text}
    digests = {key.rpartition("/")[2] for key in differing if "__all_" in key}
    expected = {
        "parameter": {"__all_data__"}, "gradient": {"__all_grads__"},
        "local_gradient": {"__all_local_grads__"}, "buffer": {"__all_buffers__"},
        "optimizer_state": {"__all_state__"}, "batch": {"__all_batch__"}, "generator": set(),
    }  # fmt: skip
    assert digests == expected[event.group]
    assert len(differing) == 1 + len(digests)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        pairs = value.items()
    elif isinstance(value, list):
        pairs = dict(enumerate(value)).items()
    else:
        return {path: value}
    return {k: v for key, item in pairs for k, v in flat(item, f"{path}/{key}").items()}


def test_the_structure_of_a_batch_is_kept() -> None:
    names = ("batch[0].ids", "batch[0].masks[1]", "batch[1]")
    events = [checksum("batch", name, owner="loader0", data={"index": 0}) for name in names]
    content = report(*events)["batch"]["__batch__"]
    assert [sorted(content[0]), content[0]["masks"][0]] == [["ids", "masks"], None]
    assert isinstance(content[1], str)
    (single,) = [checksum("batch", "batch", owner="loader0", data={"index": 0})]
    assert isinstance(report(single)["batch"]["__batch__"], str)
    assert report(ALL[1])["batch"] is None


def test_micro_batches_are_all_there() -> None:
    events = [checksum("batch", "batch", owner="loader0", data={"index": i}) for i in range(3)]
    batch = report(*events)["batch"]
    assert batch["__batch_idx__"] == 2
    assert [one["__batch_idx__"] for one in batch["earlier"]] == [0, 1]


def test_several_models_keep_their_full_names() -> None:
    found = report(checksum("parameter", "G.w"), checksum("parameter", "D.w"))["parameters"]
    assert {"G.w", "D.w"} <= found.keys()


def test_yaml_and_json_hold_the_same_values() -> None:
    found = report(*ALL)
    assert yaml.safe_load(to_yaml(found)) == found
    assert orjson.loads(to_json(found)) == found
    assert set(CHECKSUMS) == {"params", "grads", "buffers", "rngs", "optimizers", "batch"}


def test_reports_are_read_by_step_and_rank(tmp_path: Path) -> None:
    events: list[Event] = []
    for rank in range(2):
        seq = 0
        for event in TraceBuilder(rank=rank).process().build():
            events.append(event)
            seq = event.seq + 1
        for step in range(3):
            for one in (checksum("buffer", "Net.b", step=step, rank=rank), None):
                made = one or StepEvent(0, 0, step, "train", rank, "")
                stream = events[-1].stream
                events.append(made.replace(seq=seq, time_ns=10**12 + seq, stream=stream))
                seq += 1
    with TraceWriter(tmp_path / "run") as writer:
        for event in events:
            writer.emit(event)
    reader = TraceReader(tmp_path / "run")
    found = [(one.step, one.rank, len(one.events)) for one in read_reports(reader)]
    assert found == [(s, r, 1) for s in range(3) for r in range(2)]
    assert [(one.step, one.rank) for one in read_reports(reader, range(1, 2), 1)] == [(1, 1)]
    export_parquet(reader, tmp_path / "parquet")
    assert list(read_parquet(tmp_path / "parquet")) == list(reader.events())
    for path in (tmp_path / "run").glob("events-r1-*"):
        path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:-1]) + b"\n")
    torn = [one for one in read_reports(TraceReader(tmp_path / "run")) if one.notes]
    assert [(one.step, one.rank) for one in torn] == [(2, 1)]
    assert to_layout(torn[0])["__about__"]["notes"] == ["the record of this step is not complete"]


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("all", StepSchedule(every=1)),
        ("every=100", StepSchedule(every=100)),
        ("first=3,every=10", StepSchedule(first=3, every=10)),
        ("5:8, 20", StepSchedule(spans=((5, 8), (20, 21)))),
        ("rank=1,rank=0", StepSchedule(every=1, ranks=frozenset({0, 1}))),
    ],
)
def test_schedules_are_read(text: str, schedule: StepSchedule) -> None:
    assert parse_schedule(text) == schedule


@pytest.mark.parametrize(
    "text", ["", "each=3", "every=0", "8:5", "-1", "first=", "every=2,every=3"]
)
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_schedule(text)


def test_a_schedule_includes_its_steps() -> None:
    schedule = parse_schedule("first=2,every=5,7:9,rank=1")
    assert [step for step in range(12) if schedule.includes(step, 1)] == [0, 1, 5, 7, 8, 10]
    assert not schedule.includes(0, 0)
    assert not schedule.includes(None, 1)
