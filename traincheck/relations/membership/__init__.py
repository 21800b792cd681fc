"""The relation *membership*."""
