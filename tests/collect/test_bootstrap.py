"""The sitecustomize that follows processes, with a stand-in for torch and for the session.

The stand-ins make a process take milliseconds; test_launch.py runs the real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from traincheck.collect.launch.launcher import BOOTSTRAP, child_environment
from traincheck.collect.launch.settings import Settings

pytestmark = pytest.mark.real_process

TORCH = "IS_COMPLETE = False\nimport torch.part\nIS_COMPLETE = True\n"
SESSION = """
import json, os, sys
import torch

def start(settings):
    path = os.path.join(os.environ["STARTS"], str(os.getpid()) + ".jsonl")
    with open(path, "a") as file:
        file.write(json.dumps([torch.IS_COMPLETE, sys.argv[0]]) + "\\n")
"""
SETTINGS = """
VARIABLE = "TRAINCHECK_SETTINGS"

def from_env(environ):
    return environ[VARIABLE]
"""


@dataclass
class Place:
    """A folder with stand-ins, and ways to run programs with and without the bootstrap."""

    root: Path

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def plain(self, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return self._run(command, {**self._environment(), **extra})

    def traced(self, *command: str, **extra: str) -> subprocess.CompletedProcess[str]:
        settings = Settings(
            directory=str(self.root / "run"),
            run_id="r",
            package=str(self.root / "package" / "traincheck"),
        )
        return self._run(command, child_environment(settings, {**self._environment(), **extra}))

    def starts(self) -> list[list[list[object]]]:
        """For each process that started a session: whether torch was complete, and argv[0]."""
        files = sorted((self.root / "starts").iterdir())
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    def notes(self) -> list[dict[str, str]]:
        return [json.loads(path.read_text()) for path in (self.root / "run").iterdir()]

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(self.root / "lib"),
            "STARTS": str(self.root / "starts"),
        }

    def _run(
        self, command: tuple[str, ...], environ: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.root,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.write("lib/torch/__init__.py", TORCH)
    place.write("lib/torch/part.py", "")
    place.write("package/traincheck/__init__.py", "")
    for package in ("collect", "collect/launch", "collect/session"):
        place.write(f"package/traincheck/{package}/__init__.py", "")
    place.write("package/traincheck/collect/launch/settings.py", SETTINGS)
    place.write("package/traincheck/collect/session/session.py", SESSION)
    (tmp_path / "starts").mkdir()
    (tmp_path / "run").mkdir()
    return place


def test_a_process_without_torch_differs_in_nothing(place: Place) -> None:
    program = (
        "import os, sys; env = dict(os.environ); env.pop('TRAINCHECK_SETTINGS', 0); "
        "env.pop('PYTHONPATH'); print(sys.path, sys.argv, os.getcwd(), sys.flags,"
        " sorted(env.items()), sorted(sys.modules), sorted(sys.path_importer_cache))"
    )
    plain, traced = place.plain("-c", program, "x"), place.traced("-c", program, "x")
    assert str(BOOTSTRAP) not in traced.stdout
    assert (traced.stdout, traced.stderr, traced.returncode) == (
        plain.stdout,
        plain.stderr,
        plain.returncode,
    )
    assert place.starts() == []


def test_the_users_path_stays_behind_ours(place: Place) -> None:
    done = place.traced("-c", "import os; print(os.environ['PYTHONPATH'])", PYTHONPATH="a:b")
    assert done.stdout.strip() == f"{BOOTSTRAP}:a:b"


def test_the_session_starts_once_when_torch_is_complete(place: Place) -> None:
    script = place.write("s.py", "import torch, torch.part\nimport torch\n")
    assert place.traced(str(script), "x").returncode == 0
    assert place.starts() == [[[True, str(script)]]]


def test_after_the_import_nothing_of_ours_is_left(place: Place) -> None:
    program = (
        "import sys, torch; print(sorted(torch.__loader__.__dict__), type(torch.__loader__), "
        "torch.__loader__ is torch.__spec__.loader, len(sys.meta_path), "
        "'sitecustomize' in sys.modules)"
    )
    assert place.traced("-c", program).stdout == place.plain("-c", program).stdout != ""
    assert len(place.starts()) == 1


def test_asking_where_torch_is_starts_nothing(place: Place) -> None:
    program = "import importlib.util; print(importlib.util.find_spec('torch').origin)"
    assert place.traced("-c", program).stdout == place.plain("-c", program).stdout != ""
    assert place.starts() == []


def test_asking_first_does_not_keep_the_import_from_being_seen(place: Place) -> None:
    place.traced("-c", "import importlib.util as u; u.find_spec('torch'); import torch")
    assert len(place.starts()) == 1


def test_a_reload_does_not_start_again(place: Place) -> None:
    place.traced("-c", "import importlib, torch; importlib.reload(torch)")
    assert [len(lines) for lines in place.starts()] == [1]


def test_a_lazy_import_is_seen_when_it_happens(place: Place) -> None:
    program = (
        "import importlib.util as u, os, sys\n"
        "spec = u.find_spec('torch'); spec.loader = u.LazyLoader(spec.loader)\n"
        "torch = u.module_from_spec(spec); sys.modules['torch'] = torch\n"
        "spec.loader.exec_module(torch); print(os.listdir(os.environ['STARTS']))\n"
        "print(torch.IS_COMPLETE)"
    )
    assert place.traced("-c", program).stdout == "[]\nTrue\n"
    assert len(place.starts()) == 1


def test_an_import_in_a_thread_is_seen(place: Place) -> None:
    program = (
        "import threading as t\n"
        "a = [t.Thread(target=__import__, args=('torch',)) for _ in 'abcd']\n"
        "[x.start() for x in a]; [x.join() for x in a]"
    )
    assert place.traced("-c", program).stderr == ""
    assert [len(lines) for lines in place.starts()] == [1]


@pytest.mark.parametrize("error", ["ImportError", "RuntimeError"])
def test_a_failing_import_looks_as_it_did(place: Place, error: str) -> None:
    place.write("lib/torch/part.py", f"raise {error}('broken installation')")
    script = str(place.write("s.py", "import torch"))
    plain, traced = place.plain(script), place.traced(script)
    assert traced.stderr == plain.stderr
    assert "broken installation" in traced.stderr
    assert traced.returncode == plain.returncode == 1
    assert place.starts() == []


def test_an_import_that_works_the_second_time_is_seen(place: Place) -> None:
    place.write(
        "lib/torch/part.py", "import sys\nif 'ready' not in sys.modules: raise ImportError('no')"
    )
    program = (
        "import sys\ntry: import torch\nexcept ImportError: sys.modules['ready'] = sys\n"
        "import torch; print(torch.IS_COMPLETE)"
    )
    assert place.traced("-c", program).stdout == "True\n"
    assert [len(lines) for lines in place.starts()] == [1]


def test_torch_that_is_not_installed_is_missed_as_before(place: Place) -> None:
    script = place.write("s.py", "import torch")
    empty = {"PYTHONPATH": str(place.root / "none"), "PYTHONNOUSERSITE": "1"}
    program = (
        "import runpy, sys; sys.path[:] = [p for p in sys.path if 'site-packages' not in p]; "
        "runpy.run_path(sys.argv[1])"
    )
    command = ("-c", program, str(script))
    plain, traced = place.plain(*command, **empty), place.traced(*command, **empty)
    assert "No module named 'torch'" in plain.stderr
    assert traced.stderr == plain.stderr


def test_the_users_own_sitecustomize_runs_first(place: Place) -> None:
    place.write("lib/sitecustomize.py", "print('mine', __file__); NAME = 'mine'")
    program = "import sys, torch, sitecustomize; print(sitecustomize.NAME, sitecustomize.__file__)"
    plain, traced = place.plain("-c", program), place.traced("-c", program)
    assert traced.stdout == plain.stdout
    assert traced.stdout.count("mine") == 2
    assert len(place.starts()) == 1


def test_a_sitecustomize_that_imports_torch_is_no_loss(place: Place) -> None:
    place.write("lib/sitecustomize.py", "import torch")
    place.traced("-c", "pass")
    assert [len(lines) for lines in place.starts()] == [1]


def test_a_broken_sitecustomize_says_what_it_said(place: Place) -> None:
    place.write("lib/sitecustomize.py", "raise ValueError('my own fault')")
    plain, traced = place.plain("-c", "import torch"), place.traced("-c", "import torch")
    assert traced.stderr == plain.stderr
    assert "my own fault" in traced.stderr
    assert len(place.starts()) == 1


def test_the_name_sitecustomize_stays_free(place: Place) -> None:
    program = "try: import sitecustomize\nexcept ImportError as e: print(e.name)"
    assert place.traced("-c", program).stdout == place.plain("-c", program).stdout


CHILDREN = """
import multiprocessing, os, subprocess, sys

def work():
    import torch

if __name__ == "__main__":
    how = sys.argv[1]
    if how == "fork before":
        pid = os.fork()
        if not pid:
            work()
            os._exit(0)
        os.waitpid(pid, 0)
    elif how == "subprocess":
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    elif how == "shell":
        subprocess.run(f"cd / && '{sys.executable}' -c 'import torch'", shell=True, check=True)
    else:
        process = multiprocessing.get_context(how).Process(target=work)
        process.start()
        process.join()
        assert process.exitcode == 0
"""


@pytest.mark.parametrize("how", ["fork before", "subprocess", "shell", "spawn", "forkserver"])
def test_a_child_is_followed(place: Place, how: str) -> None:
    script = place.write("s.py", CHILDREN)
    done = place.traced(str(script), how)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(place.starts()) == 1


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_an_isolated_interpreter_escapes(place: Place, flag: str) -> None:
    program = f"import sys; sys.path.insert(0, {str(place.root / 'lib')!r}); import torch; print(1)"
    assert place.traced(flag, "-c", program).stdout == "1\n"
    assert place.starts() == []


def _break_session(place: Place) -> None:
    place.write(
        "package/traincheck/collect/session/session.py", "def start(s): raise OSError('no room')"
    )


def _need_what_is_missing(place: Place) -> None:
    place.write(
        "package/traincheck/collect/launch/settings.py", "import a_module_that_is_not_there"
    )


def _take_the_package_away(place: Place) -> None:
    (place.root / "package").rename(place.root / "elsewhere")


def _use_the_name_for_something_else(place: Place) -> None:
    place.write("lib/traincheck.py", "NAME = 'a file of the user'")


def _use_the_name_of_what_is_needed(place: Place) -> None:
    place.write("lib/xxhash.py", "print('never imported by the program')")


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (_break_session, "OSError: no room"),
        (_need_what_is_missing, "a_module_that_is_not_there"),
        (_take_the_package_away, "__init__.py"),
        (_use_the_name_for_something_else, "another module named traincheck"),
        (_use_the_name_of_what_is_needed, "another module named xxhash"),
    ],
)
def test_a_process_that_cannot_be_traced_runs_on_and_leaves_a_note(place, fault, reason) -> None:
    fault(place)
    program = "import torch; print(torch.IS_COMPLETE)"
    plain, traced = place.plain("-c", program), place.traced("-c", program)
    assert (traced.stdout, traced.stderr) == (plain.stdout, plain.stderr) == ("True\n", "")
    (note,) = place.notes()
    assert reason in note["reason"]
    assert note["executable"] == sys.executable
    assert note["argv0"] == "-c"
    assert place.starts() == []


def test_a_traced_process_leaves_no_note(place: Place) -> None:
    place.traced("-c", "import torch")
    assert place.notes() == []


def test_the_users_module_of_our_name_stays_the_users(place: Place) -> None:
    _use_the_name_for_something_else(place)
    done = place.traced("-c", "import torch, traincheck; print(traincheck.NAME)")
    assert done.stdout == "a file of the user\n"


@pytest.mark.parametrize("raw", ["{", "[]", "{}", '{"package": 3}'])
def test_garbled_settings_harm_nobody(place: Place, raw: str) -> None:
    path = f"{BOOTSTRAP}:{place.root / 'lib'}"
    done = place.plain("-c", "import torch; print(1)", TRAINCHECK_SETTINGS=raw, PYTHONPATH=path)
    assert (done.stdout, done.stderr) == ("1\n", "")


def test_another_venvs_modules_do_not_leak_in(place: Place) -> None:
    place.write("package/beside.py", "")
    done = place.traced("-c", "import torch, beside")
    assert "No module named 'beside'" in done.stderr
    assert len(place.starts()) == 1
