"""A stand-in for a device."""

from __future__ import annotations

import pytest

from traincheck.collect import looker, variables
from traincheck.collect.device import finish, read, start
from traincheck.collect.fingerprint import components, seed_of_parts


def mix(tensor):
    """The fingerprint as on a device."""
    parts = components(tensor)
    return finish(read([start(parts)])[0], seed_of_parts(tensor, parts))


@pytest.fixture
def far(monkeypatch):
    """The CPU is taken for a device, as far as looks go."""
    monkeypatch.setattr(looker, "is_on_device", lambda tensor: True)
    monkeypatch.setattr(variables, "is_plain_cpu", lambda tensor: False)
    monkeypatch.setattr(looker, "fingerprint", mix)
