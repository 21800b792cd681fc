"""The relation *distinct*."""
