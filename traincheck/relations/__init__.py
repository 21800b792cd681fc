"""Know, learned: one file per relation, listed in _table.py."""
