"""What is installed: every folder, the cli mapping, the data files, the commands."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from tests.test_layers import foreign, modules
from traincheck.version import VERSION

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.real_process

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DATA_FOLDERS = {
    "traincheck.configs",
    "traincheck.configs.invariants",
    "traincheck.page.static",
    "traincheck.page.templates",
}
COMMANDS = ("traincheck", "traincheck-collect", "traincheck-infer", "traincheck-check")


def import_names(folder: Path, prefix: str) -> set[str]:
    """Import names of a package and all packages in it."""
    return {
        ".".join([prefix, *init.parent.relative_to(folder).parts])
        for init in folder.rglob("__init__.py")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """A wheel built from this checkout, without network."""
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    # The copy keeps setuptools' build folder out of the checkout.
    source = out / "source"
    copy_tracked(source)
    subprocess.run(
        [*command, "--quiet", "--wheel-dir", str(out), str(source)],
        check=True,
        cwd=out,
        timeout=300,
    )
    (built,) = out.glob("*.whl")
    return zipfile.Path(built)


@pytest.fixture(scope="module")
def wheel_names(wheel: zipfile.Path) -> set[str]:
    """Names of the files in it."""
    return set(wheel.root.namelist())


def copy_tracked(target: Path) -> None:
    """Copy what the wheel is made of."""
    for name in ("traincheck", "cli", "configs"):
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                copy = target / path.relative_to(ROOT)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        (target / name).write_bytes((ROOT / name).read_bytes())


def test_the_list_of_packages_is_the_folders() -> None:
    folders = import_names(ROOT / "traincheck", "traincheck") | import_names(
        ROOT / "cli", "traincheck.cli"
    )
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders | DATA_FOLDERS


def test_every_module_is_in_the_wheel(wheel_names: set[str]) -> None:
    library = {p.relative_to(ROOT).as_posix() for p in (ROOT / "traincheck").rglob("*.py")}
    commands = {
        f"traincheck/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "cli").rglob("*.py")
    }
    assert library | commands <= wheel_names


def test_the_data_files_are_in_the_wheel(wheel_names: set[str]) -> None:
    schemas = {p.relative_to(ROOT).as_posix() for p in (ROOT / "traincheck").rglob("*.json")}
    assert schemas
    expected = {
        "traincheck/py.typed",
        "traincheck/collect/launch/bootstrap/sitecustomize.py",
        *schemas,
    }
    expected |= {f"traincheck/configs/{path.name}" for path in (ROOT / "configs").glob("*.toml")}
    shipped = [path.name for path in (ROOT / "configs" / "invariants").glob("*.json")]
    assert shipped
    expected |= {f"traincheck/configs/invariants/{name}" for name in shipped}
    assert expected <= wheel_names


def test_nothing_else_is_in_the_wheel(wheel_names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel_names} == {"traincheck"}


def test_the_license_is_in_the_wheel(wheel_names: set[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)


def test_the_source_archive_holds_what_tests_need(tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    tracked = [name for name in listed if name != ".gitignore" and not name.startswith(".")]
    if not tracked:
        pytest.skip("not a checkout")
    source = tmp_path / "source"
    for name in tracked:
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            copy.write_bytes((ROOT / name).read_bytes())
    code = "from setuptools.build_meta import build_sdist; import sys; build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=source, check=True, capture_output=True
    )
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.partition("/")[2] for name in opened.getnames()}
    needed = {
        name for name in tracked if name.startswith(("tests/", "docs/", "configs/", "traincheck/"))
    }
    assert needed <= held
    assert {"conftest.py", "constraints.txt", "Makefile", "CHANGELOG.md"} <= held


def test_an_installed_wheel_finds_its_data(wheel: zipfile.Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert wheel.root.filename is not None
    with zipfile.ZipFile(wheel.root.filename) as archive:  # a Path adds folders to the names
        archive.extractall(site)
    code = (
        "import traincheck, traincheck.cli.main as cli\n"
        "from traincheck.presets import preset_names, preset_path\n"
        "from traincheck.schema.invariant_file import SCHEMA_FILE, read_invariants\n"
        "read_invariants(preset_path('pytorch')), SCHEMA_FILE.read_bytes()\n"
        "print(traincheck.__file__, cli.__file__, *preset_names())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    library, commands, *presets = done.stdout.split()
    assert library == str(site / "traincheck" / "__init__.py")
    assert commands == str(site / "traincheck" / "cli" / "main.py")
    assert presets == sorted(path.stem for path in (ROOT / "configs/invariants").glob("*.json"))


def test_the_metadata_is_complete(wheel: zipfile.Path, wheel_names: set[str]) -> None:
    (name,) = (name for name in wheel_names if name.endswith(".dist-info/METADATA"))
    found = email.message_from_string((wheel / name).read_text(encoding="utf-8"))
    for key in ("Version", "Summary", "Author", "Keywords", "License-Expression", "Classifier"):
        assert found[key]
    assert sorted(found["Requires-Python"].split(",")) == ["<3.14", ">=3.10"]
    assert found["Description-Content-Type"] == "text/markdown"


DISTRIBUTIONS = {"yaml": "pyyaml"}  # of packages with another name


def test_what_is_imported_is_what_is_declared() -> None:
    found = {name for path in modules() for name in foreign(path)}
    imported = {DISTRIBUTIONS.get(name, name) for name in found}
    declared = {split_name(line) for line in PROJECT["project"]["dependencies"]}
    optional = {
        split_name(line)
        for name in ("accelerate", "lightning", "pytest", "torch", "transformers")
        for line in PROJECT["project"]["optional-dependencies"][name]
    }
    assert declared <= imported
    assert imported - declared - optional == {
        "sitecustomize",  # the user's own
        "typing_extensions",  # for type checkers alone, which bring it
    }


def test_torch_is_an_extra() -> None:
    required = {split_name(line) for line in PROJECT["project"]["dependencies"]}
    extras = PROJECT["project"]["optional-dependencies"]
    assert "torch" not in required
    assert [split_name(line) for line in extras["torch"]] == ["torch"]
    assert "torch" in extras["dev"][0].partition("[")[2]


def test_each_extra_for_users_is_explained() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    explained = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert explained == set(PROJECT["project"]["optional-dependencies"]) - {"bench", "test"}


def test_the_change_log_has_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)", text, re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_every_folder_with_data_is_a_package_of_its_own(wheel_names: set[str]) -> None:
    """Else setuptools warns that a later version may leave it out."""
    packages = set(PROJECT["tool"]["setuptools"]["packages"])
    folders = {name.rpartition("/")[0].replace("/", ".") for name in wheel_names}
    own = {
        name for name in folders if name.split(".")[0] == "traincheck" and "dist-info" not in name
    }
    assert own - packages <= {"traincheck.collect.launch.bootstrap"}


def test_cli_is_no_package_of_its_own(tmp_path: Path) -> None:
    code = "import importlib.util as u; print(u.find_spec('cli'), u.find_spec('traincheck.cli'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    outside, inside = done.stdout.split(maxsplit=1)
    assert outside == "None"
    assert inside.strip() != "None"


def test_the_four_commands_exist() -> None:
    assert set(PROJECT["project"]["scripts"]) == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_loads(command: str) -> None:
    target = PROJECT["project"]["scripts"][command]
    assert callable(EntryPoint(command, target, "console_scripts").load())


def test_tested_versions_are_pinned() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all("==" in pin and "/" not in pin and "@" not in pin for pin in pins)
    pinned = {pin.split("==")[0] for pin in pins}
    named = {split_name(line) for line in PROJECT["project"]["dependencies"]}
    for extra in PROJECT["project"]["optional-dependencies"].values():
        named |= {split_name(line) for line in extra}
    assert named - {"traincheck"} <= pinned


def split_name(requirement: str) -> str:
    """Distribution name of a requirement, `rich>=13` -> `rich`."""
    for index, letter in enumerate(requirement):
        if letter in "<>=!~;[ ":
            return requirement[:index]
    return requirement
