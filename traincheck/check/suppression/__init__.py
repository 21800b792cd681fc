"""Violations and findings that a user suppressed."""
