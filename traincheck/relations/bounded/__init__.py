"""The relation *bounded*."""
