"""The healthy inputs that are damaged: a small trace, and what is made of it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tests.builders import BN_BUFFERS, MLP_BN, TraceBuilder
from traincheck.api import check
from traincheck.check.suppression.policy import write_baseline
from traincheck.infer.engine import Run, infer
from traincheck.infer.files import save
from traincheck.infer.select import Limits
from traincheck.schema.events import CollectiveEvent, Event
from traincheck.schema.layout import faults_file_name, lost_file_name, unused_file_name
from traincheck.store.columnar import export_parquet
from traincheck.store.manifest import Manifest
from traincheck.store.reader import TraceReader
from traincheck.store.writer import TraceWriter

CONFIG = """
select = ["TC1", "TC2", "order"]
ignore = ["TC102"]
fail_on = "warning"

[[suppress]]
code = "TC201"
reason = "accumulates"
variable = "Net.*"

[rules.TC204]
windows = 3

[collect]
every = 2
warmup = 20
rules = true
level = "default"
instrument = ["mine"]
"""
PROJECT = '[project]\nname = "mine"\n\n' + CONFIG.replace("[[", "[[tool.traincheck.").replace(
    "\n[r", "\n[tool.traincheck.r"
).replace("\n[c", "\n[tool.traincheck.c").replace("\nselect", "\n[tool.traincheck]\nselect")
SOURCE = "import torch\n" + "x = 1  # traincheck: ignore[TC9]\n" * 40


def make_corpus(folder: Path) -> Path:
    """Write the inputs into ``folder``: ``run``, ``good``, invariants, a baseline, and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(SOURCE)
    (folder / "traincheck.toml").write_text("")  # so that none above is found
    (folder / "config.toml").write_text(CONFIG)
    (folder / "project").mkdir()
    (folder / "project" / "pyproject.toml").write_text(PROJECT)
    good = [_write(folder / "good", [_healthy()], folder)]
    good.append(_write(folder / "other", [_healthy(steps=9)], folder))
    run = _write(folder / "run", [_broken(0), _broken(1)], folder)
    (run / faults_file_name(1000)).write_text(
        '{"faults": [{"in": "modules", "reason": "KeyError", "times": 2}], "off": ["modules"]}'
    )
    (run / unused_file_name(1000)).write_text("mine\n")
    (run / lost_file_name(1000)).write_text("")
    limits = Limits()
    learned = infer([Run(name=p.name, source=TraceReader(p)) for p in good], limits=limits)
    save(learned, folder / "invariant.json", limits)
    write_baseline(folder / "baseline.json", check(good[0]).findings)
    export_parquet(run, folder / "parquet")
    return folder


def _write(directory: Path, processes: Iterable[Iterable[Event]], cwd: Path) -> Path:
    manifest = Manifest(
        run_id=directory.name, cwd=str(cwd), command=("python", "train.py"), exit_status=0,
        started="2026-01-01T00:00:00.000+00:00", ended="2026-01-01T00:01:00.000+00:00",
        launcher_pid=1 << 22, settings={"level": "default", "every": 1, "warmup": 0, "needs": None},
    )  # fmt: skip
    with TraceWriter(directory, manifest) as writer:
        for events in processes:
            for event in events:
                writer.emit(event)
    return directory


def _healthy(steps: int = 6, rank: int = 0) -> list[Event]:
    return _begun(rank).steps(steps, eval_every=3).build()


def _begun(rank: int) -> TraceBuilder:
    builder = TraceBuilder(rank=rank).process(world_size=2).seed()
    return builder.model("Net", MLP_BN, buffers=BN_BUFFERS).optimizer().train()


def _broken(rank: int) -> list[Event]:
    builder = _begun(rank).steps(2).warning("UserWarning", "something is deprecated")
    builder.load(
        "Net", path="model.pt", missing=["a"], unexpected=["b"], entries=6, where="train.py:5"
    )
    builder.steps(3, omit={"zero_grad"}).evaluate(2).mark("model", model="Net", modules={"fc1": {}})
    builder.freeze("Net.fc1.weight").scheduler_step().skipped_steps(2).steps(2)
    events = builder.build()
    last = events[-1]
    return [
        *events[:-1],
        CollectiveEvent(*last.header, op="all_reduce", shape=[3], dtype="float32", before="a:1"),
        last,
    ]
