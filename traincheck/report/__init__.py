"""Show: one file per sink, listed in registry.py."""
