"""Placeholders in records for numbers that are still on a device.

All are read at once when the records are written: reading each would wait for the device each time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch

from traincheck.collect.tensors.devices import read_together
from traincheck.handlers import give_back

_PLACE = re.compile(rb"\0(\d+)\0")
Finish = Callable[[Sequence[float]], bytes]  # makes JSON of numbers


class PendingNumbers:
    """Numbers of one thread's records that wait for devices.

    A signal handler of the program may add or read some at any time. So each has a unique number,
    and texts are kept until the records that name them are complete.
    """

    __slots__ = ("_next", "_texts", "waiting")

    def __init__(self) -> None:
        self._next = 0
        self._texts: dict[int, bytes] = {}
        self.waiting: dict[int, tuple[Finish, torch.Tensor]] = {}

    def add(self, finish: Finish, numbers: torch.Tensor) -> bytes:
        """A placeholder for the text that ``finish`` makes of a tensor with one dim."""
        number = self._next
        self._next = number + 1
        self.waiting[number] = finish, numbers
        return b"\0%d\0" % number

    def read(self) -> None:
        """Read all numbers that wait.

        Raises:
            Exception: of torch. The records are valid without the numbers, and none waits any more.
        """
        waiting = dict(self.waiting)
        try:
            rows = read_together([numbers for _, numbers in waiting.values()])
            for (number, (finish, _)), row in zip(waiting.items(), rows):
                self._texts[number] = finish(row)
        except Exception as error:
            give_back(error)
            self._forget(waiting)
            raise
        self._forget(waiting)

    def _forget(self, read: dict[int, tuple[Finish, torch.Tensor]]) -> None:
        for number in read:
            self.waiting.pop(number, None)

    def filled(self, lines: Sequence[bytes]) -> Sequence[bytes]:
        """Records with the texts inserted; ``{}`` if one could not be read."""
        if not self._next:  # the case of all programs without a device
            return lines
        return [line if b"\0" not in line else _PLACE.sub(self._text, line) for line in lines]

    def _text(self, place: re.Match[bytes]) -> bytes:
        return self._texts.get(int(place[1]), b"{}")

    def clear(self) -> None:
        """Forget all texts that were read."""
        self._texts.clear()

    def leave(self) -> None:
        """In a forked child: discard everything, which belongs to the parent."""
        self.waiting.clear()
        self._texts.clear()
