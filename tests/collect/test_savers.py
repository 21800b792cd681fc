"""Every way to write a checkpoint leaves a record with its path, and can be held up before it."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.collect.recording import read_folder, recording


def torch_path(state: dict[str, Any], path: Path) -> None:
    torch.save(state, path)


def torch_file(state: dict[str, Any], path: Path) -> None:
    with path.open("wb") as file:
        torch.save(state, file)


def safetensors_file(state: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file(state, path)


def distributed(state: dict[str, Any], path: Path) -> None:
    from torch.distributed import checkpoint

    checkpoint.save(state, checkpoint_id=str(path))


def distributed_by_writer(state: dict[str, Any], path: Path) -> None:
    from torch.distributed import checkpoint

    checkpoint.save(state, storage_writer=checkpoint.FileSystemWriter(path))


SAVERS = [torch_path, torch_file, safetensors_file, distributed, distributed_by_writer]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("save", SAVERS, ids=lambda f: f.__name__)
def test_a_save_is_recorded(tmp_path, monkeypatch, save: Callable[..., None], is_loaded) -> None:
    if save is safetensors_file:
        pytest.importorskip("safetensors")
    if not is_loaded and save is safetensors_file:
        monkeypatch.delitem(sys.modules, "safetensors.torch", raising=False)
    with recording(tmp_path / "run") as run:
        save(nn.Linear(2, 2).state_dict(), tmp_path / "saved")
    (event,) = run.of("checkpoint")
    assert (event.op, event.path) == ("save", str(tmp_path / "saved"))
    assert event.entries == 2
    assert event.where.partition(":")[0].endswith("test_savers.py")


def test_a_save_is_known_at_once(tmp_path) -> None:
    """The process may be killed in the very step, by --halt for instance."""
    with recording(tmp_path / "run"):
        torch.save({}, tmp_path / "saved")
        (event,) = [e for e in read_folder(tmp_path / "run") if e.kind == "checkpoint"]
        assert event.path == str(tmp_path / "saved")


def test_a_save_can_be_held_up(tmp_path) -> None:
    def refuse() -> None:
        raise KeyboardInterrupt

    with recording(tmp_path / "run") as run:
        run.session.hooks.before_save.add(refuse)
        with pytest.raises(KeyboardInterrupt):
            torch.save({}, tmp_path / "saved")
        run.session.hooks.before_save.clear()
        torch.save({}, io.BytesIO())
    assert not (tmp_path / "saved").exists()
    assert [event.path for event in run.of("checkpoint")] == [None]
