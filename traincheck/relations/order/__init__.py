"""The relation *order*."""
