"""Run the example in README.md and put its real output there; nothing else in the page changes.

`python` blocks that begin with `# name.py` are written to an empty folder, `bash` blocks run in it
in order, and each `console` block gets the output of the `bash` block before it. `sh` blocks, such
as the one that installs, are left alone.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
FOLDER = "/home/you"  # stands for the folder in which the example ran
_FENCE = re.compile(r"^```(python|bash|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE_NAME = re.compile(r"# (\S+\.py)\n")


def environment() -> dict[str, str]:
    """That of the caller, with the commands of this Python first on the path, and without color."""
    commands = Path(sys.executable).parent
    path = f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return {**os.environ, "PATH": path, "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}


def run(commands: str, folder: Path) -> str:
    """All that a person would see of the commands of one block.

    Raises:
        subprocess.CalledProcessError: a command failed.
    """
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=True,
    )
    lines = done.stdout.replace(str(folder), FOLDER).splitlines()
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def rendered(text: str) -> str:
    """The page with the outputs that its example has now."""
    # Not pytest's folder: its path is long, and a report breaks its lines.
    with tempfile.TemporaryDirectory() as folder:
        return _rendered(text, Path(folder).resolve())


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
        else:
            return f"```console\n{output}```"
        return match[0]

    return _FENCE.sub(act, text)


def main() -> None:
    text = rendered(README.read_text(encoding="utf-8"))
    README.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
