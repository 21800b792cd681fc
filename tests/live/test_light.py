"""Events with few decoded values: what is drawn is the same as with all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.collect.recording import recording
from traincheck.live.light import LIGHT
from traincheck.page.timeline import GRADIENT, LOSS, RATE, Timeline
from traincheck.store.lines import WHOLE, Decoders
from traincheck.store.tail import TailReader


def record(folder: Path) -> Path:
    """A run whose loss becomes infinite in its last step."""
    torch.manual_seed(0)
    with recording(folder) as run:
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(5):
            optimizer.zero_grad()
            loss = net(torch.randn(8, 4)).square().mean()
            (loss * (float("inf") if step == 4 else 1.0)).backward()
            optimizer.step()
    return run.folder


def read(folder: Path, decoders: Decoders) -> Timeline:
    made = Timeline()
    reader = TailReader(folder, decoders=decoders, stop=lambda: True)
    for event in reader.events():
        made.add(event)
    assert not reader.skipped
    return made


def test_a_real_run_has_the_same_numbers(tmp_path: Path) -> None:
    folder = record(tmp_path / "run")
    light, whole = read(folder, LIGHT), read(folder, WHOLE)
    assert set(light.curves) == set(whole.curves) == {LOSS, RATE, GRADIENT}
    for name, parts in whole.curves.items():
        for of, ranks in parts.items():
            for rank, row in ranks.items():
                assert light.curves[name][of][rank].high == row.high
                assert len(row.high) == 5
    assert whole.curves[LOSS][""][0].high[4] == float("inf")
    assert light.maps.keys() == whole.maps.keys()
    for name, grid in whole.maps.items():
        layers = list(grid.rows)
        assert list(light.maps[name].rows) == layers
        assert len(layers) == 2
        np.testing.assert_array_equal(light.maps[name].highest(layers), grid.highest(layers))


def test_a_bad_line_is_skipped_as_elsewhere(tmp_path: Path) -> None:
    folder = record(tmp_path / "run")
    path = next(folder.glob("events-*"))
    path.write_bytes(path.read_bytes() + b'{"k":"call","n":1\n[]\n')
    readers = [TailReader(folder, decoders=d, stop=lambda: True) for d in (LIGHT, WHOLE)]
    counts = [sum(1 for _ in reader.events()) for reader in readers]
    assert counts[0] == counts[1] > 50
    assert [reader.skipped for reader in readers] == [2, 2]
