"""A notebook in a real kernel: the magic, and what objects show."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.diff.run_pairs import edited, output, training
from traincheck.schema.events import CallEvent
from traincheck.schema.torch_api import Families
from traincheck.store.writer import TraceWriter

CELLS = {
    "load": "%load_ext traincheck\nimport torch, traincheck\nfrom torch import nn",
    "objects": (
        "torch.manual_seed(0)\nmodel = nn.Linear(4, 2)\ndata = torch.randn(8, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"
    ),
    "broken": (
        "%%traincheck --ignore TC1\nfor _ in range(4):\n"
        "    model(data).square().mean().backward()\n    optimizer.step()\nmodel.bias.shape"
    ),
    "good": (
        "%%traincheck\nfor _ in range(4):\n    optimizer.zero_grad()\n"
        "    loss = model(data).square().mean()\n    loss.backward()\n    optimizer.step()"
    ),
    "named": "float(loss) >= 0, _traincheck.report().steps",
    "option": "%%traincheck --evry 2\npass",
    "wrong": "%%traincheck\nfor step in range(3):\n    1 / (1 - step)",
    "diff": "traincheck.diff('a', 'b')",
    "profile": (
        "with traincheck.profile(model) as p:\n    model(data).sum().backward()\n"
        "    optimizer.step()\np"
    ),
    "metrics": (
        "from traincheck.metrics.series import Metrics\n"
        "Metrics({'gradient/<b>/norm': {0: 1.0, 10: float('nan'), 20: 3.0}})"
    ),
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The executed cells by name."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    folder = tmp_path_factory.mktemp("notebook")
    changed = edited(
        training(),
        lambda e: isinstance(e, CallEvent) and e.family == Families.MODULE and e.step == 2,
        result=output("other"),
    )
    for run, events in (("a", training()), ("b", changed)):
        with TraceWriter(folder / run) as writer:
            for event in events:
                writer.emit(event)
    made = nbformat.v4.new_notebook()
    made.cells = [nbformat.v4.new_code_cell(source) for source in CELLS.values()]
    spec = folder / "kernels" / "this"
    spec.mkdir(parents=True)
    (spec / "kernel.json").write_text(
        f'{{"argv": ["{sys.executable}", "-m", "ipykernel_launcher", "-f", "{{connection_file}}"],'
        ' "display_name": "this", "language": "python"}'
    )
    before = os.environ.get("JUPYTER_PATH")
    os.environ["JUPYTER_PATH"] = str(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # those of the client
            client = nbclient.NotebookClient(
                made, timeout=300, kernel_name="this", allow_errors=True,
                resources={"metadata": {"path": str(folder)}},
            )  # fmt: skip
            client.execute()
    finally:
        os.environ.pop("JUPYTER_PATH")
        if before is not None:
            os.environ["JUPYTER_PATH"] = before
    return dict(zip(CELLS, made.cells))


def html(cell: Any) -> str:
    return "".join(out["data"].get("text/html", "") for out in cell.outputs if "data" in out)


def plain(cell: Any) -> str:
    return "".join(out["data"].get("text/plain", "") for out in cell.outputs if "data" in out)


def errors(cell: Any) -> list[Any]:
    return [out for out in cell.outputs if out["output_type"] == "error"]


def test_a_finding_is_shown_with_its_cell_and_line(notebook: dict[str, Any]) -> None:
    found = html(notebook["broken"])
    assert "TC201 error at step 1" in found
    number = notebook["broken"].execution_count
    assert re.search(rf"Cell In\[{number}\]:[34]<", found), found
    assert "torch.Size([2])" in plain(notebook["broken"])  # the last expression is displayed
    assert not errors(notebook["broken"])


def test_a_good_cell_shows_no_finding_and_defines_its_names(notebook: dict[str, Any]) -> None:
    assert "no findings in 4 steps" in html(notebook["good"])
    assert "(True, 4)" in plain(notebook["named"])


def test_an_error_of_the_cell_is_its_own(notebook: dict[str, Any]) -> None:
    (error,) = errors(notebook["wrong"])
    assert error["ename"] == "ZeroDivisionError"
    assert "1 / (1 - step)" in "\n".join(error["traceback"])
    assert "----> 3" in re.sub("\x1b\\[[0-9;]*m", "", "\n".join(error["traceback"]))
    assert "nothing was checked" in html(notebook["wrong"])


def test_an_unknown_option_is_named(notebook: dict[str, Any]) -> None:
    (error,) = errors(notebook["option"])
    assert error["ename"] == "UsageError"
    assert "--evry" in error["evalue"]


def test_a_difference_a_profile_and_metrics_are_html(notebook: dict[str, Any]) -> None:
    assert "first difference at step" in html(notebook["diff"])
    assert "<th" in html(notebook["diff"])
    assert "<pre" in html(notebook["profile"])
    assert "Linear" in html(notebook["profile"])
    found = html(notebook["metrics"])
    assert "<svg" in found
    assert "<circle" in found  # NaN
    assert "gradient/&lt;b&gt;/norm" in found


def test_what_is_shown_has_no_script_and_asks_for_nothing(notebook: dict[str, Any]) -> None:
    shown = "".join(map(html, notebook.values()))
    assert len(shown) > 1000
    assert not re.search(r"<script|https?://|<link|<img|onerror", shown)


@pytest.mark.real_process
def test_the_extension_loads_without_torch() -> None:
    code = (
        "import sys, traincheck; traincheck.load_ipython_extension; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    assert Path(sys.executable).exists()
