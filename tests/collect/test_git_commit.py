"""The commit of a checkout, as its files tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincheck.collect.launch.script import commit_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def checkout(folder: Path, head: str, **files: str) -> Path:
    git = folder / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text(head)
    for name, text in files.items():
        path = git / name.replace("__", "/").replace("_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return git


@pytest.mark.parametrize(
    ("head", "files", "commit"),
    [
        (COMMIT, {}, COMMIT),
        ("ref: refs/heads/main\n", {"refs__heads__main": COMMIT + "\n"}, COMMIT),
        ("ref: refs/heads/main", {"packed_refs": f"# pack\n{COMMIT} refs/heads/main\n"}, COMMIT),
        ("ref: refs/heads/new", {"packed_refs": f"{COMMIT} refs/heads/main\n"}, ""),
        ("no commit", {}, ""),
    ],
)
def test_of_a_checkout(tmp_path: Path, head: str, files: dict[str, str], commit: str) -> None:
    checkout(tmp_path / "work", head, **files)
    inside = tmp_path / "work" / "src" / "deep"
    inside.mkdir(parents=True)
    assert commit_of(inside) == commit_of(tmp_path / "work") == commit


def test_of_a_worktree(tmp_path: Path) -> None:
    git = checkout(tmp_path / "work", "ref: refs/heads/main", refs__heads__side=COMMIT)
    own = git / "worktrees" / "side"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/side")
    (own / "commondir").write_text("../..\n")
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / ".git").write_text(f"gitdir: {own}\n")
    assert commit_of(tmp_path / "side") == COMMIT


def test_outside_of_a_checkout(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""
