"""Every example of docs/tables.md runs on a recorded run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.builders import MLP_BN, TraceBuilder
from traincheck.store.writer import TraceWriter

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = TraceBuilder().process().model("Net", MLP_BN).optimizer().train().steps(5)
    with TraceWriter(tmp_path / "traces" / "run") as writer:
        for event in builder.build():
            writer.emit(event)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    for block in blocks:
        exec(compile(block, "tables.md", "exec"), names)
    assert len(blocks) == 7
    assert len(names["calls"]) == 5
    assert set(names["gradients"]["role"]) == {"gradient"}
    assert len(names["rates"]) == len(names["batches"]) == 5
    assert len(names["changed"])
    assert names["wide"].index.names == ["step", "name"]
    assert names["both"]["order"].is_monotonic_increasing
    assert list(names["notes"]["text"]) == ["process"]
    assert names["changes"].total() == len(names["run"].states(role="gradient"))
