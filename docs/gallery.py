"""Run the examples, write their output to examples/output/, and take the pictures of gallery.md.

`python docs/gallery.py` does all of it in about two minutes. Pictures need playwright, pillow and
Chromium, with the network off; without them only the output is written. `--no-pictures` skips them.

Each example runs in a copy of examples/, by the commands that examples/README.md documents. The
output has what the program prints first, and what traincheck prints after it: in a terminal, the
two are mixed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
OUTPUT = EXAMPLES / "output"
PICTURES = ROOT / "docs" / "gallery"
TIMEOUT = 300  # seconds for one command
WIDTH, HEIGHT = 1280, 800  # pixels of a picture of a page
COLORS = 128  # of a picture, so that it is small
_WITHOUT_WARNINGS = "ignore"  # those of libraries, which differ between versions


@dataclass(frozen=True, slots=True)
class Example:
    """A program with a planted bug.

    Attributes:
        name: of the program without its ending, and of its patch, output, trace and page.
        command: what checks it, run in the folder above examples/. A notebook is executed by
            nbclient before it: its cells check themselves.
    """

    name: str
    command: str

    @property
    def is_notebook(self) -> bool:
        return self.name == "notebook"


EXAMPLE_LIST = (
    Example(
        "plain_loop",
        "traincheck run --probe -o traces/plain_loop --html plain_loop.html examples/plain_loop.py",
    ),
    Example(
        "hf_trainer",
        "traincheck run -o traces/hf_trainer --html hf_trainer.html examples/hf_trainer.py",
    ),
    Example(
        "lightning_module",
        "traincheck run -o traces/lightning_module --html lightning_module.html"
        " examples/lightning_module.py",
    ),
    Example(
        "torchrun_ddp",
        "traincheck run -o traces/torchrun_ddp --html torchrun_ddp.html"
        " -- torchrun --nproc-per-node 2 examples/torchrun_ddp.py",
    ),
    Example("notebook", "traincheck report traces/notebook -o notebook.html"),
)


def copy_examples(folder: Path) -> None:
    """Put a copy of examples/ into a folder, without what earlier runs left there."""
    left_out = shutil.ignore_patterns("__pycache__", "traces", "*.html")
    shutil.copytree(EXAMPLES, folder / "examples", ignore=left_out)


def fix(example: Example, folder: Path) -> None:
    """Apply the patch of an example to its copy.

    Raises:
        subprocess.CalledProcessError: it does not fit.
    """
    patch = folder / "examples" / "fixes" / f"{example.name}.patch"
    # Git skips files outside of a repository's current folder, so it must find no repository.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    subprocess.run(["git", "apply", str(patch)], cwd=folder, env=environment, check=True)


def run(example: Example, folder: Path) -> str:
    """Check an example in a folder with a copy of examples/.

    Returns:
        The commands and their output. The folder then has the trace and the HTML page.

    Raises:
        subprocess.CalledProcessError: a command failed. Status 1 is that of findings.
    """
    parts = []
    if example.is_notebook:
        parts.append(run_notebook(folder))
    full = f"traincheck check -t traces/{example.name}"
    for command in (example.command, full):
        parts.append(f"$ {command}\n{_output_of(shlex.split(command), folder)}")
    lines = "\n".join(parts).replace(str(folder), ".").splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _output_of(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    if done.returncode not in (0, 1):
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()
    return done.stdout + done.stderr


def _environment() -> dict[str, str]:
    """The caller's, with the commands of this Python first on the path, and without color."""
    commands = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": _WITHOUT_WARNINGS,
        "HF_HUB_OFFLINE": "1",
    }


def run_notebook(folder: Path) -> str:
    """Execute the notebook with the kernel of this Python.

    Returns:
        The texts that its cells print, each after the first line of the cell. The executed notebook
        is in ``executed.ipynb``.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
    """
    import nbclient
    import nbformat

    notebook = nbformat.read(folder / "examples" / "notebook.ipynb", as_version=4)
    with _kernel(folder):
        client = nbclient.NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="gallery",
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    nbformat.write(notebook, folder / "executed.ipynb")
    parts = []
    for cell in notebook.cells:
        printed = "".join(text for name in ("stdout", "stderr") for text in _printed(cell, name))
        if printed:
            first = cell.source.partition("\n")[0]
            parts.append(f"In [{cell.execution_count}]: {first}\n{printed}")
    return "\n".join(parts)


def _printed(cell: Any, stream: str) -> Iterator[str]:
    for output in cell.get("outputs", ()):
        if output.get("name") == stream:
            yield output.text


class _kernel:
    """A kernel named "gallery", which is this Python, for the time of a block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "jupyter"
        self._before = os.environ.get("JUPYTER_PATH")

    def __enter__(self) -> None:
        spec = {
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "gallery",
            "language": "python",
            "env": {"PYTHONWARNINGS": _WITHOUT_WARNINGS, "OMP_NUM_THREADS": "1"},
        }
        path = self._folder / "kernels" / "gallery" / "kernel.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(spec), encoding="utf-8")
        os.environ["JUPYTER_PATH"] = str(self._folder)

    def __exit__(self, *_: object) -> None:
        del os.environ["JUPYTER_PATH"]
        if self._before is not None:
            os.environ["JUPYTER_PATH"] = self._before
