"""Calls of a run around a violation, beside those of its reference."""
