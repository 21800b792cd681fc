"""Tell from a raw line whether anybody needs its event, so that the others are never decoded.

May let through too much, never leaves out what is needed; malformed lines are let through.
"""

from __future__ import annotations

from traincheck.schema.claims import Needs
from traincheck.schema.events import KINDS

_ANY = "*"
_TRIAL_LINES = 5000  # after so many it shows whether a filter leaves out enough
_ALWAYS = ("step", "stage", "mark")  # order, steps and what was observed are read from these
_HEAD_BYTES = 240  # the common fields and the span of a call are in here, and so is the api's name
_API = b'"api":"'
_FAMILY = b'"family":"'
_ARGS = b'"args":'
_ROLE = b'"role":"'


class LineFilter:
    """Knows which kinds, calls and roles ``needs`` asks for."""

    def __init__(self, needs: Needs) -> None:
        self._others = {k.encode() for k in KINDS if k not in needs.kinds and k not in _ALWAYS}
        self._all_calls = "call" in needs.kinds or _ANY in needs.calls
        self._calls = {name.encode() for name in needs.heard}
        roles = {state.partition("@")[0] for state in needs.states}
        self._all_states = "state" in needs.kinds or _ANY in roles
        self._roles = {role.encode() for role in roles}
        self.seen = 0
        self.left_out = 0

    @property
    def pays(self) -> bool:
        """Whether looking at lines costs less than decoding those that it leaves out."""
        # A look costs about a third of a decoding (benchmarks/check_speed.py).
        return self.seen < _TRIAL_LINES or self.left_out * 3 > self.seen

    def leaves_out(self, line: bytes) -> bool:
        """Whether nobody needs the event of this line."""
        if not line.startswith(b'{"k":"') or not line.endswith(b"}"):
            return False
        kind = line[6 : line.find(b'"', 6)]
        if kind == b"call":
            unneeded = not self._all_calls and self._is_unneeded_call(line)
        elif kind == b"state":
            unneeded = not self._all_states and self._is_unneeded_state(line)
        else:
            unneeded = kind in self._others
        self.left_out += unneeded
        return unneeded

    def _is_unneeded_call(self, line: bytes) -> bool:
        start = line.find(_API, 0, _HEAD_BYTES)
        if start < 0:
            return False
        end = line.find(b'"', start + 7)
        if line[start + 7 : end] in self._calls:
            return False
        family = line.find(_FAMILY, end)
        if family < 0:
            return True
        if line.find(_ARGS, end, family) >= 0:
            return False  # it may be the value of an argument with this name
        return line[family + 10 : line.find(b'"', family + 10)] not in self._calls

    def _is_unneeded_state(self, line: bytes) -> bool:
        start = line.find(_ROLE)
        if start < 0:
            return b"parameter" not in self._roles  # the default is left out of the line
        return line[start + 8 : line.find(b'"', start + 8)] not in self._roles
