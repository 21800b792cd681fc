"""Source is read from regular Python files below trusted folders, whatever a trace says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traincheck.check.suppression.source_files import (
    MAX_BYTES,
    SourceFiles,
    split_place,
    trusted_folders,
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text("x = 1\n")
    (tmp_path / "other.py").write_text("SECRET = 1\n")
    (tmp_path / "passwd").write_text("root:x:0\n")
    return folder


def sources(root: object, *trusted: Path) -> SourceFiles:
    return SourceFiles(lambda: str(root), trusted)


def test_a_file_of_the_project_is_read(project: Path) -> None:
    assert sources(project, project).read("train.py") == "x = 1\n"
    assert sources("/nowhere", project).read(str(project / "train.py")) == "x = 1\n"


@pytest.mark.parametrize(
    "name",
    [
        "../other.py",
        "../passwd",
        "/etc/passwd",
        "/dev/zero",
        "gone.py",
        "",
        ".",
        "a\0.py",
        "\ud800",
    ],
)
def test_what_a_trace_names_elsewhere_is_not_read(project: Path, name: str) -> None:
    assert sources(project, project).read(name) is None


def test_the_folder_that_a_trace_calls_its_own_is_not_trusted(project: Path) -> None:
    assert sources(project.parent, project).read("other.py") is None
    assert sources("/", project).read(f"{project.parent}/other.py".lstrip("/")) is None
    assert sources(project).read("train.py") is None


@pytest.mark.parametrize("kind", ["pipe", "device", "directory", "loop", "outside", "large"])
def test_what_is_no_source_is_not_read(project: Path, kind: str) -> None:
    path = project / "odd.py"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "large":
        path.write_bytes(b"#" * (MAX_BYTES + 1))
    else:
        path.symlink_to(
            {"device": "/dev/zero", "loop": path, "outside": project / "../other.py"}[kind]
        )
    assert sources(project, project).read("odd.py") is None


def test_a_link_within_the_project_is_read(project: Path) -> None:
    (project / "link.py").symlink_to(project / "train.py")
    assert sources(project, project).read("link.py") == "x = 1\n"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"# -*- coding: latin-1 -*-\n\xe9", "# -*- coding: latin-1 -*-\né"),
        (b"\xef\xbb\xbfx\r\ny\r", "x\ny\n"),
        (b"# coding: no-such\n\xff", "# coding: no-such\n\ufffd"),
        (b"", ""),
    ],
)
def test_source_is_decoded_as_python_does(project: Path, content: bytes, text: str) -> None:
    (project / "train.py").write_bytes(content)
    assert sources(project, project).read("train.py") == text


def test_a_note_names_a_source_of_the_run_that_was_not_read(project: Path) -> None:
    found = sources(project)
    found.read("gone.py")
    found.read(str(project / "train.py"))  # of a package, say
    assert found.notes() == []
    found.read("train.py")
    assert "'train.py' was not read" in found.notes()[0]


def test_the_folders_that_are_trusted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    (project / "pyproject.toml").touch()
    (project / "traces" / "run").mkdir(parents=True)
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert trusted_folders() == (elsewhere,)
    assert trusted_folders(project / "traces" / "run") == (elsewhere, project)
    assert trusted_folders(project.parent) == (elsewhere,)  # no checkout
    assert trusted_folders(script="../project/train.py") == (elsewhere, project)
    assert trusted_folders(script="../other.py") == (elsewhere, project.parent)
    monkeypatch.chdir(project / "traces")
    assert trusted_folders() == (project,)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("a.py:3", ("a.py", 3)),
        ("C:a.py:3", ("C:a.py", 3)),
        ("a.py", None),
        (":3", None),
        ("a.py:", None),
        ("a.py:x", None),
        ("a.py:-1", None),
        ("a.py:³", None),
        (f"a.py:{'1' * 5000}", None),
    ],
)
def test_places(place: str, expected: tuple[str, int] | None) -> None:
    assert split_place(place) == expected
