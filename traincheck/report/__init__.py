"""Show: one file per format, listed in registry.py."""
