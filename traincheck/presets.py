"""The shipped invariant files, learned from healthy pipelines."""

from __future__ import annotations

from pathlib import Path

from traincheck.errors import UsageError, suggested

# Installed, the folder is in the package; in a checkout it is next to it.
_PLACES = (Path(__file__).parent, Path(__file__).parents[1])


def preset_names() -> list[str]:
    """The names of the presets, sorted."""
    return sorted(path.stem for path in _folder().glob("*.json"))


def preset_path(name: str) -> Path:
    """The invariant file of a preset.

    Raises:
        UsageError: there is no such preset; the fix lists the names.
    """
    known = preset_names()
    if name in known:
        return _folder() / f"{name}.json"
    listed = ", ".join(known) or "none: this installation lacks configs/invariants"
    like = suggested(name, known)
    raise UsageError(f"there is no preset {name!r}", fix=f"{like}presets: {listed}")


def _folder() -> Path:
    found = [place / "configs" / "invariants" for place in _PLACES]
    return next((folder for folder in found if folder.is_dir()), found[0])
