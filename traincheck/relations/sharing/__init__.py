"""The relation *sharing*."""
