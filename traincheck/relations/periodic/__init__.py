"""The relation *periodic*."""
