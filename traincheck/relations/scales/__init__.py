"""The relation *scales*."""
