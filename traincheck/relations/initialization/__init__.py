"""The relation *initialization*."""
