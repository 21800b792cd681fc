"""The fixture of all tests of comparisons."""

from tests.diff.run_pairs import compare

__all__ = ["compare"]
