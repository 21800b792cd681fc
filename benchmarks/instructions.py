"""Instructions that a step executes while it is recorded: the same number on a busy machine.

They are counted under callgrind, from one step to another, so that imports do not count. That needs
valgrind with its headers and a C compiler, and takes about ten minutes.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import WORKLOADS
from traincheck.errors import UsageError

FIRST, LAST = 10, 30  # steps: allocators have warmed up, lazy imports have happened
PROGRAMS = {"mlp_digits": {"UP_EVAL": 0}, "gpt_char": {"UP_LAYERS": 1, "UP_BS": 1}}
RECORDINGS = ("default", "rules", "selective")
_TIMEOUT_S = 1800
_SWITCH = """
#include <valgrind/callgrind.h>
void on(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void off(void) { CALLGRIND_STOP_INSTRUMENTATION; }
"""
_COUNT = re.compile(r"Collected : (\d+)")


def count(python: str = sys.executable) -> Iterator[tuple[str, float]]:
    """Name of a program and a kind of recording, and the instructions of one step.

    Args:
        python: whose traincheck records.

    Raises:
        UsageError: valgrind, its headers or a C compiler are missing.
    """
    with tempfile.TemporaryDirectory() as scratch:
        switch = _switch(Path(scratch))
        for program, settings in PROGRAMS.items():
            script = WORKLOADS / f"{program}.py"
            env = {"PYTHONHASHSEED": 0, **settings}
            harness.collect(
                script,
                Path(scratch, f"{program}.run"),
                env={"UP_STEPS": LAST, **env},
                python=python,
            ).expect()
            learned = Path(scratch, f"{program}.json")
            harness.infer([Path(scratch, f"{program}.run")], learned, python=python).expect()
            env |= {"UP_STEPS": LAST + 2, "UP_COUNT": f"{switch}:{FIRST}:{LAST}"}
            for kind in RECORDINGS:
                log = Path(scratch, "callgrind.log")
                watched = ["valgrind", "--tool=callgrind", "--instr-atstart=no"]
                watched += ["--callgrind-out-file=/dev/null", f"--log-file={log}"]
                harness.collect(
                    [*watched, python, script],
                    Path(scratch, f"{program}.{kind}"),
                    env=env,
                    rules=kind == "rules",
                    invariants=learned if kind == "selective" else None,
                    timeout_s=_TIMEOUT_S,
                    python=python,
                ).expect()
                found = _COUNT.search(log.read_text(encoding="utf-8"))
                assert found is not None, log.read_text(encoding="utf-8")
                yield f"{program} {kind}", int(found[1]) / (LAST - FIRST)


def _switch(folder: Path) -> Path:
    """A library that switches counting on and off."""
    source, library = folder / "switch.c", folder / "switch.so"
    source.write_text(_SWITCH, encoding="utf-8")
    try:
        subprocess.run(["valgrind", "--version"], check=True, capture_output=True)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UsageError(
            f"instructions cannot be counted: {error}", fix="apt-get install valgrind gcc"
        ) from error
    return library
