"""Know, built in: one file per rule, named by its code, listed in _table.py."""
