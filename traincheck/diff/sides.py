"""Sentences about two runs. A mark, which is no letter, stands for a run in them."""

from __future__ import annotations

A, B = "\ue00a", "\ue00b"  # for private use: no name or value of a program holds them


class Told(str):
    """A sentence that calls the runs A and B, and can be said with other names.

    Attributes:
        marked: the sentence with the marks.
    """

    marked: str

    def __new__(cls, marked: str) -> Told:
        told = super().__new__(cls, _named(marked, "A", "B"))
        told.marked = marked
        return told

    def named(self, a: str, b: str) -> str:
        """The sentence with these names of the runs."""
        return _named(self.marked, a, b)


def _named(marked: str, a: str, b: str) -> str:
    return marked.translate({ord(A): a, ord(B): b})
