"""Every preset in configs/ is one that the program accepts, and is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincheck.config import CollectConfig, load_config
from traincheck.errors import UsageError

CONFIGS = Path(__file__).parents[1] / "configs"
PRESETS = sorted(path.name for path in CONFIGS.glob("*.toml"))


def test_there_are_presets() -> None:
    assert PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_changes_something(name: str) -> None:
    assert load_config(CONFIGS / name).collect != CollectConfig()


def test_a_preset_with_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[collect]\nevry = 2\n", encoding="utf-8")
    with pytest.raises(UsageError, match="evry"):
        load_config(path)


def test_every_preset_is_listed() -> None:
    text = (CONFIGS / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in text for name in PRESETS)
