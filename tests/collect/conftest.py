"""A stand-in for a device."""

from __future__ import annotations

import pytest
from torch import Tensor

from traincheck.collect.tensors.device_fingerprint import finish, read, start
from traincheck.collect.tensors.fingerprint import components, seed_of_parts
from traincheck.collect.tracking import change_detector, tracked_tensor


def mix(tensor: Tensor) -> object:
    """The fingerprint as on a device."""
    parts = components(tensor)
    return finish(read([start(parts)])[0], seed_of_parts(tensor, parts))


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is taken for a device, as far as looks go."""
    monkeypatch.setattr(change_detector, "is_on_device", lambda tensor: True)
    monkeypatch.setattr(tracked_tensor, "is_plain_cpu", lambda tensor: False)
    monkeypatch.setattr(change_detector, "fingerprint", mix)
