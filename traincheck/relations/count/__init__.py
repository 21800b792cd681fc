"""The relation *count*."""
