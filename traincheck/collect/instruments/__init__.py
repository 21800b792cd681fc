"""Instruments: one file per API family, each with install() and remove()."""
