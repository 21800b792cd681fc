"""Show: one file per sink, listed in _table.py."""
