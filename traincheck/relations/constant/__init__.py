"""The relation *constant*."""
