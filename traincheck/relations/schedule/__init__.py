"""The relation *schedule*."""
