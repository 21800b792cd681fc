"""A virtual environment that runs this checkout where there is only Python, and perhaps torch.

It sees all packages of the Python that makes it. Only what is missing is installed, with our pins.
Where no package index can be reached, it runs with what there is.
"""

from __future__ import annotations

import json
import re
import site
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.checkout import checkout_at
from benchmarks.harness import ROOT

TORCH = "torch==2.13.0"
NEEDED = ("click", "msgspec", "orjson", "pandas", "pyarrow", "rich", "xxhash", "numpy", "pytest")
_SCRIPTS = {
    "traincheck": "main",
    "traincheck-collect": "collect_main",
    "traincheck-infer": "infer_main",
    "traincheck-check": "check_main",
}
_INSTALL_S = 150.0
_ASK = """
import importlib, importlib.metadata as m, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
        found[name] = m.version(name)
    except Exception as error:
        found[name] = None
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """The environment of programs. versions: of packages. problems: missing parts, as text."""

    python: Path
    versions: dict[str, str | None]
    problems: list[str] = field(default_factory=list)


def prepare(folder: Path, *, progress: Callable[[str], None]) -> Setup:
    """Make the environment in ``folder``. Nothing outside is changed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    checkout = checkout_at(ROOT, folder / "checkout")
    packages = next((folder / "lib").glob("python*")) / "site-packages"
    # Lines that begin with import are run: so .pth files of the folders count, too
    seen = [*site.getsitepackages(), *checkout.env["PYTHONPATH"].split(":")]
    lines = [f"import site; site.addsitedir({path!r})" for path in seen]
    (packages / "traincheck-gpu.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for name, function in _SCRIPTS.items():
        script = folder / "bin" / name
        script.write_text(
            f"#!{python}\nimport sys\nfrom traincheck.cli.main import {function}\n"
            f"sys.exit({function}())\n",
            encoding="utf-8",
        )
        script.chmod(0o755)
    return _installed(python, progress)


def _installed(python: Path, progress: Callable[[str], None]) -> Setup:
    """Install what is missing, as far as an index can be reached."""
    versions = _versions(python)
    problems: list[str] = []
    missing = [_pinned(name) for name in NEEDED if versions[name] is None]
    missing += [] if versions["torch"] else [TORCH]
    if missing:
        progress(f"installing {' '.join(missing)}")
        argv = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
        argv += ["-c", str(ROOT / "constraints.txt"), *missing]
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=_INSTALL_S, check=False
            )
            said = "" if done.returncode == 0 else done.stderr.strip().rpartition("\n")[2]
        except subprocess.TimeoutExpired:
            said = f"not done after {_INSTALL_S:.0f} s"
        versions = _versions(python)
        still = [name for name in (*NEEDED, "torch") if versions[name] is None]
        if still:
            problems.append(f"missing {', '.join(still)}: pip install failed ({said})")
            progress(problems[-1])
    return Setup(python, versions, problems)


def _versions(python: Path) -> dict[str, str | None]:
    argv = [python, "-c", _ASK, *NEEDED, "torch"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return dict.fromkeys((*NEEDED, "torch"))
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def _pinned(name: str) -> str:
    """The requirement of a package, with the version of constraints.txt."""
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{re.escape(name)}==([^\s;]+)\s*$", pins, re.MULTILINE)
    return f"{name}=={found[1]}" if found else name
