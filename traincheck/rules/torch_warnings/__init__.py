"""Rules about torch warnings."""
