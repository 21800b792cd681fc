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
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
OUTPUT = EXAMPLES / "output"
PICTURES = ROOT / "docs" / "gallery"
TIMEOUT = 300  # seconds for one command
WIDTH, HEIGHT = 1100, 800  # pixels of the window
COLORS = 256  # of a picture, so that it is small
COLUMNS = 100  # of a terminal
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


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a page.

    Attributes:
        name: of the file, without its ending.
        page: name of the example.
        parts: selectors of the elements that it shows, which are one below the other.
        is_dark: as on a system with a dark theme.
    """

    name: str
    page: str
    parts: tuple[str, ...]
    is_dark: bool = False


_CARD = ("h1", "#findings")
PICTURE_LIST = (
    *(Picture(example.name, example.name, _CARD) for example in EXAMPLE_LIST),
    Picture("plain_loop_dark", "plain_loop", ("#timeline", "#maps"), is_dark=True),
    Picture("lightning_timeline", "lightning_module", ("#timeline",)),
    Picture("torchrun_maps", "torchrun_ddp", ("#maps",)),
)
# The facts of the header name the machine and the Python that took the picture.
_WITHOUT_MACHINE = ".facts { display: none !important; }"
TERMINAL, CELL = "top", "notebook_cell"  # names of the other two pictures


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
        parts.append(f"$ {command}\n{output_of(command, folder)}")
    lines = "\n".join(parts).replace(str(folder), ".").splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


def output_of(command: str, folder: Path) -> str:
    """The output of a command, first to stdout, then to stderr.

    Raises:
        subprocess.CalledProcessError: it failed. Status 1 is that of findings.
    """
    done = subprocess.run(
        shlex.split(command),
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
        "COLUMNS": str(COLUMNS),
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

    read: Any = nbformat.read
    write: Any = nbformat.write
    notebook = read(folder / "examples" / "notebook.ipynb", as_version=4)
    with _Kernel(folder):
        client = nbclient.NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="gallery",
            resources={"metadata": {"path": str(folder)}},
        )
        client.execute()
    write(notebook, folder / "executed.ipynb")
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
            yield "".join(output["text"])


class _Kernel:
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


def why_no_pictures() -> str:
    """Why no pictures can be taken here; empty if they can."""
    missing = [name for name in ("playwright", "PIL") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} cannot be imported; pip install playwright pillow"
    return "" if chromium() else "no Chromium is on the path"


def chromium() -> str | None:
    """The browser, if there is one."""
    return shutil.which("chromium") or shutil.which("google-chrome")


def pictures(folder: Path, to: Path, *, asked: bool) -> None:
    """Take the pictures, or say why they are left as they are."""
    reason = why_no_pictures() if asked else "--no-pictures was given"
    if reason:
        print(f"pictures are left as they are: {reason}", file=sys.stderr)
    else:
        take_pictures(folder, to)


def take_pictures(folder: Path, to: Path) -> None:
    """Take the pictures of a folder in which every example has run.

    Args:
        folder: has the pages, the traces and the executed notebook.
        to: gets one PNG file for each picture.
    """
    from playwright.sync_api import sync_playwright

    to.mkdir(exist_ok=True)
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for picture in PICTURE_LIST:
            scheme = "dark" if picture.is_dark else "light"
            with window_of(browser, color_scheme=scheme) as window:
                window.goto((folder / f"{picture.page}.html").as_uri())
                window.add_style_tag(content=_WITHOUT_MACHINE)
                window.wait_for_timeout(500)  # milliseconds, until curves and maps are drawn
                save(shot(window, picture.parts), to / f"{picture.name}.png")
        drawn = {TERMINAL: _terminal(folder), CELL: _cell(folder)}
        for name, content in drawn.items():
            with window_of(browser) as window:
                window.set_content(content)
                save(window.locator("#picture").screenshot(), to / f"{name}.png")
        browser.close()


@contextmanager
def window_of(browser: Any, **options: Any) -> Iterator[Any]:
    """A window without a network."""
    size = {"width": WIDTH, "height": HEIGHT}
    context = browser.new_context(offline=True, viewport=size, **options)
    yield context.new_page()
    context.close()


def shot(window: Any, parts: Sequence[str]) -> bytes:
    """A picture from the top of the first part to the bottom of the last one."""
    boxes = [window.locator(part).first.bounding_box() for part in parts]
    top = max(0, boxes[0]["y"] - 16)
    bottom = boxes[-1]["y"] + boxes[-1]["height"] + 8
    clip = {"x": 0, "y": top, "width": WIDTH, "height": bottom - top}
    taken: bytes = window.screenshot(full_page=True, clip=clip)
    return taken


def save(png: bytes, path: Path) -> None:
    """Write a picture with few colors."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


def _terminal(folder: Path) -> str:
    """The view of ``traincheck top`` as HTML."""
    from rich.console import Console
    from rich.text import Text

    command = "traincheck top --once traces/torchrun_ddp"
    environment = {**_environment(), "FORCE_COLOR": "1", "COLORTERM": "truecolor"}
    del environment["NO_COLOR"]
    done = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=TIMEOUT,
    )
    console = Console(record=True, file=io.StringIO(), width=COLUMNS, force_terminal=True)
    console.print(Text.from_ansi(done.stdout))
    svg = console.export_svg(title=command)
    svg = re.sub(r"@font-face {.*?}", "", svg, flags=re.DOTALL)  # they are loaded from a network
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    return (
        f"<!DOCTYPE html><body style='margin:0'><div id=picture style='width:{WIDTH}px'>{svg}</div>"
    )


def _cell(folder: Path) -> str:
    """The output of the cell that ``%%traincheck`` begins, as HTML."""
    notebook = json.loads((folder / "executed.ipynb").read_text(encoding="utf-8"))
    cell = notebook["cells"][-1]
    shown = "".join(
        "".join(output["data"]["text/html"])
        for output in cell["outputs"]
        if output["output_type"] == "display_data"
    )
    source, printed = "".join(cell["source"]), "".join(_printed(cell, "stdout"))
    code = "background:#f5f5f5; border:1px solid #ddd; padding:8px; margin:0 0 8px"
    style = f"width:{WIDTH - 300}px; padding:12px; font:13px DejaVu Sans, sans-serif"
    return (
        f"<!DOCTYPE html><body style='margin:0'><div id=picture style='{style}'>"
        f"<pre style='{code}'>{escape(source)}</pre><pre>{escape(printed)}</pre>{shown}</div>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--no-pictures", action="store_true", help="only write the output")
    options = parser.parse_args()
    # Not below the checkout: git applies no patch outside of a repository that it finds.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        copy_examples(folder)
        for example in EXAMPLE_LIST:
            print(f"{example.name}: {example.command}", file=sys.stderr, flush=True)
            text = run(example, folder)
            (OUTPUT / f"{example.name}.txt").write_text(text, encoding="utf-8")
        pictures(folder, PICTURES, asked=not options.no_pictures)


if __name__ == "__main__":
    main()
