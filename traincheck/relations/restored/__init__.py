"""The relation *restored*."""
