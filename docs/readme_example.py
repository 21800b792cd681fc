"""Run the examples of README.md and worked-example.md and insert their real output.

`python` blocks that begin with `# name.py` are written to an empty folder, `bash` blocks run in it
in order, and each `console` block gets the output of the `bash` block before it. A `console` block
that ends with a line `...` keeps its number of lines. `sh` blocks, such as the one that
installs, are not run. Nothing else in the pages changes.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "worked-example.md", ROOT / "README.md")  # in this order, in one folder
FOLDER = "/home/you"  # represents the folder in which the example ran
_FENCE = re.compile(r"^```(python|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.py)\n")
_CUT = "...\n"


def environment() -> dict[str, str]:
    """The caller's, with the commands of this Python first on the path, and without color."""
    commands = Path(sys.executable).parent
    path = f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def run(commands: str, folder: Path) -> str:
    """The combined output of the commands of one block.

    Raises:
        subprocess.CalledProcessError: a command failed. Status 1 is that of findings.
    """
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode not in (0, 1):
        done.check_returncode()
    lines = done.stdout.replace(str(folder), FOLDER).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def rendered(texts: Sequence[str]) -> list[str]:
    """The pages with the present outputs of their examples."""
    # Not pytest's folder: its path is long, and a report breaks its lines.
    with tempfile.TemporaryDirectory() as folder:
        return [_rendered(text, Path(folder).resolve()) for text in texts]


def _rendered(text: str, folder: Path) -> str:
    output = ""

    def act(match: re.Match[str]) -> str:
        nonlocal output
        language, content = match[1], match[2]
        if language == "python":
            name = _FILE_NAME.match(content)
            if name:
                (folder / name[1]).write_text(content, encoding="utf-8")
        elif language == "bash":
            output = run(content, folder)
        elif content.endswith(_CUT):
            lines = output.splitlines(keepends=True)[: content.count("\n") - 1]
            return f"```console\n{''.join(lines)}{_CUT}```"
        else:
            return f"```console\n{output}```"
        return match[0]

    return _FENCE.sub(act, text)


def main() -> None:
    texts = rendered([page.read_text(encoding="utf-8") for page in PAGES])
    for page, text in zip(PAGES, texts):
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
