"""The relation *consistent*."""
