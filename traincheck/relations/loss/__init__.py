"""The relation *loss*."""
